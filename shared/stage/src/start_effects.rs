//! What a start of each kind of workflow type sends: a task, a job, a run, or an event for runs.

use ledgerline_drains::{PlanError, StartRequest};
use ledgerline_event::{Event, Kind, Name, Properties, catalogue::JobCreated};
use ledgerline_jobs::{MessageStorage, TaskStart, Tasks};
use ledgerline_ledger::{EmitError, Emitter};
use ledgerline_outbox::{ComponentError, Effects, SentEvent};
use ledgerline_runs::{SentEvents, new_run};
use ledgerline_subscription::{Kind as WorkflowKind, fill};
use serde_json::Value;

/// The components that starts reach.
#[derive(Clone)]
pub(crate) struct Starters {
    pub(crate) emitter: Emitter,
    pub(crate) tasks: Tasks,
    pub(crate) sent: SentEvents,
}

impl Starters {
    /// The effects of a start, and the id of what it starts.
    pub(crate) async fn effects(&self, request: StartRequest) -> Result<(Name, Effects), PlanError> {
        let StartRequest { emitter, workflow_type, input } = request;
        let (emitter, tenant) = (&emitter, emitter.scope().tenant.clone());
        match &workflow_type.kind {
            WorkflowKind::Task { timeout_ms, max_attempts, .. } => {
                let request_id = emitter.new_id(Kind::Task);
                let start = TaskStart {
                    request_id: request_id.clone(),
                    job: None,
                    name: workflow_type.target().to_string(),
                    depends_on: None,
                    input,
                    generation: 1,
                    timeout_ms: *timeout_ms,
                    max_attempts: *max_attempts,
                    message_storage: MessageStorage::Separate,
                };
                match self.tasks.task_effects(emitter, start).await {
                    Ok((_, effects)) => Ok((request_id, effects)),
                    Err(ComponentError::Invalid(invalid)) => Err(PlanError::Invalid(invalid.to_string())),
                    Err(error) => Err(error.into()),
                }
            }
            WorkflowKind::Job { tasks } => {
                let job_id = emitter.new_id(Kind::Job);
                let tasks = fill(tasks, &input).map_err(PlanError::Invalid)?;
                let created = JobCreated {
                    job_id: job_id.to_string(),
                    request_id: job_id.to_string(),
                    total_tasks: u32::try_from(tasks.len()).unwrap_or(u32::MAX),
                    tasks,
                };
                let event = seal(emitter, &job_id, created).await?;
                Ok((job_id, Effects { events: vec![event], ..Effects::default() }))
            }
            WorkflowKind::Run { .. } => {
                let run_id = emitter.new_id(Kind::Run);
                let run = new_run(emitter, run_id.clone(), workflow_type.target(), Value::Object(input))
                    .map_err(|invalid| PlanError::Invalid(invalid.to_string()))?;
                Ok((run_id, Effects { runs: vec![run], ..Effects::default() }))
            }
            WorkflowKind::Send { .. } => {
                let sent_match = workflow_type.match_of(&input).map_err(PlanError::Invalid)?;
                let sent = SentEvent {
                    tenant_id: tenant,
                    event_id: self.emitter.new_event_id(),
                    event_name: workflow_type.target().clone(),
                    data: Value::Object(input),
                    sent_match: Value::Object(sent_match),
                    source_type: "external".into(),
                    source_instance_id: None,
                    timestamp: emitter.now(),
                };
                let id = sent.event_id.clone();
                match self.sent.sent_effects(emitter, sent).await {
                    Ok(effects) => Ok((id, effects)),
                    Err(ComponentError::Invalid(invalid)) => Err(PlanError::Invalid(invalid.to_string())),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

async fn seal(
    emitter: &Emitter,
    job_id: &Name,
    created: JobCreated,
) -> Result<ledgerline_ledger::SealedEvent, PlanError> {
    let event = emitter.catalogued(job_id.as_str(), created).build_plain();
    let event: Event<Properties> = event.map_err(|invalid| PlanError::Invalid(invalid.to_string()))?;
    match emitter.seal(event).await {
        Ok(sealed) => Ok(sealed),
        Err(EmitError::Invalid(invalid)) => Err(PlanError::Invalid(invalid.to_string())),
        Err(error) => Err(error.into()),
    }
}
