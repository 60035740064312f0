//! What a start sends: the events and messages of each kind of workflow type.

use ledgerline_event::{Event, Kind, Name, Properties, Seconds, catalogue::JobCreated};
use ledgerline_ledger::{
    EmitError, Emitter,
    control::keys::{self, ControlKey},
};
use ledgerline_subscription::{Kind as WorkflowKind, WorkflowType, fill};
use serde_json::{Map, Value};

use crate::{
    Dispatch, DispatchError, SentEvent,
    claim::{Effects, Intent},
    runs::NewRun,
    tasks::TaskStart,
};

/// Input of a start.
pub(crate) type Input = Map<String, Value>;

/// Why a start cannot be planned.
#[derive(Debug)]
pub(crate) enum NoPlan {
    /// The start itself is at fault: it fails again in the same way.
    Unfit(String),
    /// Its workflow type is not registered.
    Unregistered(String),
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
                    has_record: false,
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
                let event = seal(emitter, &job_id, created).await?;
                (job_id, Effects { events: vec![event], ..Effects::default() })
            }
            WorkflowKind::Run { .. } => {
                let run_id = emitter.new_id(Kind::Run);
                let run = NewRun::new(emitter, run_id.clone(), workflow_type.target(), Value::Object(input))
                    .map_err(|invalid| NoPlan::Unfit(invalid.to_string()))?;
                (run_id, Effects { runs: vec![run], ..Effects::default() })
            }
            WorkflowKind::Send { .. } => {
                let criteria = workflow_type.match_of(&input).map_err(NoPlan::Unfit)?;
                let sent = SentEvent {
                    tenant_id: tenant,
                    event_id: self.new_event_id(),
                    event_name: workflow_type.target().clone(),
                    data: Value::Object(input),
                    match_criteria: Value::Object(criteria),
                    source_type: "external".into(),
                    source_instance_id: None,
                    timestamp: emitter.now(),
                };
                let id = sent.event_id.clone();
                match self.sent_effects(emitter, sent).await {
                    Ok(effects) => (id, effects),
                    Err(DispatchError::Invalid(invalid)) => return Err(NoPlan::Unfit(invalid.to_string())),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(Intent { key, effects, started: Some(started), ttl: origin.ttl })
    }
}

async fn seal(
    emitter: &Emitter,
    job_id: &Name,
    created: JobCreated,
) -> Result<ledgerline_ledger::SealedEvent, NoPlan> {
    let event = emitter.catalogued(job_id.as_str(), created).build_plain();
    let event: Event<Properties> = event.map_err(|invalid| NoPlan::Unfit(invalid.to_string()))?;
    match emitter.seal(event).await {
        Ok(sealed) => Ok(sealed),
        Err(EmitError::Invalid(invalid)) => Err(NoPlan::Unfit(invalid.to_string())),
        Err(error) => Err(error.into()),
    }
}
