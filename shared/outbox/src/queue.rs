//! The queues that starts are sent to.

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use ledgerline_ledger::Names;
use ledgerline_store::{Fault, StoreError};
use serde::{Deserialize, Serialize};

use crate::{ComponentError, Message, short_hash};

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
    /// Tasks that were tried too often.
    #[serde(rename = "task-dead-letters")]
    TaskDeadLetters,
    /// Runs that can go on, for runners.
    Runs,
}

/// Where the queues are.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct QueueUrls {
    pub tasks: String,
    pub task_dead_letters: String,
    pub runs: String,
}

impl QueueUrls {
    /// Asks SQS for the queues of a stage.
    pub async fn find(sqs: &aws_sdk_sqs::Client, names: &Names) -> Result<Self, StoreError> {
        let find = |name: String| async move {
            let answer = sqs.get_queue_url().queue_name(name).send().await;
            let answer = answer.map_err(|error| StoreError::new("GetQueueUrl", error))?;
            Ok::<_, StoreError>(answer.queue_url.unwrap_or_default())
        };
        Ok(Self {
            tasks: find(names.task_queue.clone()).await?,
            task_dead_letters: find(names.task_dead_letter_queue.clone()).await?,
            runs: find(names.run_queue.clone()).await?,
        })
    }

    fn of(&self, queue: Queue) -> &str {
        match queue {
            Queue::Tasks => &self.tasks,
            Queue::TaskDeadLetters => &self.task_dead_letters,
            Queue::Runs => &self.runs,
        }
    }
}

/// The queues of a stage.
#[derive(Clone, Debug)]
pub struct Queues {
    sqs: aws_sdk_sqs::Client,
    urls: QueueUrls,
}

impl Queues {
    /// The queues at `urls`.
    pub fn new(sqs: aws_sdk_sqs::Client, urls: QueueUrls) -> Self {
        Self { sqs, urls }
    }

    /// Sends messages in their order, as few requests as they fit in.
    pub async fn send_messages(&self, messages: Vec<Message>) -> Result<(), ComponentError> {
        let mut batch: Vec<Message> = Vec::new();
        let mut bytes = 0;
        for message in messages {
            let full = batch.len() == MAX_ENTRIES || bytes + message.body.len() > MAX_BYTES;
            if full || batch.last().is_some_and(|last| last.queue != message.queue) {
                self.send_batch(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
            bytes += message.body.len();
            batch.push(message);
        }
        self.send_batch(batch).await
    }

    async fn send_batch(&self, batch: Vec<Message>) -> Result<(), ComponentError> {
        let Some(first) = batch.first() else { return Ok(()) };
        let mut request = self.sqs.send_message_batch().queue_url(self.urls.of(first.queue));
        for (position, message) in batch.iter().enumerate() {
            let delay = i32::try_from(message.delay_seconds).unwrap_or(i32::MAX);
            let entry = SendMessageBatchRequestEntry::builder()
                .id(position.to_string())
                .message_body(escape_for_sqs(&message.body))
                .message_group_id(&message.group)
                .set_delay_seconds((delay > 0).then_some(delay))
                .build()
                .map_err(|error| StoreError::unreadable("SendMessageBatch", error.to_string()))?;
            request = request.entries(entry);
        }
        let answer = request.send().await.map_err(|error| StoreError::new("SendMessageBatch", error))?;
        match answer.failed().first() {
            None => Ok(()),
            Some(failed) => Err(StoreError::told(
                "SendMessageBatch",
                if failed.sender_fault { Fault::Rejected } else { Fault::Unavailable },
                failed.code(),
                failed.message().unwrap_or("refused"),
            )
            .into()),
        }
    }
}

/// The message group of a tenant: a queue is fair between groups. SQS takes only some characters in a group.
pub fn message_group(tenant: &str) -> String {
    match tenant.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => tenant.to_owned(),
        false => short_hash(&[tenant]),
    }
}

/// A body as SQS accepts it: U+FFFE and U+FFFF are escaped. Bodies are JSON, where these stand in strings only.
fn escape_for_sqs(body: &str) -> String {
    body.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_the_same_after_its_characters_are_escaped() {
        let body = serde_json::json!({"runId": "a\u{fffe}b", "input": "\u{ffff}é"}).to_string();
        let sent = escape_for_sqs(&body);
        assert!(!sent.contains(['\u{fffe}', '\u{ffff}']));
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&sent), read(&body));
    }
}
