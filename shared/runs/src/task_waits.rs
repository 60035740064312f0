//! Runs that wait for a task or a job: its end, met in the ledger, wakes them.

use ledgerline_event::{Event, LogDraft, Name, RunEventType, overflow};
use ledgerline_store::{LogGuard, keys};
use serde_json::{Map, Value, json};

use super::wake::{ExternalAppend, Woken};
use crate::{RunDriver, TaskWaits};
use ledgerline_outbox::ComponentError;

impl TaskWaits {
    /// A task that a run started has ended by this event.
    pub async fn on_task_ended(&self, run_id: &Name, end: &Event) -> Result<(), ComponentError> {
        let mut event = end.clone();
        self.timeline.restore(&mut event).await?;
        let property = |name: &str| event.properties.get(name).cloned();
        let missing = overflow::missing(&event.properties);
        let ended = match (event.event_type.as_str(), missing) {
            ("Task Completed", Some(missing)) => json!({
                "state": "failed",
                "error": format!("the output of the task is missing: {missing}"),
            }),
            ("Task Completed", None) => json!({ "state": "completed", "output": property("output") }),
            ("Task Timeout", _) => json!({
                "state": "failed",
                "error": format!("the task timed out after {} ms", property("elapsedMs").unwrap_or_default()),
                "errorCategory": "timeout",
            }),
            _ => json!({
                "state": "failed",
                "error": property("error"),
                "errorCategory": property("errorCategory"),
            }),
        };
        self.end_awaited(&end.tenant_id, run_id, ("TASK", &end.entity_id), ended).await
    }

    /// A job that a run started is completed, or one of its tasks has failed.
    pub async fn on_job_ended(
        &self,
        tenant: &Name,
        run_id: &Name,
        job_id: &Name,
        failed_task: Option<&Name>,
    ) -> Result<(), ComponentError> {
        let ended = match failed_task {
            None => json!({ "state": "completed", "output": { "jobId": job_id } }),
            Some(task) => {
                json!({ "state": "failed", "error": format!("task `{task}` of job `{job_id}` failed") })
            }
        };
        self.end_awaited(tenant, run_id, ("JOB", job_id), ended).await
    }

    async fn end_awaited(
        &self,
        tenant: &Name,
        run_id: &Name,
        (entity_type, entity_id): (&str, &Name),
        ended: Value,
    ) -> Result<(), ComponentError> {
        let key = keys::run_awaits(tenant, run_id, entity_type, entity_id);
        let Some(wait) = self.runs.waits.get(&key).await? else { return Ok(()) };
        let Value::Object(ended) = ended else { return Ok(()) };
        let mut event_data = Map::from_iter([("outcome".to_owned(), Value::from("ended"))]);
        event_data.extend(ended.into_iter().filter(|(_, value)| !value.is_null()));
        let woken = self
            .runs
            .logs
            .wake_run(ExternalAppend {
                tenant,
                run_id,
                draft: LogDraft {
                    event_type: RunEventType::WaitCompleted,
                    correlation_id: wait.entity_id.clone(),
                    event_data,
                },
                guards: vec![LogGuard::EndIsAwaited { key, wait_id: wait.entity_id.clone() }],
                expected_wake_count: None,
            })
            .await?;
        match woken {
            Woken::Appended(_) => self.runs.continue_run(tenant, run_id, RunDriver::of(wait.external)).await,
            Woken::Ended | Woken::Refused => Ok(()),
        }
    }
}
