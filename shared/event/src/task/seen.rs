//! One event of a task, with as much of it as a summary may ever show. Fields are read one by
//! one: what a sender spells in its own way is missing, and the event still counts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Event, Millis, Name, Seconds,
    catalogue::{
        Activity, Catalogued, ErrorCategory, FailureSource, MemoryUsage, TaskPending, TaskState, Usage,
    },
    fold::read,
};

/// The longest error text that is kept, in characters; the event has the rest.
pub(super) const ERROR_MAX: usize = 300;
/// The longest name of a task, worker, step or activity that is kept, in characters.
pub(super) const TEXT_MAX: usize = 128;
/// The most bytes of JSON that the counts in `usage` may take that the catalogue does not name.
const USAGE_MAX: usize = 200;

/// What can happen to a task.
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
    /// Every one of them.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Started,
        Self::AttemptFailed,
        Self::Heartbeat,
        Self::Completed,
        Self::Failed,
        Self::TimedOut,
    ];

    /// What `event` says about a task; `None` if it is about something else.
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

    /// Where a task stands after it, if it stood at `before` in the same generation (`None`: nothing
    /// was known). The order of arrival says nothing, so only an end is final.
    pub const fn after(self, before: Option<TaskState>) -> TaskState {
        use TaskState::{Completed, Failed, Pending, Processing};
        match (before, self) {
            (None | Some(Pending), Self::Pending) => Pending,
            // Its pending event was overtaken.
            (Some(Processing), Self::Pending) => Processing,
            // A failed attempt is not the end of the task.
            (None | Some(Pending | Processing), Self::Started | Self::AttemptFailed | Self::Heartbeat) => {
                Processing
            }
            (None | Some(Pending | Processing), Self::Completed) => Completed,
            (None | Some(Pending | Processing), Self::Failed | Self::TimedOut) => Failed,
            // The end absorbs whatever was overtaken by it, and another's end that came second.
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

/// One event, cut down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seen {
    pub(super) at: Millis,
    pub(super) id: Name,
    pub(super) kind: TaskEvent,
    #[serde(flatten)]
    pub(super) details: Details,
}

/// What one event has to say beside that it happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worker_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effective_until: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_usage: Option<MemoryUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_activity: Option<Activity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt_number: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error_category: Option<ErrorCategory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<FailureSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_ms: Option<u64>,
}

impl Seen {
    pub(super) fn of(kind: TaskEvent, event: &Event) -> Self {
        let of = &event.properties;
        let context = Details { attempt: event.context.attempt, ..Details::default() };
        let worker = || {
            let named = read(of, "workerId").or_else(|| event.context.worker_id.clone());
            named.map(|id: String| short(id, TEXT_MAX))
        };
        let failure = || {
            let error = read(of, "error").map(|text: String| short(text, ERROR_MAX));
            (error, read(of, "errorCategory"))
        };
        let details = match kind {
            TaskEvent::Pending => context,
            TaskEvent::Started => Details {
                worker_id: worker(),
                process_id: read(of, "processId"),
                effective_until: read(of, "effectiveUntil"),
                ..context
            },
            TaskEvent::Heartbeat => Details {
                worker_id: worker(),
                process_id: read(of, "processId"),
                effective_until: read(of, "effectiveUntil"),
                memory_usage: read(of, "memoryUsage"),
                last_activity: read(of, "lastActivity").map(short_activity),
                ..context
            },
            TaskEvent::AttemptFailed => {
                let (error, error_category) = failure();
                let attempt_number = read(of, "attemptNumber");
                Details { worker_id: worker(), attempt_number, error, error_category, ..context }
            }
            TaskEvent::Completed => Details {
                worker_id: worker(),
                duration_ms: read(of, "durationMs"),
                usage: read(of, "usage").map(short_usage),
                ..context
            },
            TaskEvent::Failed => {
                let (error, error_category) = failure();
                let (retry_count, source) = (read(of, "retryCount"), read(of, "source"));
                Details { worker_id: worker(), error, error_category, retry_count, source, ..context }
            }
            TaskEvent::TimedOut => Details {
                worker_id: worker(),
                timeout_ms: read(of, "timeoutMs"),
                duration_ms: read(of, "elapsedMs"),
                ..context
            },
        };
        Self { at: event.timestamp, id: event.event_id.clone(), kind, details }
    }

    /// Earlier and later by the senders' clocks.
    pub(super) fn by_time(&self) -> (Millis, &Name) {
        (self.at, &self.id)
    }

    /// Earlier and later among attempts: a worker whose clock is ahead, or who does not know that its
    /// attempt was taken over, is not the newest. Senders that count no attempts go by time alone.
    pub(super) fn by_attempt(&self) -> (u32, Millis, &Name) {
        (self.details.attempt.unwrap_or(0), self.at, &self.id)
    }
}

/// At most `max` characters, the last one an ellipsis if there were more.
pub(super) fn short(mut text: String, max: usize) -> String {
    if text.chars().nth(max).is_some() {
        let kept = text.char_indices().nth(max - 1).map_or(0, |(at, _)| at);
        text.truncate(kept);
        text.push('…');
    }
    text
}

fn short_activity(activity: Activity) -> Activity {
    let step_name = activity.step_name.map(|name| short(name, TEXT_MAX));
    Activity { kind: short(activity.kind, TEXT_MAX), step_name, ..activity }
}

/// Counts that the catalogue does not name are kept while they are small.
fn short_usage(usage: Usage) -> Usage {
    let bytes =
        |other: &Map<String, Value>| serde_json::to_string(other).map_or(usize::MAX, |json| json.len());
    let other = if bytes(&usage.other) <= USAGE_MAX { usage.other } else { Map::new() };
    Usage { other, ..usage }
}
