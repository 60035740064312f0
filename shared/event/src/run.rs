//! The states of a run and of its steps, hooks and waits, folded from the run's log.
//!
//! Unlike the events of a task, the events of a log have one order, which is fixed when they are appended. So the fold is
//! strict: a `match` over every pair of state and event gives the next state of each entity, and an illegal pair is an
//! error. Details that cannot be read are missing, and the event still counts; [`read_draft`] checks the details before
//! they are appended.

/// The states of one kind of entity: the open ones, and the terminal ones, which no state can follow.
macro_rules! states {
    (
        $(#[$doc:meta])* $name:ident {
            open { $($open:ident $open_text:literal $open_about:literal,)* }
            terminal { $($terminal:ident $terminal_text:literal $terminal_about:literal,)* }
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { $(#[doc = $open_about] $open,)* $(#[doc = $terminal_about] $terminal,)* }

        impl $name {
            /// Every state.
            pub const ALL: &'static [Self] = &[$(Self::$open,)* $(Self::$terminal,)*];

            /// As it is written.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$open => $open_text,)*
                    $(Self::$terminal => $terminal_text,)*
                }
            }

            /// Whether no state can follow.
            pub const fn is_terminal(self) -> bool {
                match self {
                    $(Self::$open => false,)*
                    $(Self::$terminal => true,)*
                }
            }

            /// Reads a state as [`as_str`](Self::as_str) writes it.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|state| state.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

mod change;
mod draft;
mod history;
mod hook;
mod illegal_event;
mod step;
mod view;
mod wait;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use self::change::{Lifecycle, RunChange};
pub use self::{
    draft::read_draft,
    history::{InOrder, RunHistory},
    hook::{Hook, HookState},
    illegal_event::Illegal,
    step::{Step, StepState},
    view::{EntityView, RunView},
    wait::{Wait, WaitFor, WaitOutcome, WaitState},
};
use crate::{LogEvent, Millis, Name, RunEntity, envelope::read_field};

states! {
    /// The state of a run.
    RunState {
        open {
            Pending "pending" "It was created, and no runner has started it.",
            Running "running" "A runner has started it.",
        }
        terminal {
            Completed "completed" "It ended with an output.",
            Failed "failed" "It ended with an error.",
            Cancelled "cancelled" "A cancel request ended it.",
        }
    }
}

impl Lifecycle for RunState {
    type Change = RunChange;
    const ENTITY: RunEntity = RunEntity::Run;
    const STATES: &'static [Self] = Self::ALL;

    fn after(before: Option<Self>, change: RunChange) -> Option<Self> {
        use RunChange as To;
        match (before, change) {
            (None, To::Created) => Some(Self::Pending),
            (Some(Self::Pending), To::Started) => Some(Self::Running),
            (Some(Self::Running), To::Completed) => Some(Self::Completed),
            // From pending: no runner has the workflow, or the workflow cannot read the input.
            (Some(Self::Pending | Self::Running), To::Failed) => Some(Self::Failed),
            (Some(Self::Pending | Self::Running), To::Cancelled) => Some(Self::Cancelled),
            (None, To::Started | To::Completed | To::Failed | To::Cancelled) => None,
            (Some(Self::Pending), To::Created | To::Completed) => None,
            (Some(Self::Running), To::Created | To::Started) => None,
            (
                Some(Self::Completed | Self::Failed | Self::Cancelled),
                To::Created | To::Started | To::Completed | To::Failed | To::Cancelled,
            ) => None,
        }
    }

    fn text(self) -> &'static str {
        self.as_str()
    }

    fn is_final(self) -> bool {
        self.is_terminal()
    }
}

/// One run of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Its id.
    pub run_id: Name,
    /// Its state.
    pub state: RunState,
    /// The name of its workflow.
    pub workflow_name: String,
    /// The version that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_version: Option<String>,
    /// Its input.
    #[serde(default)]
    pub input: Value,
    /// Its output, if it is completed.
    #[serde(default, deserialize_with = "null_is_a_value", skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The code of that error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Why it was cancelled, if the cancel request gave a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was created.
    pub created_at: Millis,
    /// When a runner started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    /// When it ended, in any way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

impl Run {
    fn created(event: &LogEvent) -> Self {
        let data = &event.event_data;
        Self {
            run_id: event.correlation_id.clone(),
            state: RunState::Pending,
            workflow_name: read_field(data, "workflowName").unwrap_or_default(),
            workflow_version: None,
            input: data.get("input").cloned().unwrap_or_default(),
            output: None,
            error: None,
            error_code: None,
            reason: None,
            created_at: event.timestamp,
            started_at: None,
            ended_at: None,
        }
    }

    fn apply(&mut self, change: RunChange, state: RunState, event: &LogEvent) {
        let data = &event.event_data;
        self.state = state;
        if state.is_terminal() {
            self.ended_at = Some(event.timestamp);
        }
        match change {
            // `Run::created` handles it: this run exists.
            RunChange::Created => {}
            RunChange::Started => {
                self.workflow_version = read_field(data, "workflowVersion");
                self.started_at = Some(event.timestamp);
            }
            RunChange::Completed => self.output = Some(data.get("output").cloned().unwrap_or_default()),
            RunChange::Failed => (self.error, self.error_code) = failure(data),
            RunChange::Cancelled => self.reason = read_field(data, "reason"),
        }
    }
}

/// Reads a field that is there; `null` is a value, and only a missing field is `None`.
fn null_is_a_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The error and its code. An error that is not a text is shown as it is.
fn failure(data: &Map<String, Value>) -> (Option<String>, Option<String>) {
    let error = match data.get("error") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    };
    (error, read_field(data, "errorCode"))
}

#[cfg(test)]
mod tests;
