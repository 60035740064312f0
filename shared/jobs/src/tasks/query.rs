//! One task beside its row: its output, and its state before the drainer has folded its events.

use ledgerline_event::{Name, TaskEvent, TaskSummary, catalogue::TaskState, keys::place, overflow};
use ledgerline_store::{StoreError, keys};
use serde_json::{Value, json};

use super::TaskMessage;
use crate::Tasks;
use ledgerline_outbox::DispatchError;

impl Tasks {
    /// What a completed task has put out; `None` if it is not completed, or if its end has expired. An output that is
    /// missing in S3 is the marker that stands for it, which says so.
    pub async fn task_output(
        &self,
        tenant: &Name,
        task: &TaskSummary,
    ) -> Result<Option<Value>, DispatchError> {
        let (TaskState::Completed, Some(at), Some(event_id)) = (task.state, task.ended_at, &task.ended_by)
        else {
            return Ok(None);
        };
        let event = self.timeline.at(tenant, &place(at, event_id)).await?;
        Ok(event.and_then(|mut event| match overflow::missing(&event.properties) {
            Some(_) => {
                event.properties.remove_entry(overflow::MARKER).map(|marker| Value::from_iter([marker]))
            }
            None => event.properties.remove("output"),
        }))
    }

    /// A task that was submitted a moment ago: its submitter finds it before the drainer has folded any event of it.
    pub async fn submitted(
        &self,
        tenant: &Name,
        request_id: &str,
    ) -> Result<Option<TaskSummary>, DispatchError> {
        let record = self.records.get(&keys::task_record(tenant, request_id, 1)).await?;
        let Some((at, record)) = record.and_then(|record| Some((record.created_at?, record))) else {
            return Ok(None);
        };
        let message = record.message.as_deref().and_then(|body| TaskMessage::parse(body).ok());
        let summary = json!({
            "requestId": request_id,
            "state": TaskState::Pending,
            "name": message.as_ref().map(|message| &message.name),
            "jobId": message.as_ref().and_then(|message| message.job_id.as_ref()),
            "generation": 1,
            "pendingAt": at,
            "enteredAt": at,
            "lastEventAt": at,
            "lastEventType": TaskEvent::Pending,
        });
        let summary = serde_json::from_value(summary);
        summary.map(Some).map_err(|error| StoreError::unreadable("GetItem", error.to_string()).into())
    }
}
