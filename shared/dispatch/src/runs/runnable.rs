//! The workflows that runners have. Runners publish them when they start; a request for another one is
//! refused at once.

use std::collections::BTreeSet;

use ledgerline_event::{Invalid, Millis, Name, Seconds};
use ledgerline_ledger::{
    StoreError,
    control::{item, keys},
};
use serde::{Deserialize, Serialize};

use super::RunRecord;
use crate::{Dispatch, DispatchError};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Runnable {
    #[serde(rename = "SK", skip_serializing, default)]
    name: String,
    versions: Vec<String>,
    seen_at: Millis,
}

/// How long a note about a refused run is kept. Each refusal puts it anew.
const REFUSED_SECONDS: u64 = 24 * 60 * 60;

#[derive(Serialize, Deserialize)]
struct Refused {
    #[serde(rename = "SK", skip_serializing, default)]
    place: String,
    /// The version that the run began with; any will do for one that has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    ttl: Seconds,
}

impl Dispatch {
    /// Notes which workflows, in which versions, a runner has.
    pub async fn publish_workflows(
        &self,
        workflows: impl IntoIterator<Item = (String, Vec<String>)>,
    ) -> Result<(), DispatchError> {
        for (name, versions) in workflows {
            let row = Runnable { name: String::new(), versions, seen_at: self.now() };
            let put = self.control.put(&keys::runnable(&name), &row)?.send().await;
            put.map_err(|error| StoreError::new("PutItem", error))?;
            self.wake_refused(&name, &row.versions).await?;
        }
        Ok(())
    }

    /// Notes that a runner has refused a run: a runner that publishes the run's workflow wakes it. Without
    /// this note a runner visits the run again all the same, only later.
    pub async fn note_refused(&self, tenant: &Name, run: &RunRecord) -> Result<(), DispatchError> {
        let row = Refused {
            place: String::new(),
            version: run.workflow_version.clone(),
            ttl: self.now().seconds().plus(REFUSED_SECONDS),
        };
        let key = keys::refused_run(&run.workflow_name, tenant, &run.run_id);
        self.control.put_all(vec![item(&key, &row)?]).await?;
        Ok(())
    }

    /// Sends those runs to the runners again that were refused for lack of a workflow, or a version, that is
    /// there now.
    async fn wake_refused(&self, workflow: &str, versions: &[String]) -> Result<(), DispatchError> {
        let refused: Vec<Refused> = self.control.all(&keys::refused_runs(workflow)).await?;
        for row in refused {
            if row.version.as_ref().is_some_and(|version| !versions.contains(version)) {
                continue;
            }
            let Some((tenant, run_id)) = row.place.split_once('#') else { continue };
            let (tenant, run_id) = (Name::stored("tenantId", tenant)?, Name::stored("runId", run_id)?);
            self.send_run(&tenant, &run_id, 0).await?;
            let delete = self.control.delete(&keys::refused_run(workflow, &tenant, &run_id)).send().await;
            delete.map_err(|error| StoreError::new("DeleteItem", error))?;
        }
        Ok(())
    }

    /// The workflows that some runner has.
    pub async fn runnable_workflows(&self) -> Result<BTreeSet<String>, DispatchError> {
        let rows: Vec<Runnable> = self.control.all(keys::RUNNABLE).await?;
        Ok(rows.into_iter().map(|row| row.name).collect())
    }

    /// Refuses a workflow that no runner has published. As long as none has published any, every workflow passes.
    pub(super) async fn check_runnable(&self, workflow: &Name) -> Result<(), DispatchError> {
        if self.runnable.lock().is_ok_and(|known| known.contains(workflow.as_str())) {
            return Ok(());
        }
        let known = self.runnable_workflows().await?;
        let there = known.is_empty() || known.contains(workflow.as_str());
        let list: Vec<&str> = known.iter().map(String::as_str).collect();
        let error = || {
            let reason = format!("no runner has `{workflow}`; there are: {}", list.join(", "));
            Invalid::new("workflow", reason).into()
        };
        let answer = if there { Ok(()) } else { Err(error()) };
        if let Ok(mut cache) = self.runnable.lock() {
            *cache = known;
        }
        answer
    }
}
