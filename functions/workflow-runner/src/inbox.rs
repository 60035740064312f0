//! The source of run messages outside of Lambda, where the process polls the run queue itself.

use std::time::Duration;

use ledgerline_ledger::StoreError;

/// The longest that SQS waits for a message: an idle process asks three times a minute.
const LONG_POLL: Duration = Duration::from_secs(20);

/// A message of the run queue.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Letter {
    pub body: String,
    /// By which it is deleted.
    pub receipt: String,
}

/// The run queue: as SQS has it, or in the same process.
pub trait Inbox: Send + Sync + 'static {
    /// Up to `max` messages; waits for the first.
    fn receive(&self, max: usize) -> impl Future<Output = Result<Vec<Letter>, StoreError>> + Send;

    /// Takes a message off the queue.
    fn delete(&self, receipt: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The run queue in SQS.
pub(crate) struct SqsInbox {
    pub(crate) sqs: aws_sdk_sqs::Client,
    /// Waits for as long as SQS holds an answer back.
    pub(crate) polls: aws_sdk_sqs::Client,
    pub(crate) url: String,
}

impl Inbox for SqsInbox {
    async fn receive(&self, max: usize) -> Result<Vec<Letter>, StoreError> {
        let answer = self
            .polls
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(max).unwrap_or(1))
            .wait_time_seconds(i32::try_from(LONG_POLL.as_secs()).unwrap_or(0))
            .send()
            .await
            .map_err(|error| StoreError::new("ReceiveMessage", error))?;
        let letters = answer.messages.unwrap_or_default().into_iter().map(|message| Letter {
            body: message.body.unwrap_or_default(),
            receipt: message.receipt_handle.unwrap_or_default(),
        });
        Ok(letters.collect())
    }

    async fn delete(&self, receipt: &str) -> Result<(), StoreError> {
        let deleted = self.sqs.delete_message().queue_url(&self.url).receipt_handle(receipt).send().await;
        deleted.map_err(|error| StoreError::new("DeleteMessage", error)).map(|_| ())
    }
}
