//! One event of a task, reduced to the details that a summary can show. Fields are read one by one: a field that does not
//! have its type is missing, and the event still counts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TaskEvent;
use crate::{
    Event, Millis, Name, Seconds,
    catalogue::{Activity, ErrorCategory, FailureSource, MemoryUsage, Usage},
    envelope::read_field,
};

/// The longest error text that is kept, in characters; the event has the rest.
pub(super) const ERROR_MAX: usize = 300;
/// The longest name of a task, worker, step or activity that is kept, in characters.
pub(super) const TEXT_MAX: usize = 128;
/// The most bytes of JSON that the counts in `usage` may take that the catalogue does not name.
const USAGE_MAX: usize = 200;

/// One event of a task, reduced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Observation {
    pub(super) at: Millis,
    pub(super) id: Name,
    pub(super) kind: TaskEvent,
    #[serde(flatten)]
    pub(super) details: Details,
}

/// The details of one event.
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

impl Observation {
    pub(super) fn of(kind: TaskEvent, event: &Event) -> Self {
        let of = &event.properties;
        let context = Details { attempt: event.context.attempt, ..Details::default() };
        let worker = || {
            let named = read_field(of, "workerId").or_else(|| event.context.worker_id.clone());
            named.map(|id: String| short(id, TEXT_MAX))
        };
        let failure = || {
            let error = read_field(of, "error").map(|text: String| short(text, ERROR_MAX));
            (error, read_field(of, "errorCategory"))
        };
        let details = match kind {
            TaskEvent::Pending => context,
            TaskEvent::Started => Details {
                worker_id: worker(),
                process_id: read_field(of, "processId"),
                effective_until: read_field(of, "effectiveUntil"),
                ..context
            },
            TaskEvent::Heartbeat => Details {
                worker_id: worker(),
                process_id: read_field(of, "processId"),
                effective_until: read_field(of, "effectiveUntil"),
                memory_usage: read_field(of, "memoryUsage"),
                last_activity: read_field(of, "lastActivity").map(short_activity),
                ..context
            },
            TaskEvent::AttemptFailed => {
                let (error, error_category) = failure();
                let attempt_number = read_field(of, "attemptNumber");
                Details { worker_id: worker(), attempt_number, error, error_category, ..context }
            }
            TaskEvent::Completed => Details {
                worker_id: worker(),
                duration_ms: read_field(of, "durationMs"),
                usage: read_field(of, "usage").map(short_usage),
                ..context
            },
            TaskEvent::Failed => {
                let (error, error_category) = failure();
                let (retry_count, source) = (read_field(of, "retryCount"), read_field(of, "source"));
                Details { worker_id: worker(), error, error_category, retry_count, source, ..context }
            }
            TaskEvent::TimedOut => Details {
                worker_id: worker(),
                timeout_ms: read_field(of, "timeoutMs"),
                duration_ms: read_field(of, "elapsedMs"),
                ..context
            },
        };
        Self { at: event.timestamp, id: event.event_id.clone(), kind, details }
    }

    /// Its place in the order by the senders' clocks.
    pub(super) fn by_time(&self) -> (Millis, &Name) {
        (self.at, &self.id)
    }

    /// Its place in the order by attempts: a worker whose clock is ahead, or that does not know that its lease has expired,
    /// is not the newest. Events of senders that count no attempts are ordered by time alone.
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

/// Drops the counts that the catalogue does not name if they are large.
fn short_usage(usage: Usage) -> Usage {
    let bytes =
        |other: &Map<String, Value>| serde_json::to_string(other).map_or(usize::MAX, |json| json.len());
    let other = if bytes(&usage.other) <= USAGE_MAX { usage.other } else { Map::new() };
    Usage { other, ..usage }
}
