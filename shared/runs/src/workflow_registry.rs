//! The workflows that runners have. Runners publish them when they start; a request for another one is
//! refused at once.

use std::collections::BTreeSet;

use ledgerline_event::{Invalid, Name};

use super::{RunRecord, wake::run_message};
use crate::WorkflowRegistry;
use ledgerline_outbox::ComponentError;

/// How long a note about a refused run is kept. Each refusal puts it anew.
const REFUSED_SECONDS: u64 = 24 * 60 * 60;

impl WorkflowRegistry {
    /// Notes which workflows, in which versions, a runner has.
    pub async fn publish_workflows(
        &self,
        workflows: impl IntoIterator<Item = (String, Vec<String>)>,
    ) -> Result<(), ComponentError> {
        for (name, versions) in workflows {
            self.records.put(&name, &versions, self.emitter.now()).await?;
            self.enqueue_refused(&name, &versions).await?;
        }
        Ok(())
    }

    /// Notes that a runner has refused a run: a runner that publishes the run's workflow wakes it. Without
    /// this note a runner visits the run again all the same, only later.
    pub async fn note_refused(&self, tenant: &Name, run: &RunRecord) -> Result<(), ComponentError> {
        let ttl = self.emitter.now().seconds().plus(REFUSED_SECONDS);
        self.records.put_refused(tenant, run, ttl).await?;
        Ok(())
    }

    /// Sends those runs to the runners again that were refused for lack of a workflow, or a version, that is
    /// there now.
    async fn enqueue_refused(&self, workflow: &str, versions: &[String]) -> Result<(), ComponentError> {
        for row in self.records.refused(workflow).await? {
            if row.version.as_ref().is_some_and(|version| !versions.contains(version)) {
                continue;
            }
            let Some((tenant, run_id)) = row.run() else { continue };
            let (tenant, run_id) = (Name::stored("tenantId", tenant)?, Name::stored("runId", run_id)?);
            self.queues.send_messages(vec![run_message(&tenant, &run_id, 0)?]).await?;
            self.records.delete_refused(workflow, &tenant, &run_id).await?;
        }
        Ok(())
    }

    /// The workflows that some runner has.
    pub async fn runnable_workflows(&self) -> Result<BTreeSet<String>, ComponentError> {
        let rows = self.records.all().await?;
        Ok(rows.into_iter().map(|row| row.name).collect())
    }

    /// Refuses a workflow that no runner has published. As long as none has published any, every workflow passes.
    pub async fn check_runnable(&self, workflow: &Name) -> Result<(), ComponentError> {
        if self.known.lock().is_ok_and(|known| known.contains(workflow.as_str())) {
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
        if let Ok(mut cache) = self.known.lock() {
            *cache = known;
        }
        answer
    }
}
