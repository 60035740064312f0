//! Workflow types of tenants: what subscriptions start.

use aws_sdk_dynamodb::types::ReturnValue;
use ledgerline_event::Name;
use ledgerline_subscription::WorkflowType;

use crate::{ControlTable, StoreError, keys, read};

/// Reads and changes workflow types.
#[derive(Clone, Debug)]
pub struct WorkflowTypeRecords {
    table: ControlTable,
}

impl WorkflowTypeRecords {
    /// The workflow types of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// A tenant's workflow types, by name.
    pub async fn of_tenant(&self, tenant: &Name) -> Result<Vec<WorkflowType>, StoreError> {
        self.table.all(&keys::workflow_types(tenant)).await
    }

    /// One workflow type.
    pub async fn get(&self, tenant: &Name, name: &Name) -> Result<Option<WorkflowType>, StoreError> {
        self.table.get(&keys::workflow_type(tenant, name)).await
    }

    /// Puts a workflow type, or replaces it.
    pub async fn put(&self, tenant: &Name, workflow_type: &WorkflowType) -> Result<(), StoreError> {
        let put =
            self.table.put(&keys::workflow_type(tenant, &workflow_type.workflow_type), workflow_type)?;
        put.send().await.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// Deletes a workflow type and returns it, if it was there.
    pub async fn delete(&self, tenant: &Name, name: &Name) -> Result<Option<WorkflowType>, StoreError> {
        let delete = self.table.delete(&keys::workflow_type(tenant, name)).return_values(ReturnValue::AllOld);
        let deleted = delete.send().await.map_err(|error| StoreError::new("DeleteItem", error))?;
        deleted.attributes.map(read).transpose()
    }
}
