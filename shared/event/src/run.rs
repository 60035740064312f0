//! Where a run stands, and its steps, hooks and waits: the fold of its log.
//!
//! Unlike the events of a task, those of a log have one order, which is fixed when they are appended. So the
//! fold is strict: each entity goes from state to state by a `match` over every pair of state and event, and a
//! pair that cannot be is an error. Details that cannot be read are missing, and the event still counts;
//! [`read_draft`] is where they are held to their form, before they are appended.

/// States of one kind of entity.
macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($state:ident $text:literal $terminal:literal $about:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { $(#[doc = $about] $state,)* }

        impl $name {
            /// Every one of them.
            pub const ALL: &'static [Self] = &[$(Self::$state),*];

            /// As it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$state => $text,)* }
            }

            /// Whether nothing can follow.
            pub const fn is_terminal(self) -> bool {
                match self { $(Self::$state => $terminal,)* }
            }

            /// The state that is written so.
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
mod illegal;
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
    illegal::Illegal,
    step::{Step, StepState},
    view::{EntityView, RunView},
    wait::{Wait, WaitFor, WaitOutcome, WaitState},
};
use crate::{LogEvent, Millis, Name, RunEntity, fold::read};

states! {
    /// Where a run stands.
    RunState {
        Pending "pending" false "It is there, and nobody has begun it.",
        Running "running" false "A runner has begun it.",
        Completed "completed" true "It ended with an output.",
        Failed "failed" true "It ended with an error.",
        Cancelled "cancelled" true "Somebody ended it.",
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
    /// Where it stands.
    pub state: RunState,
    /// Which workflow it runs.
    pub workflow_name: String,
    /// The version that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_version: Option<String>,
    /// What it was given.
    #[serde(default)]
    pub input: Value,
    /// What it ended with, if it is completed.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The same, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Why it was cancelled, if the cancel request gave a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was created.
    pub created_at: Millis,
    /// When it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    /// When it ended, however it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

impl Run {
    fn created(event: &LogEvent) -> Self {
        let data = &event.event_data;
        Self {
            run_id: event.correlation_id.clone(),
            state: RunState::Pending,
            workflow_name: read(data, "workflowName").unwrap_or_default(),
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

    fn take(&mut self, change: RunChange, state: RunState, event: &LogEvent) {
        let data = &event.event_data;
        self.state = state;
        if state.is_terminal() {
            self.ended_at = Some(event.timestamp);
        }
        match change {
            // Only what is not there yet can be created.
            RunChange::Created => {}
            RunChange::Started => {
                self.workflow_version = read(data, "workflowVersion");
                self.started_at = Some(event.timestamp);
            }
            RunChange::Completed => self.output = Some(data.get("output").cloned().unwrap_or_default()),
            RunChange::Failed => (self.error, self.error_code) = failure(data),
            RunChange::Cancelled => self.reason = read(data, "reason"),
        }
    }
}

/// A result of null is a result.
fn said<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The error and its code. An error that is not a text is shown as it is.
fn failure(data: &Map<String, Value>) -> (Option<String>, Option<String>) {
    let error = match data.get("error") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    };
    (error, read(data, "errorCode"))
}

#[cfg(test)]
mod tests;
