//! The runs and timers that the sweep of runs handles, and the cursor of that sweep.

use ledgerline_event::Millis;

use crate::{
    ControlKey, ControlTable, StoreError, keys,
    sweep_cursor::{Part, SweepCursor},
};

/// The due runs and timers, and the cursor of their sweep.
#[derive(Clone, Debug)]
pub struct RunSweepRecords {
    table: ControlTable,
}

impl RunSweepRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Where the last sweep stopped; `None` if it came to its end.
    pub async fn cursor(&self) -> Result<Option<SweepCursor>, StoreError> {
        self.table.get(&keys::run_sweep_cursor()).await
    }

    /// Stores where a sweep stopped; `None` deletes the cursor, since the sweep came to its end.
    pub async fn set_cursor(&self, cursor: Option<SweepCursor>) -> Result<(), StoreError> {
        let key = keys::run_sweep_cursor();
        match cursor {
            Some(cursor) => {
                let put = self.table.put(&key, &cursor)?.send().await;
                put.map(drop).map_err(|error| StoreError::new("PutItem", error))
            }
            None => {
                let delete = self.table.delete(&key).send().await;
                delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
            }
        }
    }

    /// Keys of at most `limit` runs and timers of a part of what is due, oldest first, each with its time.
    pub async fn due(&self, part: Part, limit: i32) -> Result<Vec<(ControlKey, Millis)>, StoreError> {
        self.table.due_between(&keys::run_due_shard(part.shard), part.from, part.until, limit).await
    }

    /// Keys of all runs of one shard that are due at `until` or before.
    pub async fn all_due_runs(&self, shard: u8, until: Millis) -> Result<Vec<ControlKey>, StoreError> {
        let mut due = self.table.all_due(&keys::run_due_shard(shard), until).await?;
        due.retain(|key| key.sk == keys::RUN);
        Ok(due)
    }
}
