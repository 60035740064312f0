//! The state of a task, folded from its events in any order and with any repetition.
//!
//! A history is a join-semilattice: each event is a small history, and histories are joined. Every part of a history is
//! a least or a greatest element, so the result does not depend on the order of arrival. Only the highest generation is
//! kept: a resume opens the next generation, numbers only rise, and events of earlier generations cannot change the
//! summary. An event that names no generation belongs to the highest one that was pending by then. A later event may
//! tell which one that is, so a few events of each kind are kept apart and assigned when the summary is made.

mod event;
mod observation;

use serde::{Deserialize, Serialize};

pub use self::event::TaskEvent;
use self::observation::{Observation, TEXT_MAX, short};
use crate::{
    Event, Millis, Name, Seconds,
    catalogue::{Activity, ErrorCategory, FailureSource, MemoryUsage, TaskState, Usage},
    envelope::read_field,
    keep_least::keep_least,
};

/// The most bytes of the ids of a task's parents that a history keeps; of a longer list it keeps none.
const PARENTS_MAX: usize = 512;

/// What is known of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHistory {
    /// The same in every event of a task; if a sender contradicts itself the least value counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_id: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    depends_on: Option<Vec<String>>,
    /// The highest that an event named; 0 if none did.
    #[serde(default, skip_serializing_if = "is_zero")]
    generation: u32,
    /// What the events of that generation say.
    #[serde(default, rename = "span", skip_serializing_if = "Generation::is_empty")]
    newest: Generation,
    /// Events that name no generation, by time.
    #[serde(default, rename = "loose", skip_serializing_if = "Vec::is_empty")]
    unassigned: Vec<Observation>,
}

/// What is known of one generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Generation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_at: Option<Millis>,
    /// The first sign of work on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    active_at: Option<Millis>,
    /// The newest of each kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<Observation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_failed: Option<Observation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat: Option<Observation>,
    /// The earliest that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Observation>,
}

/// A task as the API shows it: its newest generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSummary {
    /// The task's entity id.
    pub request_id: Name,
    /// Its state.
    pub state: TaskState,
    /// The name by which a worker finds what to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The ids of its parents within the job; missing if it is in no job, or if they are too long to be kept here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// 1, 2, 3, …
    pub generation: u32,
    /// The highest attempt of this generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When it began to wait for a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_at: Option<Millis>,
    /// When the last attempt was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// Since when it is in its state.
    pub entered_at: Millis,
    /// The time of the end, else of the newest event of the last attempt.
    pub last_event_at: Millis,
    /// The type of that event.
    pub last_event_type: TaskEvent,
    /// The worker that runs it, or ran it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The process that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<u32>,
    /// When the worker's lease expires; missing while no worker holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_until: Option<Seconds>,
    /// The memory of the process group that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_usage: Option<MemoryUsage>,
    /// The last activity that the running task reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Activity>,
    /// Why it failed, or why its last attempt failed; a long text is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The category of that failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_category: Option<ErrorCategory>,
    /// How many attempts it had before it failed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
    /// The component that gave it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<FailureSource>,
    /// How long the attempt that ended it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Its usage: tokens, cents and other counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How long it was allowed to run, if it ended by a timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The event that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Name>,
}

impl TaskHistory {
    /// Adds an event. An event that is not about a task changes nothing.
    pub fn add(&mut self, event: &Event) {
        if let Some(kind) = TaskEvent::of(event) {
            self.join(&Self::of(kind, event));
        }
    }

    /// Adds what another history of the same task knows.
    pub fn join(&mut self, other: &Self) {
        keep_least(&mut self.request_id, &other.request_id);
        keep_least(&mut self.name, &other.name);
        keep_least(&mut self.job_id, &other.job_id);
        keep_least(&mut self.depends_on, &other.depends_on);
        if other.generation > self.generation {
            (self.generation, self.newest) = (other.generation, other.newest.clone());
        } else if other.generation == self.generation {
            self.newest.join(&other.newest);
        }
        for event in &other.unassigned {
            let position = self.unassigned.binary_search_by(|own| own.by_time().cmp(&event.by_time()));
            if let Err(position) = position {
                self.unassigned.insert(position, event.clone());
            }
        }
        prune_unassigned(&mut self.unassigned);
    }

    /// The task's newest state; `None` if nothing is known of it.
    pub fn summary(&self) -> Option<TaskSummary> {
        let mut newest = self.newest.clone();
        // Before the first resume there is one generation. After it, events from before the newest generation belong to
        // an earlier one, which the summary does not show.
        let from = if self.generation > 1 { newest.opened_at() } else { None };
        for event in self.unassigned.iter().filter(|event| from.is_none_or(|from| from <= event.at)) {
            newest.join(&Generation::of(event.clone()));
        }
        newest.summary(self)
    }

    /// The history of one event.
    fn of(kind: TaskEvent, event: &Event) -> Self {
        let parents = |ids: &Vec<String>| ids.iter().map(String::len).sum::<usize>() <= PARENTS_MAX;
        let (name, depends_on) = match kind {
            TaskEvent::Pending => (
                read_field(&event.properties, "name").map(|name: String| short(name, TEXT_MAX)),
                read_field(&event.properties, "dependsOn").filter(parents),
            ),
            TaskEvent::Started
            | TaskEvent::AttemptFailed
            | TaskEvent::Heartbeat
            | TaskEvent::Completed
            | TaskEvent::Failed
            | TaskEvent::TimedOut => (None, None),
        };
        let observation = Observation::of(kind, event);
        // Generations count from 1: a sender's 0 names none.
        let (generation, newest, unassigned) = match event.context.generation {
            None | Some(0) => (0, Generation::default(), vec![observation]),
            Some(generation) => (generation, Generation::of(observation), vec![]),
        };
        Self {
            request_id: Some(event.entity_id.clone()),
            name,
            job_id: read_field(&event.properties, "jobId").map(|id: String| short(id, TEXT_MAX)),
            depends_on,
            generation,
            newest,
            unassigned,
        }
    }
}

impl Generation {
    fn of(event: Observation) -> Self {
        let (at, empty) = (Some(event.at), Self::default());
        match event.kind {
            TaskEvent::Pending => Self { pending_at: at, ..empty },
            TaskEvent::Started => Self { active_at: at, started: Some(event), ..empty },
            TaskEvent::AttemptFailed => Self { active_at: at, attempt_failed: Some(event), ..empty },
            TaskEvent::Heartbeat => Self { active_at: at, heartbeat: Some(event), ..empty },
            TaskEvent::Completed | TaskEvent::Failed | TaskEvent::TimedOut => {
                Self { end: Some(event), ..empty }
            }
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn join(&mut self, other: &Self) {
        keep_least(&mut self.pending_at, &other.pending_at);
        keep_least(&mut self.active_at, &other.active_at);
        keep_newest(&mut self.started, &other.started);
        keep_newest(&mut self.attempt_failed, &other.attempt_failed);
        keep_newest(&mut self.heartbeat, &other.heartbeat);
        let earlier = |end: &Observation| self.end.as_ref().is_none_or(|own| end.by_time() < own.by_time());
        if let Some(end) = other.end.as_ref().filter(|end| earlier(end)) {
            self.end = Some(end.clone());
        }
    }

    /// The time from which events without a generation belong to this one: when it became pending, or if that event is
    /// missing, the time of the first event that named it.
    fn opened_at(&self) -> Option<Millis> {
        let first = || self.active_at.into_iter().chain(self.end.as_ref().map(|end| end.at)).min();
        self.pending_at.or_else(first)
    }

    fn summary(&self, of: &TaskHistory) -> Option<TaskSummary> {
        let working = [&self.started, &self.attempt_failed, &self.heartbeat].into_iter().flatten();
        let newest = working.max_by_key(|event| event.by_attempt());
        let pending = self.pending_at.map(|at| (at, TaskEvent::Pending));
        let last = self.end.as_ref().or(newest).map(|event| (event.at, event.kind)).or(pending);
        let (last_event_at, last_event_type) = last?;
        let state = [
            pending.map(|(_, kind)| kind),
            newest.map(|event| event.kind),
            self.end.as_ref().map(|end| end.kind),
        ]
        .into_iter()
        .flatten()
        .fold(None, |state, kind| Some(kind.after(state)))?;
        let entered_at = match state {
            TaskState::Pending => self.pending_at,
            TaskState::Processing => self.active_at,
            TaskState::Completed | TaskState::Failed => self.end.as_ref().map(|end| end.at),
        };
        // A heartbeat after the end has no meaning. While a task waits for its next attempt, its newest event is the
        // failure of the last attempt: no worker holds the task.
        let beat = self.heartbeat.as_ref().filter(|_| self.end.is_none());
        let held = newest.filter(|_| self.end.is_none());
        let alive = beat.filter(|beat| held == Some(*beat));
        let known = [self.end.as_ref(), self.attempt_failed.as_ref(), self.started.as_ref(), beat];
        let attempts = known.into_iter().flatten();
        let last_attempt = attempts.clone().filter_map(|event| event.details.attempt).max();
        let attempt =
            attempts.filter_map(|event| event.details.attempt.max(event.details.attempt_number)).max();
        let started = self.started.as_ref();
        let of_last =
            |event: &&Observation| event.details.attempt.is_none() || event.details.attempt >= last_attempt;
        let worker = [held, self.end.as_ref(), started, self.attempt_failed.as_ref(), beat];
        let failure = self.end.as_ref().or(self.attempt_failed.as_ref()).map(|event| &event.details);
        let end = self.end.as_ref().map(|end| &end.details);
        Some(TaskSummary {
            request_id: of.request_id.clone()?,
            state,
            name: of.name.clone(),
            job_id: of.job_id.clone(),
            depends_on: of.depends_on.clone(),
            generation: of.generation.max(1),
            attempt,
            pending_at: self.pending_at,
            started_at: started.filter(of_last).map(|event| event.at),
            ended_at: self.end.as_ref().map(|end| end.at),
            entered_at: entered_at?,
            last_event_at,
            last_event_type,
            worker_id: worker.into_iter().flatten().find_map(|event| event.details.worker_id.clone()),
            process_id: held.and_then(|event| event.details.process_id),
            effective_until: held.and_then(|event| event.details.effective_until),
            memory_usage: alive.and_then(|event| event.details.memory_usage),
            last_activity: alive.and_then(|event| event.details.last_activity.clone()),
            error: failure.and_then(|details| details.error.clone()),
            error_category: failure.and_then(|details| details.error_category),
            retry_count: end.and_then(|details| details.retry_count),
            source: end.and_then(|details| details.source),
            duration_ms: end.and_then(|details| details.duration_ms),
            usage: end.and_then(|details| details.usage.clone()),
            timeout_ms: end.and_then(|details| details.timeout_ms),
            ended_by: self.end.as_ref().map(|end| end.id.clone()),
        })
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Keeps the newer of two events, in the order of attempts.
fn keep_newest(own: &mut Option<Observation>, other: &Option<Observation>) {
    let newer = |event: &&Observation| own.as_ref().is_none_or(|own| event.by_attempt() > own.by_attempt());
    if let Some(event) = other.as_ref().filter(newer) {
        *own = Some(event.clone());
    }
}

/// Keeps the earliest event of each kind, which counts before any resume, and the latest few, which count after one.
/// Both depend on the set of events only, never on their order.
fn prune_unassigned(unassigned: &mut Vec<Observation>) {
    let class = |kind: TaskEvent| if kind.is_end() { TaskEvent::Completed } else { kind };
    let mut left = [0_usize; TaskEvent::ALL.len()];
    for event in unassigned.iter() {
        left[class(event.kind) as usize] += 1;
    }
    let mut found = [false; TaskEvent::ALL.len()];
    unassigned.retain(|event| {
        let class = class(event.kind);
        let first = !std::mem::replace(&mut found[class as usize], true);
        let newer = left[class as usize];
        left[class as usize] -= 1;
        first || newer <= latest_kept(class)
    });
}

/// How many of the latest unassigned events of a kind are kept. Starts give the time since which a generation is worked
/// on, over several attempts; ends may contradict each other; of the other kinds the newest is enough.
const fn latest_kept(kind: TaskEvent) -> usize {
    match kind {
        TaskEvent::Started => 4,
        TaskEvent::Completed | TaskEvent::Failed | TaskEvent::TimedOut => 2,
        TaskEvent::Pending | TaskEvent::AttemptFailed | TaskEvent::Heartbeat => 1,
    }
}

#[cfg(test)]
mod tests;
