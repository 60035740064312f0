//! What sweeps leave behind: where the next one goes on, and when the last one came to its end.

use ledgerline_event::Millis;
use serde::{Deserialize, Serialize};

use crate::keys::ControlKey;
use crate::sweep_shards::Place;
use crate::{ControlTable, StoreError};

/// When a sweep last came to its end.
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
    pub async fn place(&self, key: &ControlKey) -> Result<Option<Place>, StoreError> {
        self.table.get(key).await
    }

    /// Notes where a sweep stopped, or that it came to its end.
    pub async fn set_place(&self, key: &ControlKey, place: Option<Place>) -> Result<(), StoreError> {
        match place {
            Some(place) => {
                let put = self.table.put(key, &place)?.send().await;
                put.map(drop).map_err(|error| StoreError::new("PutItem", error))
            }
            None => {
                let delete = self.table.delete(key).send().await;
                delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
            }
        }
    }

    /// When the last sweep came to its end, if one did.
    pub async fn end(&self, key: &ControlKey) -> Result<Option<SweepEnd>, StoreError> {
        self.table.get(key).await
    }

    /// Notes that a sweep came to its end.
    pub async fn set_end(&self, key: &ControlKey, end: SweepEnd) -> Result<(), StoreError> {
        let put = self.table.put(key, &end)?.send().await;
        put.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }
}
