//! The workflows that runners have published, and the runs that they refused.

use ledgerline_event::{Millis, Seconds};
use serde::{Deserialize, Serialize};

use crate::{ControlTable, RunRecord, StoreError, item, keys};

/// A workflow that runners have.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct RunnableWorkflow {
    #[serde(rename = "SK", skip_serializing, default)]
    pub name: String,
    pub versions: Vec<String>,
    pub seen_at: Millis,
}

/// A run that a runner has refused.
#[derive(Debug, Serialize, Deserialize)]
pub struct RefusedRun {
    #[serde(rename = "SK", skip_serializing, default)]
    place: String,
    /// The version that the run began with; any will do for one that has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    ttl: Seconds,
}

impl RefusedRun {
    /// Tenant and id of the run.
    pub fn run(&self) -> Option<(&str, &str)> {
        self.place.split_once('#')
    }
}

/// The workflows that runners have published.
#[derive(Clone, Debug)]
pub struct RunnableWorkflowRecords {
    table: ControlTable,
}

impl RunnableWorkflowRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Notes that a runner has a workflow in these versions.
    pub async fn put(&self, workflow: &str, versions: &[String], now: Millis) -> Result<(), StoreError> {
        let row = RunnableWorkflow { name: String::new(), versions: versions.to_vec(), seen_at: now };
        let put = self.table.put(&keys::runnable(workflow), &row)?.send().await;
        put.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// The workflows that some runner has.
    pub async fn all(&self) -> Result<Vec<RunnableWorkflow>, StoreError> {
        self.table.all(keys::RUNNABLE).await
    }

    /// Notes that a runner has refused a run. The note is kept until `ttl`.
    pub async fn put_refused(&self, tenant: &str, run: &RunRecord, ttl: Seconds) -> Result<(), StoreError> {
        let row = RefusedRun { place: String::new(), version: run.workflow_version.clone(), ttl };
        let key = keys::refused_run(&run.workflow_name, tenant, &run.run_id);
        self.table.put_all(vec![item(&key, &row)?]).await
    }

    /// The runs of a workflow that runners have refused.
    pub async fn refused(&self, workflow: &str) -> Result<Vec<RefusedRun>, StoreError> {
        self.table.all(&keys::refused_runs(workflow)).await
    }

    /// Forgets that a run was refused.
    pub async fn delete_refused(&self, workflow: &str, tenant: &str, run_id: &str) -> Result<(), StoreError> {
        let delete = self.table.delete(&keys::refused_run(workflow, tenant, run_id)).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }
}
