//! What the sweep of runs finds, and where it stopped.

use ledgerline_event::Millis;

use crate::{
    ControlKey, ControlTable, StoreError, keys,
    sweep_shards::{Part, Place},
};

/// The due runs and timers, and the place of their sweep.
#[derive(Clone, Debug)]
pub struct RunSweepRecords {
    table: ControlTable,
}

impl RunSweepRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Where the last sweep stopped, if it did not come to the end.
    pub async fn place(&self) -> Result<Option<Place>, StoreError> {
        self.table.get(&keys::run_sweep()).await
    }

    /// Notes where a sweep stopped; none, that it came to the end.
    pub async fn note_place(&self, place: Option<Place>) -> Result<(), StoreError> {
        let key = keys::run_sweep();
        match place {
            Some(place) => {
                let put = self.table.put(&key, &place)?.send().await;
                put.map(drop).map_err(|error| StoreError::new("PutItem", error))
            }
            None => {
                let delete = self.table.delete(&key).send().await;
                delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
            }
        }
    }

    /// Keys of some runs and timers of a part of what is due, oldest first, each with its time.
    pub async fn due(&self, part: Part, limit: i32) -> Result<Vec<(ControlKey, Millis)>, StoreError> {
        self.table.due_between(&keys::run_due_shard(part.shard), part.from, part.until, limit).await
    }

    /// Keys of all runs of one shard that are due until then.
    pub async fn all_due_runs(&self, shard: u8, until: Millis) -> Result<Vec<ControlKey>, StoreError> {
        let mut due = self.table.all_due(&keys::run_due_shard(shard), until).await?;
        due.retain(|key| key.sk == keys::RUN);
        Ok(due)
    }
}
