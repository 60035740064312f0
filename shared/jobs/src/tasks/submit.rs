//! Submitting a task. One claim sends its event and its message, so that there is never one without the other.

use ledgerline_event::{
    Kind, Name, check_limits,
    dag::{bare_id, check_task_name},
};
use ledgerline_ledger::Emitter;
use ledgerline_store::{WithClaim, keys};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{MessageStorage, TaskStart};
use crate::Tasks;
use ledgerline_outbox::{Claimed, ComponentError, PendingEffects};

/// A request to run a task.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct TaskSubmission {
    pub name: String,
    #[serde(default)]
    pub input: Map<String, Value>,
    #[serde(default)]
    pub request_id: Option<String>,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub max_attempts: Option<u32>,
}

/// A task that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SubmittedTask {
    pub request_id: Name,
    /// Whether it was submitted before.
    pub collapsed: bool,
}

impl Tasks {
    /// Submits a task in the context of `emitter`. With the same id and the same content as before it changes nothing.
    pub async fn submit_task(
        &self,
        emitter: &Emitter,
        submission: TaskSubmission,
    ) -> Result<SubmittedTask, ComponentError> {
        check_limits(submission.timeout_ms, submission.max_attempts)?;
        check_task_name(&submission.name)?;
        let request_id = match &submission.request_id {
            None => emitter.new_id(Kind::Task),
            Some(id) => bare_id("requestId", id.as_str())?,
        };
        let tenant = &emitter.scope().tenant;
        let key = keys::task_record(tenant, &request_id, 1);
        let asked = json!({
            "name": submission.name, "input": submission.input,
            "timeoutMs": submission.timeout_ms, "maxAttempts": submission.max_attempts,
        });
        let hash = ledgerline_outbox::short_hash(&[&asked.to_string()]);
        let start = TaskStart {
            request_id: request_id.clone(),
            job: None,
            name: submission.name,
            depends_on: None,
            input: submission.input,
            generation: 1,
            timeout_ms: submission.timeout_ms,
            max_attempts: submission.max_attempts,
            message_storage: MessageStorage::InRecord,
        };
        let (message, effects) = self.task_effects(emitter, start).await?;
        let pending =
            PendingEffects { key: key.clone(), effects, started: Some(request_id.clone()), ttl: None };
        let claim = self.outbox.new_claim(&pending).await?;
        let mut record = self.new_record(&message, Some(hash.clone()), self.emitter.now()).await?;
        record.workflow_run_id = started_by(emitter);
        let claimed = self.outbox.put_claim(&key, &WithClaim { record: &record, claim: &claim }).await?;
        let collapsed = match &claimed {
            Claimed::New => false,
            // An earlier attempt of this request put the claim, and only the answer was lost.
            Claimed::Before(before) if before.claim_id == claim.claim_id => false,
            Claimed::Before(_) | Claimed::Recorded => {
                let there = self.records.get(&key).await?.unwrap_or_default();
                if there.content_hash.as_ref() != Some(&hash) {
                    let reason = format!(
                        "a task `{request_id}` exists and asks for something else; leave requestId out for a new one"
                    );
                    return Err(ComponentError::Refused(reason));
                }
                true
            }
        };
        self.outbox.resume(&key).await?;
        Ok(SubmittedTask { request_id, collapsed })
    }
}

/// The run in whose context something is submitted.
pub(super) fn started_by(emitter: &Emitter) -> Option<Name> {
    let run_id = emitter.scope().workflow_run_id.as_deref()?;
    Name::new("workflowRunId", run_id).ok()
}
