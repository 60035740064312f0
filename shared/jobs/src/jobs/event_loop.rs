//! What the drainer `jobs` does with a page of events: it folds task events into the rows of tasks, and then drives jobs:
//! each job's events in their order, different jobs concurrently.

use std::collections::BTreeMap;

use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{Event, Name, overflow};
use ledgerline_ledger::{EmitError, Emitter, Timeline, TimelineEvent};
use ledgerline_store::{Fault, JobRecords};
use serde_json::json;
use tokio::time::Instant;

use super::{EndListener, JobInputs, Jobs, on_task_ended::job_and_task_of};
use crate::Tasks;
use ledgerline_outbox::{About, ComponentError, Notice, Outbox};

/// The drainer that drives jobs.
const DRAINER: &str = "jobs";
/// Jobs that are driven at the same time.
const LANES: usize = 8;
/// Task events that are folded at once, before they drive their jobs: an event of a job lists the states of its tasks.
const FOLDED_AT_ONCE: usize = 200;

/// What the drainer `jobs` does with events.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct JobDriver {
    pub emitter: Emitter,
    pub timeline: Timeline,
    pub records: JobRecords,
    pub inputs: JobInputs,
    pub tasks: Tasks,
    pub outbox: Outbox,
    pub notify: EndListener,
}

/// How far a page was handled.
#[derive(Debug)]
pub struct Handled {
    /// The length of the finished prefix.
    pub finished: usize,
    /// Why the rest was not handled.
    pub stop: Option<Stop>,
}

/// Why handling a page stopped.
#[derive(Debug)]
pub enum Stop {
    /// The deadline has passed.
    OutOfTime,
    /// A request to a service failed.
    Trouble(ComponentError),
}

/// What an event does to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    TaskEnded,
    JobCreated,
    TasksAdded,
    JobResumed,
}

fn meaning(event: &Event) -> Option<Meaning> {
    match (event.entity_type.as_str(), event.event_type.as_str()) {
        ("TASK", "Task Completed" | "Task Failed" | "Task Timeout") => Some(Meaning::TaskEnded),
        ("JOB", "Job Created") => Some(Meaning::JobCreated),
        ("JOB", "Job Tasks Added") => Some(Meaning::TasksAdded),
        ("JOB", "Job Resumed") => Some(Meaning::JobResumed),
        // Other task events are only folded; other job events follow from what the drainer did, and need no handling.
        _ => None,
    }
}

/// Why a retry can never succeed; `None` if it may.
fn refusal(error: &ComponentError) -> Option<String> {
    match error {
        ComponentError::Invalid(invalid) | ComponentError::Emit(EmitError::Invalid(invalid)) => {
            Some(invalid.to_string())
        }
        ComponentError::Store(error) if error.fault == Fault::Rejected => Some(error.to_string()),
        _ => None,
    }
}

/// The job of an event, or the task if it is of no job: the events of one of these are handled in their order.
fn job_of(event: &Event) -> Name {
    job_and_task_of(event).map_or_else(|| event.entity_id.clone(), |(job_id, _)| job_id)
}

impl JobDriver {
    /// Drives `jobs`, and passes ends to `notify`.
    pub fn new(jobs: Jobs, emitter: Emitter, timeline: Timeline, notify: EndListener) -> Self {
        let Jobs { records, inputs, tasks, outbox } = jobs;
        Self { emitter, timeline, records, inputs, tasks, outbox, notify }
    }

    /// Handles `places`, which are in order, except those for which `finished_before` returns `true`.
    pub async fn drive(
        &self,
        tenant: &Name,
        places: &[TimelineEvent],
        finished_before: impl Fn(&str) -> bool,
        deadline: Option<Instant>,
    ) -> Handled {
        let fresh: Vec<(usize, &TimelineEvent)> =
            places.iter().enumerate().filter(|(_, place)| !finished_before(&place.sk)).collect();
        for some in fresh.chunks(FOLDED_AT_ONCE) {
            let Some((first, _)) = some.first() else { continue };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Handled { finished: *first, stop: Some(Stop::OutOfTime) };
            }
            let tasks = some.iter().map(|(_, place)| &place.event);
            let tasks = tasks.filter(|event| event.entity_type.as_str() == "TASK");
            if let Err(error) = Box::pin(self.tasks.fold_tasks(tenant, tasks)).await {
                return Handled { finished: *first, stop: Some(Stop::Trouble(error)) };
            }
            let mut lanes: BTreeMap<Name, Vec<(usize, Meaning, &TimelineEvent)>> = BTreeMap::new();
            for (index, place) in some {
                if let Some(meaning) = meaning(&place.event) {
                    lanes.entry(job_of(&place.event)).or_default().push((*index, meaning, place));
                }
            }
            let lanes: Vec<_> =
                lanes.into_iter().map(|(job_id, events)| self.drive_lane(job_id, events).boxed()).collect();
            let stops: Vec<_> = stream::iter(lanes).buffer_unordered(LANES).collect().await;
            // Every lane went on to its end or to its own stop: everything before the first stop is finished.
            if let Some((index, error)) = stops.into_iter().flatten().min_by_key(|(index, _)| *index) {
                return Handled { finished: index, stop: Some(Stop::Trouble(error)) };
            }
        }
        Handled { finished: places.len(), stop: None }
    }

    /// Handles the events of one job. Returns where it stopped and why, if it did.
    async fn drive_lane(
        &self,
        job_id: Name,
        events: Vec<(usize, Meaning, &TimelineEvent)>,
    ) -> Option<(usize, ComponentError)> {
        for run in events.chunk_by(|(_, one, _), (_, other, _)| *one == Meaning::TaskEnded && one == other) {
            let [(index, meaning, place), ..] = run else { continue };
            let done = match meaning {
                Meaning::TaskEnded => {
                    let places: Vec<&TimelineEvent> = run.iter().map(|(_, _, place)| *place).collect();
                    Box::pin(self.handle_ends(&job_id, &places)).await
                }
                Meaning::JobCreated | Meaning::TasksAdded | Meaning::JobResumed => {
                    let done = Box::pin(self.changed(*meaning, place)).await;
                    Box::pin(self.notify_if_refused(done, place)).await
                }
            };
            if let Err(error) = done {
                return Some((*index, error));
            }
        }
        None
    }

    /// Handles ends of one job's tasks, all together. If that is refused, it handles each alone, so that one refused end
    /// does not keep the others from being handled. Every action is idempotent, so repeating is safe.
    async fn handle_ends(&self, job_id: &Name, places: &[&TimelineEvent]) -> Result<(), ComponentError> {
        match Box::pin(self.tasks_ended(job_id, places)).await {
            Err(error) if places.len() > 1 && refusal(&error).is_some() => {}
            done => {
                let Some(place) = places.first() else { return done };
                return Box::pin(self.notify_if_refused(done, place)).await;
            }
        }
        for place in places {
            let done = Box::pin(self.tasks_ended(job_id, &[place])).await;
            Box::pin(self.notify_if_refused(done, place)).await?;
        }
        Ok(())
    }

    /// Notifies operators of an event that can never be handled, and passes on any other error: such an event must not hold
    /// up the others.
    async fn notify_if_refused(
        &self,
        done: Result<(), ComponentError>,
        place: &TimelineEvent,
    ) -> Result<(), ComponentError> {
        let Err(error) = done else { return Ok(()) };
        match refusal(&error) {
            Some(reason) => Box::pin(self.notify_refused(place, &reason)).await,
            None => Err(error),
        }
    }

    /// Adds tasks to a job by an event that came before the job.
    pub async fn handle_early_addition(&self, place: &TimelineEvent) -> Result<(), ComponentError> {
        let done = Box::pin(self.changed(Meaning::TasksAdded, place)).await;
        self.notify_if_refused(done, place).await
    }

    async fn changed(&self, meaning: Meaning, place: &TimelineEvent) -> Result<(), ComponentError> {
        let mut event = place.event.clone();
        self.timeline.restore(&mut event).await?;
        if let Some(reason) = overflow::missing(&event.properties) {
            return Err(ledgerline_event::Invalid::new("properties", reason).into());
        }
        match meaning {
            Meaning::JobCreated => Box::pin(self.job_created(&event)).await,
            Meaning::TasksAdded => Box::pin(self.tasks_added(&event)).await,
            Meaning::JobResumed => Box::pin(self.job_resumed(&event)).await,
            Meaning::TaskEnded => Ok(()),
        }
    }

    /// Emits that an event was refused, and alerts operators.
    async fn notify_refused(&self, place: &TimelineEvent, reason: &str) -> Result<(), ComponentError> {
        let event = &place.event;
        tracing::error!(event_id = %event.event_id, job = %event.entity_id, reason, "a job event was refused");
        let about = About { drainer: DRAINER, epoch: 0, subscription: "", event, sk: &place.sk };
        self.outbox.notify(Notice::Failed, about, json!({ "reason": reason })).await?;
        let text = format!(
            ":warning: *An event about a job was refused*\n*Event* {} {} ({}/{})\n*Tenant* {}\n{reason}",
            event.event_type, event.event_id, event.entity_type, event.entity_id, event.tenant_id,
        );
        // The lease is held: a sweep sends the alert.
        self.outbox.alert(Notice::Failed, about, text).await?;
        Ok(())
    }
}
