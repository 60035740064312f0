//! What sweeps store about themselves: the cursor from which the next one resumes, and when the last one ended.

use ledgerline_event::Millis;
use serde::{Deserialize, Serialize};

use crate::keys::ControlKey;
use crate::sweep_cursor::SweepCursor;
use crate::{ControlTable, StoreError};

/// When a sweep last ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SweepEnd {
    /// Its time.
    pub ended_at: Millis,
}

/// The records of sweeps; each sweep has keys of its own.
#[derive(Clone, Debug)]
pub struct Sweeps {
    table: ControlTable,
}

impl Sweeps {
    /// The records of sweeps in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Where the last sweep stopped; `None` if it came to its end.
    pub async fn cursor(&self, key: &ControlKey) -> Result<Option<SweepCursor>, StoreError> {
        self.table.get(key).await
    }

    /// Stores where a sweep stopped; `None` deletes the cursor, since the sweep came to its end.
    pub async fn set_cursor(&self, key: &ControlKey, cursor: Option<SweepCursor>) -> Result<(), StoreError> {
        match cursor {
            Some(cursor) => {
                let put = self.table.put(key, &cursor)?.send().await;
                put.map(drop).map_err(|error| StoreError::new("PutItem", error))
            }
            None => {
                let delete = self.table.delete(key).send().await;
                delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
            }
        }
    }

    /// When the last sweep ended; `None` if none has.
    pub async fn end(&self, key: &ControlKey) -> Result<Option<SweepEnd>, StoreError> {
        self.table.get(key).await
    }

    /// Stores the time of a sweep's end.
    pub async fn set_end(&self, key: &ControlKey, end: SweepEnd) -> Result<(), StoreError> {
        let put = self.table.put(key, &end)?.send().await;
        put.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }
}
