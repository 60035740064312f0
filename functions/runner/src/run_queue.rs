//! The run queue outside of Lambda, where the process polls it itself.

use std::time::Duration;

use ledgerline_store::StoreError;

/// The longest that SQS waits for a message: an idle process polls three times a minute.
const LONG_POLL: Duration = Duration::from_secs(20);

/// A message of the run queue.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct QueueMessage {
    pub body: String,
    /// What a delete takes.
    pub receipt: String,
}

/// The run queue: in SQS, or in the same process.
pub trait RunQueue: Send + Sync + 'static {
    /// Up to `max` messages; waits for the first.
    fn receive(&self, max: usize) -> impl Future<Output = Result<Vec<QueueMessage>, StoreError>> + Send;

    /// Deletes a message.
    fn delete(&self, receipt: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The run queue in SQS.
pub(crate) struct SqsRunQueue {
    pub(crate) sqs: aws_sdk_sqs::Client,
    /// A client whose timeout is longer than a long poll.
    pub(crate) polls: aws_sdk_sqs::Client,
    pub(crate) url: String,
}

impl RunQueue for SqsRunQueue {
    async fn receive(&self, max: usize) -> Result<Vec<QueueMessage>, StoreError> {
        let answer = self
            .polls
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(max).unwrap_or(1))
            .wait_time_seconds(i32::try_from(LONG_POLL.as_secs()).unwrap_or(0))
            .send()
            .await
            .map_err(|error| StoreError::new("ReceiveMessage", error))?;
        let messages = answer.messages.unwrap_or_default().into_iter().map(|message| QueueMessage {
            body: message.body.unwrap_or_default(),
            receipt: message.receipt_handle.unwrap_or_default(),
        });
        Ok(messages.collect())
    }

    async fn delete(&self, receipt: &str) -> Result<(), StoreError> {
        let deleted = self.sqs.delete_message().queue_url(&self.url).receipt_handle(receipt).send().await;
        deleted.map_err(|error| StoreError::new("DeleteMessage", error)).map(|_| ())
    }
}
