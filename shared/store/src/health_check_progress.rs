//! How far the health check has come in its round over all tenants.

use serde::{Deserialize, Serialize};

use crate::{ControlTable, StoreError, keys};

/// The last tenant that a check came to before its time was over.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct HealthPlace {
    pub after: String,
}

/// The place of the health check.
#[derive(Clone, Debug)]
pub struct HealthPlaces {
    table: ControlTable,
}

impl HealthPlaces {
    /// The place in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Where the next check goes on; `None` if that may be anywhere.
    pub async fn get(&self) -> Result<Option<HealthPlace>, StoreError> {
        self.table.get(&keys::sweep_place("HEALTH")).await
    }

    /// Notes where the next check goes on.
    pub async fn put(&self, place: &HealthPlace) -> Result<(), StoreError> {
        let put = self.table.put(&keys::sweep_place("HEALTH"), place)?.send().await;
        put.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// Removes the place: the round is over.
    pub async fn remove(&self) -> Result<(), StoreError> {
        let delete = self.table.delete(&keys::sweep_place("HEALTH")).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }
}
