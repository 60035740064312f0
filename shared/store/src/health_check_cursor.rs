//! The cursor of the health check: it checks the tenants in rounds, over as many checks as a round takes.

use serde::{Deserialize, Serialize};

use crate::{ControlTable, StoreError, keys};

/// The last tenant that a check reached before its time was over.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct HealthCheckCursor {
    pub after: String,
}

/// Reads and writes the cursor of the health check.
#[derive(Clone, Debug)]
pub struct HealthCheckCursors {
    table: ControlTable,
}

impl HealthCheckCursors {
    /// The cursor in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Where the next check resumes; `None` if it may begin anywhere.
    pub async fn get(&self) -> Result<Option<HealthCheckCursor>, StoreError> {
        self.table.get(&keys::sweep_record("HEALTH")).await
    }

    /// Stores where the next check resumes.
    pub async fn put(&self, cursor: &HealthCheckCursor) -> Result<(), StoreError> {
        let put = self.table.put(&keys::sweep_record("HEALTH"), cursor)?.send().await;
        put.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// Deletes the cursor: the round is over.
    pub async fn remove(&self) -> Result<(), StoreError> {
        let delete = self.table.delete(&keys::sweep_record("HEALTH")).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }
}
