//! Events that a wait has taken and the code has not read, because the code dropped the wait first.
//!
//! The run keeps such an event, and hands it to the next wait that it fits. A hand-over is recorded: the completion of
//! that wait names the wait that had the event. So a replay reads hand-overs from the log and decides none again.

use std::collections::BTreeMap;

use ledgerline_event::{LogDraft, Millis, Name, RunEventType, containment::contains};
use serde_json::{Map, Value};

use crate::draft::{draft, millis};

/// The field of a recorded hand-over: the wait or hook that had the event before.
pub(crate) const HANDED_OVER_FROM: &str = "handedOverFrom";

/// An event that the code has not read.
pub(crate) struct UnreadEvent {
    taken_by: Name,
    taken_at: Millis,
    data: Map<String, Value>,
}

impl UnreadEvent {
    pub(crate) fn new(taken_by: Name, taken_at: Millis, data: Map<String, Value>) -> Self {
        Self { taken_by, taken_at, data }
    }

    /// Whether a wait with this name and these criteria would take it.
    pub(crate) fn fits(&self, name: &str, criteria: &Value, since: Option<Millis>) -> bool {
        let nothing = Value::Object(Map::new());
        // A log of an earlier version does not say when the event was sent: no later than it was taken.
        let sent_at = self.data.get("sentAt").and_then(millis).unwrap_or(self.taken_at);
        self.data.get("eventName").and_then(Value::as_str) == Some(name)
            && contains(self.data.get("matchCriteria").unwrap_or(&nothing), criteria)
            && since.is_none_or(|since| since <= sent_at)
    }

    /// The event that completes the wait that gets it.
    pub(crate) fn hand_over_to(&self, wait_id: &Name) -> LogDraft {
        let mut completed = draft(RunEventType::WaitCompleted, wait_id);
        completed.event_data = self.data.clone();
        completed.event_data.insert(HANDED_OVER_FROM.to_owned(), self.taken_by.as_str().into());
        completed
    }
}

/// The unread events of a run, in the order of the log.
#[derive(Default)]
pub(crate) struct UnreadEvents(BTreeMap<u64, UnreadEvent>);

impl UnreadEvents {
    /// Keeps the event that came as number `number` of the log.
    pub(crate) fn keep(&mut self, number: u64, event: UnreadEvent) {
        self.0.insert(number, event);
    }

    /// Forgets the event that the wait `wait_id` had: a later wait has got it.
    pub(crate) fn remove_taken_by(&mut self, wait_id: &str) {
        self.0.retain(|_, event| event.taken_by.as_str() != wait_id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u64, &UnreadEvent)> {
        self.0.iter()
    }
}
