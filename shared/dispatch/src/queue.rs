//! The queues that starts are sent to.

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use ledgerline_ledger::{Fault, Names, StoreError};
use serde::{Deserialize, Serialize};

use crate::{Dispatch, DispatchError, claim::Message};

/// SQS takes this many at once…
const MAX_ENTRIES: usize = 10;
/// …and this many bytes, with some room.
const MAX_BYTES: usize = 900_000;

/// A queue by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Queue {
    /// Tasks, for workers.
    Tasks,
}

/// Where the queues are.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct QueueUrls {
    pub tasks: String,
}

impl QueueUrls {
    /// Asks SQS for the queues of a stage.
    pub async fn find(sqs: &aws_sdk_sqs::Client, names: &Names) -> Result<Self, StoreError> {
        let answer = sqs.get_queue_url().queue_name(&names.task_queue).send().await;
        let answer = answer.map_err(|error| StoreError::new("GetQueueUrl", error))?;
        Ok(Self { tasks: answer.queue_url.unwrap_or_default() })
    }

    fn of(&self, queue: Queue) -> &str {
        match queue {
            Queue::Tasks => &self.tasks,
        }
    }
}

impl Dispatch {
    /// Sends messages in their order, as few requests as they fit in.
    pub(crate) async fn send_messages(&self, messages: Vec<Message>) -> Result<(), DispatchError> {
        let mut batch: Vec<(Queue, String, String)> = Vec::new();
        let mut bytes = 0;
        for message in messages {
            let body = message.body;
            let full = batch.len() == MAX_ENTRIES || bytes + body.len() > MAX_BYTES;
            if full || batch.last().is_some_and(|(queue, ..)| *queue != message.queue) {
                self.send_batch(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
            bytes += body.len();
            batch.push((message.queue, message.group, body));
        }
        self.send_batch(batch).await
    }

    async fn send_batch(&self, batch: Vec<(Queue, String, String)>) -> Result<(), DispatchError> {
        let Some((queue, ..)) = batch.first() else { return Ok(()) };
        let mut request = self.sqs.send_message_batch().queue_url(self.queues.of(*queue));
        for (position, (_, group, body)) in batch.iter().enumerate() {
            let entry = SendMessageBatchRequestEntry::builder()
                .id(position.to_string())
                .message_body(body)
                .message_group_id(group)
                .build()
                .map_err(|error| StoreError::unreadable("SendMessageBatch", error.to_string()))?;
            request = request.entries(entry);
        }
        let answer = request.send().await.map_err(|error| StoreError::new("SendMessageBatch", error))?;
        match answer.failed().first() {
            None => Ok(()),
            Some(failed) => Err(StoreError::told(
                "SendMessageBatch",
                Fault::Unavailable,
                failed.code(),
                failed.message().unwrap_or("refused"),
            )
            .into()),
        }
    }
}
