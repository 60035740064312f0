//! Where a task stands, folded from its events whatever order they arrive in, and however often.
//!
//! A history is a join-semilattice: each event is a small history, and histories are joined.
//! Every part of it is a least or a greatest of something, so arrival order cannot show. Of the
//! generations only the highest is kept: a resume opens the next, numbers only rise, and nothing
//! before the last one can change what a summary says. Events that name no generation belong to
//! the highest one that was pending by then; which one that is may be known only later, so a few of
//! each kind are kept apart and are given their place when the summary is made.

mod seen;

use serde::{Deserialize, Serialize};

pub use self::seen::TaskEvent;
use self::seen::{Seen, TEXT_MAX, short};
use crate::{
    Event, Millis, Name, Seconds,
    catalogue::{Activity, ErrorCategory, FailureSource, MemoryUsage, TaskState, Usage},
    fold::{least, read},
};

/// The most that the ids of a task's parents may take, in bytes; a longer list is left to the job.
const PARENTS_MAX: usize = 512;

/// What is known of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHistory {
    /// The same in every event of a task; a sender that contradicts itself is held to the least.
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
    /// What its events say.
    #[serde(default, skip_serializing_if = "Span::is_empty")]
    span: Span,
    /// Events that name no generation, by time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    loose: Vec<Seen>,
}

/// One generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Span {
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_at: Option<Millis>,
    /// The first sign of work on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    active_at: Option<Millis>,
    /// The newest of each kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<Seen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_failed: Option<Seen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat: Option<Seen>,
    /// The earliest that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Seen>,
}

/// A task as people and programs are shown it: its last generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSummary {
    /// The task's entity id.
    pub request_id: Name,
    /// Where it stands.
    pub state: TaskState,
    /// What a worker is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// Bare task ids; missing if it is in no job, or if they are too many to be kept here.
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
    /// When something last happened: the end, else the newest event of the last attempt.
    pub last_event_at: Millis,
    /// What that was.
    pub last_event_type: TaskEvent,
    /// Who runs it, or ran it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The process that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<u32>,
    /// When the worker's lease expires; missing while no worker holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_until: Option<Seconds>,
    /// Of the process group that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_usage: Option<MemoryUsage>,
    /// What the running task last said of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Activity>,
    /// Why it failed, or why its last attempt did; cut short if it is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What kind of failure that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_category: Option<ErrorCategory>,
    /// How many attempts there were before it failed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
    /// Who gave up on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<FailureSource>,
    /// How long the attempt that ended it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// What it consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How long it was allowed to run, if that is what ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The event that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Name>,
}

impl TaskHistory {
    /// Takes in one event of the task; one that is about something else changes nothing.
    pub fn add(&mut self, event: &Event) {
        if let Some(kind) = TaskEvent::of(event) {
            self.join(&Self::of(kind, event));
        }
    }

    /// Takes in what another history of the same task knows.
    pub fn join(&mut self, other: &Self) {
        least(&mut self.request_id, &other.request_id);
        least(&mut self.name, &other.name);
        least(&mut self.job_id, &other.job_id);
        least(&mut self.depends_on, &other.depends_on);
        if other.generation > self.generation {
            (self.generation, self.span) = (other.generation, other.span.clone());
        } else if other.generation == self.generation {
            self.span.join(&other.span);
        }
        for seen in &other.loose {
            if let Err(place) = self.loose.binary_search_by(|own| own.by_time().cmp(&seen.by_time())) {
                self.loose.insert(place, seen.clone());
            }
        }
        keep_ends_of_each_kind(&mut self.loose);
    }

    /// The task as it stands; `None` if nothing is known of it.
    pub fn summary(&self) -> Option<TaskSummary> {
        let mut span = self.span.clone();
        // Before the first resume there is nothing else that an event could belong to. After it,
        // what is older than the last generation belongs to one that no longer matters.
        let from = if self.generation > 1 { self.span.opened_at() } else { None };
        for seen in self.loose.iter().filter(|seen| from.is_none_or(|from| from <= seen.at)) {
            span.join(&Span::of(seen.clone()));
        }
        span.summary(self)
    }

    /// The history of one event.
    fn of(kind: TaskEvent, event: &Event) -> Self {
        let parents = |ids: &Vec<String>| ids.iter().map(String::len).sum::<usize>() <= PARENTS_MAX;
        let (name, depends_on) = match kind {
            TaskEvent::Pending => (
                read(&event.properties, "name").map(|name: String| short(name, TEXT_MAX)),
                read(&event.properties, "dependsOn").filter(parents),
            ),
            TaskEvent::Started
            | TaskEvent::AttemptFailed
            | TaskEvent::Heartbeat
            | TaskEvent::Completed
            | TaskEvent::Failed
            | TaskEvent::TimedOut => (None, None),
        };
        let seen = Seen::of(kind, event);
        // Generations count from 1: a sender's 0 names none.
        let (generation, span, loose) = match event.context.generation {
            None | Some(0) => (0, Span::default(), vec![seen]),
            Some(generation) => (generation, Span::of(seen), vec![]),
        };
        Self {
            request_id: Some(event.entity_id.clone()),
            name,
            job_id: read(&event.properties, "jobId").map(|id: String| short(id, TEXT_MAX)),
            depends_on,
            generation,
            span,
            loose,
        }
    }
}

impl Span {
    fn of(seen: Seen) -> Self {
        let (at, empty) = (Some(seen.at), Self::default());
        match seen.kind {
            TaskEvent::Pending => Self { pending_at: at, ..empty },
            TaskEvent::Started => Self { active_at: at, started: Some(seen), ..empty },
            TaskEvent::AttemptFailed => Self { active_at: at, attempt_failed: Some(seen), ..empty },
            TaskEvent::Heartbeat => Self { active_at: at, heartbeat: Some(seen), ..empty },
            TaskEvent::Completed | TaskEvent::Failed | TaskEvent::TimedOut => {
                Self { end: Some(seen), ..empty }
            }
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn join(&mut self, other: &Self) {
        least(&mut self.pending_at, &other.pending_at);
        least(&mut self.active_at, &other.active_at);
        newest(&mut self.started, &other.started);
        newest(&mut self.attempt_failed, &other.attempt_failed);
        newest(&mut self.heartbeat, &other.heartbeat);
        let earlier = |end: &Seen| self.end.as_ref().is_none_or(|own| end.by_time() < own.by_time());
        if let Some(end) = other.end.as_ref().filter(|end| earlier(end)) {
            self.end = Some(end.clone());
        }
    }

    /// From when on events without a generation are of this one: since it was pending, or if that
    /// event is missing, since the first that named it.
    fn opened_at(&self) -> Option<Millis> {
        let first = || self.active_at.into_iter().chain(self.end.as_ref().map(|end| end.at)).min();
        self.pending_at.or_else(first)
    }

    fn summary(&self, of: &TaskHistory) -> Option<TaskSummary> {
        let working = [&self.started, &self.attempt_failed, &self.heartbeat].into_iter().flatten();
        let newest = working.max_by_key(|seen| seen.by_attempt());
        let pending = self.pending_at.map(|at| (at, TaskEvent::Pending));
        let last = self.end.as_ref().or(newest).map(|seen| (seen.at, seen.kind)).or(pending);
        let (last_event_at, last_event_type) = last?;
        let state = [
            pending.map(|(_, kind)| kind),
            newest.map(|seen| seen.kind),
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
        // A heartbeat says nothing about a task that has ended. If a task waits for its next attempt, its
        // newest event is the failure of the last attempt: no worker holds the task.
        let beat = self.heartbeat.as_ref().filter(|_| self.end.is_none());
        let held = newest.filter(|_| self.end.is_none());
        let alive = beat.filter(|beat| held == Some(*beat));
        let known = [self.end.as_ref(), self.attempt_failed.as_ref(), self.started.as_ref(), beat];
        let attempts = known.into_iter().flatten();
        let last_attempt = attempts.clone().filter_map(|seen| seen.details.attempt).max();
        let attempt = attempts.filter_map(|seen| seen.details.attempt.max(seen.details.attempt_number)).max();
        let started = self.started.as_ref();
        let of_last = |seen: &&Seen| seen.details.attempt.is_none() || seen.details.attempt >= last_attempt;
        let worker = [held, self.end.as_ref(), started, self.attempt_failed.as_ref(), beat];
        let failure = self.end.as_ref().or(self.attempt_failed.as_ref()).map(|seen| &seen.details);
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
            started_at: started.filter(of_last).map(|seen| seen.at),
            ended_at: self.end.as_ref().map(|end| end.at),
            entered_at: entered_at?,
            last_event_at,
            last_event_type,
            worker_id: worker.into_iter().flatten().find_map(|seen| seen.details.worker_id.clone()),
            process_id: held.and_then(|seen| seen.details.process_id),
            effective_until: held.and_then(|seen| seen.details.effective_until),
            memory_usage: alive.and_then(|seen| seen.details.memory_usage),
            last_activity: alive.and_then(|seen| seen.details.last_activity.clone()),
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

fn newest(own: &mut Option<Seen>, other: &Option<Seen>) {
    let newer = |seen: &&Seen| own.as_ref().is_none_or(|own| seen.by_attempt() > own.by_attempt());
    if let Some(seen) = other.as_ref().filter(newer) {
        *own = Some(seen.clone());
    }
}

/// Keeps the earliest of each kind, which is what counts before any resume, and the latest few, which
/// are what counts after one. Both depend on the set of events only, never on their order.
fn keep_ends_of_each_kind(loose: &mut Vec<Seen>) {
    let class = |kind: TaskEvent| if kind.is_end() { TaskEvent::Completed } else { kind };
    let mut left = [0_usize; TaskEvent::ALL.len()];
    for seen in loose.iter() {
        left[class(seen.kind) as usize] += 1;
    }
    let mut met = [false; TaskEvent::ALL.len()];
    loose.retain(|seen| {
        let class = class(seen.kind);
        let first = !std::mem::replace(&mut met[class as usize], true);
        let newer = left[class as usize];
        left[class as usize] -= 1;
        first || newer <= latest_kept(class)
    });
}

/// How many of the latest loose events are kept. Starts tell since when a generation is worked on,
/// through several attempts; ends may contradict each other; of the rest the newest is enough.
const fn latest_kept(kind: TaskEvent) -> usize {
    match kind {
        TaskEvent::Started => 4,
        TaskEvent::Completed | TaskEvent::Failed | TaskEvent::TimedOut => 2,
        TaskEvent::Pending | TaskEvent::AttemptFailed | TaskEvent::Heartbeat => 1,
    }
}

#[cfg(test)]
mod tests;
