//! Waits of a run: what each waits for, and how it ended.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::change::{Lifecycle, WaitChange};
use crate::{LogEvent, Millis, Name, RunEntity, envelope::read_field};

states! {
    /// The state of a wait.
    WaitState {
        open {
            Waiting "waiting" "It waits.",
        }
        terminal {
            Completed "completed" "It is over.",
        }
    }
}

impl Lifecycle for WaitState {
    type Change = WaitChange;
    const ENTITY: RunEntity = RunEntity::Wait;
    const STATES: &'static [Self] = Self::ALL;

    fn after(before: Option<Self>, change: WaitChange) -> Option<Self> {
        use WaitChange as To;
        match (before, change) {
            (None, To::Created) => Some(Self::Waiting),
            (Some(Self::Waiting), To::Completed) => Some(Self::Completed),
            (None, To::Completed) => None,
            (Some(Self::Waiting), To::Created) => None,
            (Some(Self::Completed), To::Created | To::Completed) => None,
        }
    }

    fn text(self) -> &'static str {
        self.as_str()
    }

    fn is_final(self) -> bool {
        self.is_terminal()
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitOutcome {
    /// The sleep is over.
    Elapsed,
    /// An event completed it.
    Event,
    /// Its timeout passed.
    Timeout,
    /// The task or job ended.
    Ended,
    /// The run no longer waits for it.
    Abandoned,
}

impl WaitOutcome {
    /// Every outcome.
    pub const ALL: &'static [Self] =
        &[Self::Elapsed, Self::Event, Self::Timeout, Self::Ended, Self::Abandoned];

    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Elapsed => "elapsed",
            Self::Event => "event",
            Self::Timeout => "timeout",
            Self::Ended => "ended",
            Self::Abandoned => "abandoned",
        }
    }

    /// Reads an outcome as [`as_str`](Self::as_str) writes it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|outcome| outcome.as_str() == text)
    }
}

/// What a wait waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum WaitFor {
    /// A time.
    Sleep {
        /// When the sleep is over.
        resume_at: Millis,
    },
    /// A sent event.
    Event {
        /// Its name.
        event_name: Name,
        /// Its match contains this object.
        match_criteria: Value,
        /// When a timer ends the wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<Millis>,
        /// The wait ignores events that were sent before this time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Millis>,
    },
    /// The end of a task.
    Task {
        /// Its request id.
        task: Name,
        /// When a timer ends the wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<Millis>,
    },
    /// The end of a job.
    Job {
        /// Its id.
        job: Name,
        /// When a timer ends the wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<Millis>,
    },
    /// A wait that this version cannot read; it ends when a runner appends `wait_completed`.
    Unknown,
}

impl WaitFor {
    /// Reads the `eventData` of a `wait_created`.
    pub fn of(data: &Map<String, Value>) -> Self {
        let timeout_at = read_field(data, "timeoutAt");
        if let Some(resume_at) = read_field(data, "resumeAt") {
            return Self::Sleep { resume_at };
        }
        if let Some(event_name) = read_field(data, "eventName") {
            let criteria = data.get("matchCriteria").filter(|criteria| !criteria.is_null());
            let match_criteria = criteria.cloned().unwrap_or_else(|| Value::Object(Map::new()));
            return Self::Event { event_name, match_criteria, timeout_at, since: read_field(data, "since") };
        }
        if let Some(task) = read_field(data, "task") {
            return Self::Task { task, timeout_at };
        }
        match read_field(data, "job") {
            Some(job) => Self::Job { job, timeout_at },
            None => Self::Unknown,
        }
    }

    /// When a timer ends it: the end of a sleep, or a timeout.
    pub const fn due(&self) -> Option<Millis> {
        match self {
            Self::Sleep { resume_at } => Some(*resume_at),
            Self::Event { timeout_at, .. } | Self::Task { timeout_at, .. } | Self::Job { timeout_at, .. } => {
                *timeout_at
            }
            Self::Unknown => None,
        }
    }
}

/// A sleep, or a wait for an event, a task or a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// Its id.
    pub wait_id: Name,
    /// Its state.
    pub state: WaitState,
    /// What it waits for.
    #[serde(flatten)]
    pub target: WaitFor,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<WaitOutcome>,
    /// The event that completed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Name>,
    /// The abandoned wait that had received this event unread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_over_from: Option<Name>,
    /// When it was created.
    pub created_at: Millis,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Millis>,
}

impl Wait {
    pub(super) fn created(event: &LogEvent) -> Self {
        Self {
            wait_id: event.correlation_id.clone(),
            state: WaitState::Waiting,
            target: WaitFor::of(&event.event_data),
            outcome: None,
            event_id: None,
            handed_over_from: None,
            created_at: event.timestamp,
            completed_at: None,
        }
    }

    pub(super) fn apply(&mut self, change: WaitChange, state: WaitState, event: &LogEvent) {
        self.state = state;
        match change {
            // `Wait::created` handles it: this wait exists.
            WaitChange::Created => {}
            WaitChange::Completed => {
                // Programs that drive external runs and know only sleeps give no outcome.
                self.outcome = read_field(&event.event_data, "outcome").or(Some(WaitOutcome::Elapsed));
                self.event_id = read_field(&event.event_data, "eventId");
                self.handed_over_from = read_field(&event.event_data, "handedOverFrom");
                self.completed_at = Some(event.timestamp);
            }
        }
    }
}
