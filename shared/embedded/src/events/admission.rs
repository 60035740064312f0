//! Bounds how many events may wait in a queue. Publishing is much faster than handling: without a bound, events would be acknowledged
//! minutes before they are handled.

use std::sync::Arc;

use serde_json::Value;

/// The bound of one queue. Events that are urgent have a bound of their own, and are handed out before others.
#[derive(Clone)]
pub struct Admission {
    /// The queue.
    pub queue: String,
    /// No more events are taken while so many wait.
    pub max_waiting: usize,
    /// The same for urgent events.
    pub max_waiting_urgent: usize,
    /// Whether an event is urgent, by its `detail`.
    pub is_urgent: Arc<dyn Fn(&Value) -> bool + Send + Sync>,
}

impl Admission {
    /// How many may wait of the urgent ones, or of the others.
    pub(crate) fn max(&self, urgent: bool) -> usize {
        if urgent { self.max_waiting_urgent } else { self.max_waiting }
    }
}
