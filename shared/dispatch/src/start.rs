//! What a start sends: the events and messages of each kind of workflow type.

use ledgerline_event::{Event, Kind, Name, Properties, Seconds, catalogue::JobCreated};
use ledgerline_ledger::{
    EmitError, Emitter,
    control::keys::{self, ControlKey},
};
use ledgerline_subscription::{Kind as WorkflowKind, WorkflowType, fill};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    Dispatch, DispatchError,
    claim::{Effects, Intent},
    tasks::TaskStart,
};

/// Input of a start.
pub(crate) type Input = Map<String, Value>;

/// Why a start cannot be planned.
#[derive(Debug)]
pub(crate) enum NoPlan {
    /// The start itself is at fault: it fails again until somebody mends it.
    Unfit(String),
    /// An operator has given this start up.
    Dropped,
    /// A service did not do its part.
    Trouble(DispatchError),
}

impl<E: Into<DispatchError>> From<E> for NoPlan {
    fn from(error: E) -> Self {
        Self::Trouble(error.into())
    }
}

/// Where a start comes from.
pub(crate) struct Origin<'a> {
    /// Emits in the context of the cause: tenant, `causedBy`, `via`.
    pub(crate) emitter: Emitter,
    pub(crate) drainer: &'a str,
    /// The claim, unless the type's idempotency key decides.
    pub(crate) claim: ControlKey,
    pub(crate) ttl: Option<Seconds>,
}

/// The context of what `event` leads to through `subscription`.
pub(crate) fn caused_by(emitter: &Emitter, event: &Event, subscription: &str) -> Emitter {
    emitter.handling(event).within(|origin| {
        origin.app = event.app_name.clone();
        origin.context.via.push(subscription.to_owned());
    })
}

impl Dispatch {
    /// Plans a start: its claim and what it will send, with ids that nothing else has.
    pub(crate) async fn plan(
        &self,
        origin: Origin<'_>,
        workflow_type: &WorkflowType,
        input: Input,
    ) -> Result<Intent, NoPlan> {
        let tenant = origin.emitter.origin().tenant.clone();
        let key = match workflow_type.key_of(&input).map_err(NoPlan::Unfit)? {
            None => origin.claim,
            Some(key) => keys::keyed_start_claim(&tenant, origin.drainer, &workflow_type.workflow_type, &key),
        };
        let emitter = &origin.emitter;
        let (started, effects) = match &workflow_type.kind {
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
                };
                match self.task_effects(emitter, start).await {
                    Ok((_, effects)) => (request_id, effects),
                    Err(DispatchError::Invalid(invalid)) => return Err(NoPlan::Unfit(invalid.to_string())),
                    Err(error) => return Err(error.into()),
                }
            }
            WorkflowKind::Job { tasks } => {
                let job_id = emitter.new_id(Kind::Job);
                let tasks = fill(tasks, &input).map_err(NoPlan::Unfit)?;
                let created = JobCreated {
                    job_id: job_id.to_string(),
                    request_id: job_id.to_string(),
                    total_tasks: u32::try_from(tasks.len()).unwrap_or(u32::MAX),
                    tasks,
                };
                let event = seal(emitter, "Job Created", ("JOB", &job_id), None, created).await?;
                (job_id, Effects { events: vec![event], ..Effects::default() })
            }
            WorkflowKind::Run { .. } => {
                let run_id = emitter.new_id(Kind::Run);
                let created = json!({ "correlationId": run_id, "workflowName": workflow_type.target(), "input": input });
                let event = seal(emitter, "run_created", ("RUN", &run_id), Some(&run_id), created).await?;
                (run_id, Effects { events: vec![event], ..Effects::default() })
            }
            WorkflowKind::Send { .. } => {
                let name = workflow_type.target();
                let criteria = workflow_type.match_of(&input).map_err(NoPlan::Unfit)?;
                let id = self.new_event_id();
                let sent = json!({
                    "eventName": name,
                    "data": input,
                    "matchCriteria": criteria,
                    "sourceType": "external",
                });
                let event = seal(emitter, name, ("EVENT", &id), None, sent).await?;
                (id, Effects { events: vec![event], ..Effects::default() })
            }
        };
        Ok(Intent { key, effects, started: Some(started), ttl: origin.ttl })
    }
}

async fn seal(
    emitter: &Emitter,
    event_type: &str,
    (entity_type, entity_id): (&str, &Name),
    run: Option<&Name>,
    properties: impl Serialize + Send + Sync,
) -> Result<ledgerline_ledger::SealedEvent, NoPlan> {
    let mut draft = emitter.event(event_type).entity(entity_type, entity_id.as_str());
    if let Some(run) = run {
        draft = draft.workflow_run_id(run.as_str());
    }
    let event: Event<Properties> =
        draft.properties(properties).build_plain().map_err(|invalid| NoPlan::Unfit(invalid.to_string()))?;
    match emitter.seal(event).await {
        Ok(sealed) => Ok(sealed),
        Err(EmitError::Invalid(invalid)) => Err(NoPlan::Unfit(invalid.to_string())),
        Err(error) => Err(error.into()),
    }
}
