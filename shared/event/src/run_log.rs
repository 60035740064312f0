//! The events of a run's log, from which the run is replayed. Each is also emitted to the ledger.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Kind, Millis, Name};

/// The entity of a run that an event of its log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunEntity {
    /// The run itself.
    Run,
    /// One invocation of a step.
    Step,
    /// A point that receives data from outside.
    Hook,
    /// A sleep, or a wait for an event, a task or a job.
    Wait,
}

impl RunEntity {
    /// The entity type of its events in the ledger.
    pub const fn entity_type(self) -> &'static str {
        match self {
            Self::Run => "RUN",
            Self::Step => "STEP",
            Self::Hook => "HOOK",
            Self::Wait => "WAIT",
        }
    }

    /// The kind of its ids.
    pub const fn id_kind(self) -> Kind {
        match self {
            Self::Run => Kind::Run,
            Self::Step => Kind::Step,
            Self::Hook => Kind::Hook,
            Self::Wait => Kind::Wait,
        }
    }
}

macro_rules! event_types {
    ($($name:ident $text:literal $entity:ident $doc:literal,)*) => {
        /// The types of events in a log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum RunEventType { $(#[doc = $doc] $name,)* }

        impl RunEventType {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// As it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The entity that such an event is about.
            pub const fn entity(self) -> RunEntity {
                match self { $(Self::$name => RunEntity::$entity,)* }
            }
        }
    };
}

event_types! {
    RunCreated "run_created" Run "The run was created; no runner has started it.",
    RunStarted "run_started" Run "A runner has started the run.",
    RunCompleted "run_completed" Run "The run ended with an output.",
    RunFailed "run_failed" Run "The run ended with an error.",
    RunCancelled "run_cancelled" Run "A cancel request ended the run.",
    StepCreated "step_created" Step "The run asked for a step.",
    StepStarted "step_started" Step "An attempt at the step began.",
    StepCompleted "step_completed" Step "The step has a result and never runs again.",
    StepFailed "step_failed" Step "The step failed and is not retried.",
    StepRetrying "step_retrying" Step "An attempt failed and another follows.",
    HookCreated "hook_created" Hook "The hook takes payloads.",
    HookConflict "hook_conflict" Hook "Another hook has its token.",
    HookReceived "hook_received" Hook "The hook received a payload.",
    HookDisposed "hook_disposed" Hook "The hook takes no more payloads.",
    WaitCreated "wait_created" Wait "The run waits for a time, an event, or the end of a task or a job.",
    WaitCompleted "wait_completed" Wait "The wait is over.",
}

impl RunEventType {
    /// Reads a type as [`as_str`](Self::as_str) writes it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }
}

impl std::fmt::Display for RunEventType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One event of a log. It never changes once it is appended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogEvent {
    /// Its id, the same in the log and in the ledger.
    pub event_id: Name,
    /// Its type.
    pub event_type: RunEventType,
    /// The id of the entity that it is about.
    pub correlation_id: Name,
    /// Its time; never before the time of the event that precedes it in the log.
    pub timestamp: Millis,
    /// The details.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub event_data: Map<String, Value>,
}

impl LogEvent {
    /// Whether it registers a wait for a sent event, and not for a time, a task or a job.
    pub fn waits_for_event(&self) -> bool {
        self.event_type == RunEventType::WaitCreated && self.event_data.contains_key("eventName")
    }
}

/// An event that is to be appended: it has no id and no time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogDraft {
    /// Its type.
    pub event_type: RunEventType,
    /// The id of the entity that it is about.
    pub correlation_id: Name,
    /// The details.
    pub event_data: Map<String, Value>,
}

impl LogDraft {
    /// The event, with its id and its time.
    pub fn at(self, event_id: Name, timestamp: Millis) -> LogEvent {
        let Self { event_type, correlation_id, event_data } = self;
        LogEvent { event_id, event_type, correlation_id, timestamp, event_data }
    }
}
