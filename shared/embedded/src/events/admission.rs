//! Bounds how many events may wait in a queue. Publishing is much faster than handling: without a bound, events would be acknowledged
//! minutes before they are handled.

use std::sync::Arc;

use serde_json::Value;

/// The bound of one queue. Urgent events have a bound of their own, and the queue hands them out before others.
#[derive(Clone)]
pub struct Admission {
    /// The queue.
    pub queue: String,
    /// While as many events wait, the bus refuses more.
    pub max_waiting: usize,
    /// The same bound for urgent events.
    pub max_waiting_urgent: usize,
    /// Whether an event is urgent, by its `detail`.
    pub is_urgent: Arc<dyn Fn(&Value) -> bool + Send + Sync>,
}

impl Admission {
    /// Whether an event with this `detail` is urgent.
    pub(crate) fn urgency(&self, detail: &Value) -> Urgency {
        if (self.is_urgent)(detail) { Urgency::Urgent } else { Urgency::Normal }
    }

    /// How many events may wait before an event of this urgency is refused.
    pub(crate) fn max(&self, urgency: Urgency) -> usize {
        match urgency {
            Urgency::Urgent => self.max_waiting_urgent,
            Urgency::Normal => self.max_waiting,
        }
    }
}

/// Whether the queue hands an event out before others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Urgent,
    Normal,
}
