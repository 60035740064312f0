//! What a start sends: the events and messages of each kind of workflow type.

use ledgerline_event::{
    Event, Kind, Name, Properties, Seconds,
    catalogue::{JobCreated, TaskPending},
};
use ledgerline_ledger::{
    EmitError, Emitter,
    control::keys::{self, ControlKey},
};
use ledgerline_subscription::{Kind as WorkflowKind, WorkflowType, fill};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    Dispatch, DispatchError, Queue,
    claim::{Effects, Intent, Message},
};

/// Larger inputs travel by reference: an SQS message has 1 MiB, and a claim holds it too.
const MAX_INPUT_BYTES: usize = 200_000;
/// The first generation of a task; a resume opens the next.
const FIRST_GENERATION: u32 = 1;

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
                let name = workflow_type.target();
                let pending = TaskPending {
                    request_id: request_id.to_string(),
                    job_id: None,
                    name: name.to_string(),
                    depends_on: None,
                };
                let event = seal(emitter, "Task Pending", ("TASK", &request_id), None, pending).await?;
                let mut body = json!({
                    "tenantId": tenant,
                    "appName": emitter.origin().app,
                    "requestId": request_id,
                    "name": name,
                    "generation": FIRST_GENERATION,
                    "context": emitter.origin().context,
                });
                for (field, value) in
                    [("timeoutMs", *timeout_ms), ("maxAttempts", max_attempts.map(u64::from))]
                {
                    if let Some(value) = value {
                        body[field] = json!(value);
                    }
                }
                self.put_input(&mut body, &request_id, input).await?;
                let body = sendable(&body);
                let message = Message { queue: Queue::Tasks, group: group(&tenant), body };
                (request_id, Effects { events: vec![event], messages: vec![message], alert: None })
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

    /// The input itself, or where it lies.
    async fn put_input(&self, body: &mut Value, request_id: &Name, input: Input) -> Result<(), NoPlan> {
        let json = serde_json::to_vec(&input).map_err(|error| NoPlan::Unfit(error.to_string()))?;
        if json.len() <= MAX_INPUT_BYTES {
            body["input"] = Value::Object(input);
            return Ok(());
        }
        let key = format!("tasks/{request_id}-input.json");
        self.payloads.put(&key, json).await?;
        body["inputRef"] = json!({ "bucket": self.payloads.bucket(), "key": key });
        Ok(())
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

/// JSON as a queue takes it: two characters have to be escaped there.
fn sendable(body: &Value) -> String {
    body.to_string().replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

/// What queues are fair between. SQS takes only some characters there.
fn group(tenant: &str) -> String {
    match tenant.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => tenant.to_owned(),
        false => crate::parked::digest(&[tenant]),
    }
}
