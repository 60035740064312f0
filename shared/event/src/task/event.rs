//! The types of events about a task, and the state after each.

use serde::{Deserialize, Serialize};

use crate::{
    Event,
    catalogue::{Catalogued, TaskPending, TaskState},
};

/// The types of events about a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaskEvent {
    /// It waits for a worker.
    #[serde(rename = "Task Pending")]
    Pending,
    /// A worker began an attempt.
    #[serde(rename = "Task Processing Started")]
    Started,
    /// An attempt failed and another will follow.
    #[serde(rename = "Task Processing Failed")]
    AttemptFailed,
    /// The attempt still runs.
    #[serde(rename = "Task Heartbeat")]
    Heartbeat,
    /// It is done.
    #[serde(rename = "Task Completed")]
    Completed,
    /// It failed for good.
    #[serde(rename = "Task Failed")]
    Failed,
    /// It ran too long, which is for good too.
    #[serde(rename = "Task Timeout")]
    TimedOut,
}

impl TaskEvent {
    /// Every type.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Started,
        Self::AttemptFailed,
        Self::Heartbeat,
        Self::Completed,
        Self::Failed,
        Self::TimedOut,
    ];

    /// The type of `event`; `None` if it is not about a task.
    pub fn of<P>(event: &Event<P>) -> Option<Self> {
        let of_task = event.entity_type.as_str() == TaskPending::ENTITY_TYPE;
        Self::ALL.into_iter().find(|kind| of_task && kind.event_type() == event.event_type.as_str())
    }

    /// The event type.
    pub const fn event_type(self) -> &'static str {
        match self {
            Self::Pending => "Task Pending",
            Self::Started => "Task Processing Started",
            Self::AttemptFailed => "Task Processing Failed",
            Self::Heartbeat => "Task Heartbeat",
            Self::Completed => "Task Completed",
            Self::Failed => "Task Failed",
            Self::TimedOut => "Task Timeout",
        }
    }

    /// The state of a task after this event, if the events of the same generation that arrived earlier gave the state
    /// `before` (`None`: there were none). Events arrive in any order, so only an end is final.
    pub const fn after(self, before: Option<TaskState>) -> TaskState {
        use TaskState::{Completed, Failed, Pending, Processing};
        match (before, self) {
            (None | Some(Pending), Self::Pending) => Pending,
            // A later event arrived before its pending event.
            (Some(Processing), Self::Pending) => Processing,
            // A failed attempt is not the end of the task.
            (None | Some(Pending | Processing), Self::Started | Self::AttemptFailed | Self::Heartbeat) => {
                Processing
            }
            (None | Some(Pending | Processing), Self::Completed) => Completed,
            (None | Some(Pending | Processing), Self::Failed | Self::TimedOut) => Failed,
            // The end absorbs events that it overtook, and a second end.
            (
                Some(end @ (Completed | Failed)),
                Self::Pending
                | Self::Started
                | Self::AttemptFailed
                | Self::Heartbeat
                | Self::Completed
                | Self::Failed
                | Self::TimedOut,
            ) => end,
        }
    }

    /// Whether nothing can follow in the same generation.
    pub const fn is_end(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::TimedOut => true,
            Self::Pending | Self::Started | Self::AttemptFailed | Self::Heartbeat => false,
        }
    }
}
