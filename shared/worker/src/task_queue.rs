//! The task queue in SQS. A received message stays hidden from other workers for a while; the worker extends that, or
//! deletes the message.

use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use ledgerline_ledger::for_long_polls;
use ledgerline_store::StoreError;
use tokio::time::Instant;

/// SQS hides a message for at most twelve hours after it was received. A minute less, for the time that a request
/// takes.
const HIDDEN_AT_MOST: Duration = Duration::from_secs(12 * 60 * 60 - 60);

/// The queue of tasks.
#[derive(Clone, Debug)]
pub(super) struct TaskQueue {
    pub(super) sqs: aws_sdk_sqs::Client,
    /// For long polls: its timeout is longer than SQS holds back an answer.
    long_polls: aws_sdk_sqs::Client,
    pub(super) url: String,
}

/// A received message.
#[derive(Debug)]
pub(super) struct Delivery {
    queue: TaskQueue,
    pub(super) body: String,
    receipt: String,
    /// How often SQS has delivered it, this time included.
    pub(super) receives: u32,
    received: Instant,
}

impl TaskQueue {
    pub(super) fn new(sqs: aws_sdk_sqs::Client, url: String) -> Self {
        Self { long_polls: for_long_polls(&sqs), sqs, url }
    }

    /// Receives up to `max` messages, hidden for `hidden`; waits up to `wait` for the first.
    pub(super) async fn receive(
        &self,
        max: usize,
        hidden: Duration,
        wait: Duration,
    ) -> Result<Vec<Delivery>, StoreError> {
        // Before asking: the queue counts from when it answers.
        let received = Instant::now();
        let answer = self
            .long_polls
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(max).unwrap_or(1))
            .visibility_timeout(seconds(hidden))
            .wait_time_seconds(seconds(wait))
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .send()
            .await
            .map_err(|error| StoreError::new("ReceiveMessage", error))?;
        let messages = answer.messages.unwrap_or_default().into_iter();
        Ok(messages.map(|message| Delivery::new(self.clone(), message, received)).collect())
    }
}

impl Delivery {
    fn new(queue: TaskQueue, message: Message, received: Instant) -> Self {
        let counted = message.attributes.as_ref().and_then(|attributes| {
            attributes.get(&MessageSystemAttributeName::ApproximateReceiveCount)?.parse().ok()
        });
        Self {
            queue,
            body: message.body.unwrap_or_default(),
            receipt: message.receipt_handle.unwrap_or_default(),
            receives: counted.unwrap_or(1),
            received,
        }
    }

    /// Hides the message for `length` from now, or for as long as SQS still allows. If SQS redelivers it too early, its
    /// receiver finds the task's lease held.
    pub(super) async fn hide(&self, length: Duration) {
        let Some(length) = within_sqs_limit(length, self.received.elapsed()) else { return };
        let change = self.queue.sqs.change_message_visibility().queue_url(&self.queue.url);
        let change = change.receipt_handle(&self.receipt).visibility_timeout(seconds(length));
        if let Err(error) = change.send().await {
            let error = StoreError::new("ChangeMessageVisibility", error);
            tracing::warn!(%error, "could not hide a message for longer; it may be redelivered early");
        }
    }

    /// Deletes the message.
    pub(super) async fn delete(&self) {
        let delete = self.queue.sqs.delete_message().queue_url(&self.queue.url).receipt_handle(&self.receipt);
        if let Err(error) = delete.send().await {
            let error = StoreError::new("DeleteMessage", error);
            tracing::warn!(%error, "could not delete the message of an ended task; the next worker that receives it will");
        }
    }
}

/// How long SQS can still hide a message that was received `since_received` ago; `None`: not any more.
fn within_sqs_limit(length: Duration, since_received: Duration) -> Option<Duration> {
    let left = HIDDEN_AT_MOST.checked_sub(since_received).filter(|left| !left.is_zero())?;
    Some(length.min(left))
}

/// Whole seconds, rounded up: 0 would make the message visible at once.
fn seconds(length: Duration) -> i32 {
    i32::try_from(length.as_millis().div_ceil(1_000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_never_hidden_past_twelve_hours_after_it_was_received() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(60 * 60));
        assert_eq!(within_sqs_limit(minute, hour), Some(minute));
        assert_eq!(within_sqs_limit(20 * hour, hour), Some(11 * hour - minute));
        assert_eq!(within_sqs_limit(minute, 12 * hour - minute - minute / 2), Some(minute / 2));
        assert_eq!(within_sqs_limit(minute, 12 * hour - minute), None);
        assert_eq!(within_sqs_limit(minute, 30 * hour), None);
    }

    #[test]
    fn a_part_of_a_second_is_a_second() {
        assert_eq!([0, 1, 1_000, 1_001].map(|ms| seconds(Duration::from_millis(ms))), [0, 1, 1, 2]);
    }
}
