//! What another system does: it ends tasks of the job, some before the job is there, and tasks that a subscription
//! started.

use fastrand::Rng;
use ledgerline_drains::NewSubscription;
use ledgerline_event::{Event, ValidEvent};
use ledgerline_ledger::Emitter;
use ledgerline_stage::Stage;
use ledgerline_subscription::WorkflowType;
use ledgerline_test_support::{admitted, event, name};
use serde_json::json;

use super::{ATTEMPTS, JOB, Plan, TENANT};

/// What the context of such an event names as its origin.
const ORIGIN: &str = "elsewhere";

pub(super) fn is_external(event: &Event) -> bool {
    event.context.origin.as_deref() == Some(ORIGIN)
}

/// Ends of tasks that another system emits.
#[derive(Default)]
pub(super) struct ExternalEnds {
    /// Those that are on the bus before the job is submitted.
    pub(super) early: Vec<ValidEvent>,
    /// The tasks of those that are emitted at any time.
    later: Vec<String>,
}

impl ExternalEnds {
    /// For some of the tasks, in some of the histories.
    pub(super) fn plan(random: &mut Rng, plan: &Plan, emitter: &Emitter) -> Self {
        let mut ends = Self::default();
        if random.u8(..3) > 0 {
            return ends;
        }
        for task in plan.natures.keys().filter(|_| random.u8(..3) == 0).collect::<Vec<_>>() {
            match random.bool() {
                true => ends.early.push(end(random, emitter, &format!("{JOB}:{task}"))),
                false => ends.later.push(format!("{JOB}:{task}")),
            }
        }
        ends
    }

    /// The next one, if its time has come.
    pub(super) fn next(&mut self, random: &mut Rng, emitter: &Emitter) -> Option<ValidEvent> {
        let task = if random.u8(..40) == 0 { self.later.pop() } else { None };
        task.map(|task| end(random, emitter, &task))
    }

    /// The end of a task that a subscription has started, if this is the event that says so.
    pub(super) fn of_start(random: &mut Rng, emitter: &Emitter, event: &Event) -> Option<ValidEvent> {
        let alone = &*event.event_type == "Task Pending" && !event.entity_id.contains(':');
        (alone && random.bool()).then(|| end(random, emitter, &event.entity_id))
    }
}

/// An end that names its job and its generation, or leaves them out.
fn end(random: &mut Rng, emitter: &Emitter, task: &str) -> ValidEvent {
    let generation = random.bool().then_some(1);
    let emitter = emitter.with_scope(|scope| {
        scope.context.origin = Some(ORIGIN.into());
        scope.context.generation = generation;
    });
    let job = task.split_once(':').map(|(job, _)| job).filter(|_| random.bool());
    let (kind, properties) = match random.u8(..4) {
        0 => (
            "Task Failed",
            json!({ "error": "no", "errorCategory": "auth", "retryCount": 1, "source": "worker" }),
        ),
        _ => ("Task Completed", json!({ "output": { "of": ORIGIN }, "durationMs": 1, "exitCode": 0 })),
    };
    let mut end = emitter.event(kind).entity("TASK", task).properties(properties).build_plain().unwrap();
    end.properties.insert("requestId".into(), task.into());
    end.properties.extend(job.map(|job| ("jobId".to_owned(), job.into())));
    admitted(end)
}

/// Has a subscription start a task beside the job. Returns the event that it starts by.
pub(super) async fn subscribe(stage: &Stage, emitter: &Emitter) -> ValidEvent {
    let tenant = name(TENANT);
    let definition = json!({ "workflowType": "alone", "kind": "task", "maxAttempts": ATTEMPTS, "createdAt": emitter.now() });
    let workflow_type: WorkflowType = serde_json::from_value(definition).unwrap();
    stage.registry().register(&tenant, &workflow_type).await.unwrap();
    let new = json!({ "eventTypeGlob": "price.*", "workflowType": "alone" });
    let new: NewSubscription = serde_json::from_value(new).unwrap();
    stage.registry().subscribe(&tenant, new).await.unwrap();
    admitted(event(TENANT, "price", emitter.now()))
}
