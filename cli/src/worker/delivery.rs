//! A message that was received: hidden from others for a while, until it is deleted.

use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use ledgerline_ledger::{StoreError, for_long_polls};
use tokio::time::Instant;

/// SQS hides a message for twelve hours after it was received and not longer. A minute less, because its clock
/// began before ours.
const HIDDEN_AT_MOST: Duration = Duration::from_secs(12 * 60 * 60 - 60);

/// The queue of tasks.
#[derive(Clone, Debug)]
pub(super) struct TaskQueue {
    pub(super) sqs: aws_sdk_sqs::Client,
    /// Waits for as long as SQS holds an answer back.
    polls: aws_sdk_sqs::Client,
    pub(super) url: String,
}

/// One message of it.
#[derive(Debug)]
pub(super) struct Delivery {
    queue: TaskQueue,
    pub(super) body: String,
    receipt: String,
    /// How often it was received, this time included.
    pub(super) receives: u32,
    received: Instant,
}

impl TaskQueue {
    pub(super) fn new(sqs: aws_sdk_sqs::Client, url: String) -> Self {
        Self { polls: for_long_polls(&sqs), sqs, url }
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
            .polls
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

    /// Hides it for so long from now, as far as SQS does. What comes too early finds the task's lease.
    pub(super) async fn hide(&self, length: Duration) {
        let Some(length) = possible(length, self.received.elapsed()) else { return };
        let change = self.queue.sqs.change_message_visibility().queue_url(&self.queue.url);
        let change = change.receipt_handle(&self.receipt).visibility_timeout(seconds(length));
        if let Err(error) = change.send().await {
            let error = StoreError::new("ChangeMessageVisibility", error);
            tracing::warn!(%error, "a message may come again before its time");
        }
    }

    /// Takes it out of the queue.
    pub(super) async fn delete(&self) {
        let delete = self.queue.sqs.delete_message().queue_url(&self.queue.url).receipt_handle(&self.receipt);
        if let Err(error) = delete.send().await {
            let error = StoreError::new("DeleteMessage", error);
            tracing::warn!(%error, "the message of an ended task will come once more, and be deleted then");
        }
    }
}

/// How long a message can be hidden that was received so long ago, if at all.
fn possible(length: Duration, since_received: Duration) -> Option<Duration> {
    let left = HIDDEN_AT_MOST.checked_sub(since_received).filter(|left| !left.is_zero())?;
    Some(length.min(left))
}

/// Whole seconds, rather one too many: 0 would mean at once.
fn seconds(length: Duration) -> i32 {
    i32::try_from(length.as_millis().div_ceil(1_000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_never_hidden_past_twelve_hours_after_it_was_received() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(60 * 60));
        assert_eq!(possible(minute, hour), Some(minute));
        assert_eq!(possible(20 * hour, hour), Some(11 * hour - minute));
        assert_eq!(possible(minute, 12 * hour - minute - minute / 2), Some(minute / 2));
        assert_eq!(possible(minute, 12 * hour - minute), None);
        assert_eq!(possible(minute, 30 * hour), None);
    }

    #[test]
    fn a_part_of_a_second_is_a_second() {
        assert_eq!([0, 1, 1_000, 1_001].map(|ms| seconds(Duration::from_millis(ms))), [0, 1, 1, 2]);
    }
}
