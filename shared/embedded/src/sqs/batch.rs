//! Batches: each entry succeeds or fails by itself, under the rules that hold for a batch as a whole.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::message::MAX_MESSAGE_BYTES;
use super::{QueueError, Queues, Sent};
use crate::answer::Answer;

use super::api::SendInput;

/// A batch of any kind.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", bound = "T: serde::de::DeserializeOwned")]
pub(crate) struct Batch<T> {
    queue_url: String,
    #[serde(default = "Vec::new")]
    entries: Vec<Identified<T>>,
}

#[derive(Deserialize)]
struct Identified<T> {
    #[serde(rename = "Id")]
    id: String,
    #[serde(flatten)]
    entry: T,
}

/// An entry of DeleteMessageBatch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DeleteEntry {
    receipt_handle: String,
}

/// An entry of ChangeMessageVisibilityBatch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct VisibilityEntry {
    receipt_handle: String,
    #[serde(default)]
    visibility_timeout: u32,
}

impl<T> Batch<T> {
    fn check(&self, kind: &'static str) -> Result<(), QueueError> {
        if self.entries.is_empty() {
            return Err(QueueError::EmptyBatchRequest(kind));
        }
        if self.entries.len() > 10 {
            return Err(QueueError::TooManyEntriesInBatchRequest(self.entries.len()));
        }
        let mut ids = HashSet::new();
        for Identified { id, .. } in &self.entries {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if id.is_empty() || id.len() > 80 || !id.bytes().all(allowed) {
                return Err(QueueError::InvalidBatchEntryId);
            }
            if !ids.insert(id) {
                return Err(QueueError::BatchEntryIdsNotDistinct(id.clone()));
            }
        }
        Ok(())
    }
}

/// SendMessageBatch: what is accepted is committed together.
pub(crate) fn send(queues: &Queues, batch: Batch<SendInput>) -> Answer {
    batch.check("SendMessageBatchRequestEntry")?;
    let queue = super::api::queue_name(&batch.queue_url)?;
    if !queues.exists(&queue) {
        return Err(QueueError::QueueDoesNotExist.into());
    }
    let mut outcomes = Outcomes::default();
    let (mut ids, mut messages, mut bytes) = (Vec::new(), Vec::new(), 0);
    for Identified { id, entry } in batch.entries {
        let message = entry.into_message();
        bytes += message.size();
        match queues.accepts(&queue, &message) {
            Ok(()) => {
                ids.push(id);
                messages.push((queue.clone(), message));
            }
            Err(error) => outcomes.failed(id, &error),
        }
    }
    if bytes > MAX_MESSAGE_BYTES {
        return Err(QueueError::BatchRequestTooLong(bytes).into());
    }
    for (id, sent) in ids.into_iter().zip(queues.send_all(messages)?) {
        outcomes.succeeded(id, sent_json(&sent));
    }
    Ok(outcomes.into_json())
}

/// DeleteMessageBatch.
pub(crate) fn delete(queues: &Queues, batch: Batch<DeleteEntry>) -> Answer {
    batch.check("DeleteMessageBatchRequestEntry")?;
    let queue = super::api::queue_name(&batch.queue_url)?;
    let receipts: Vec<&str> = batch.entries.iter().map(|entry| entry.entry.receipt_handle.as_str()).collect();
    let results = queues.delete_all(&queue, &receipts)?;
    let mut outcomes = Outcomes::default();
    for (Identified { id, .. }, result) in batch.entries.into_iter().zip(results) {
        outcomes.add(id, result);
    }
    Ok(outcomes.into_json())
}

/// ChangeMessageVisibilityBatch.
pub(crate) fn change_visibility(queues: &Queues, batch: Batch<VisibilityEntry>) -> Answer {
    batch.check("ChangeMessageVisibilityBatchRequestEntry")?;
    let queue = super::api::queue_name(&batch.queue_url)?;
    if !queues.exists(&queue) {
        return Err(QueueError::QueueDoesNotExist.into());
    }
    let mut outcomes = Outcomes::default();
    for Identified { id, entry } in batch.entries {
        let result = queues.change_visibility(&queue, &entry.receipt_handle, entry.visibility_timeout);
        outcomes.add(id, result);
    }
    Ok(outcomes.into_json())
}

/// The answer to a sender for one message.
pub(crate) fn sent_json(sent: &Sent) -> Value {
    let mut answer = json!({"MessageId": sent.message_id, "MD5OfMessageBody": sent.md5_of_body});
    if let Some(md5) = &sent.md5_of_attributes {
        answer["MD5OfMessageAttributes"] = json!(md5);
    }
    if let Some(md5) = &sent.md5_of_system_attributes {
        answer["MD5OfMessageSystemAttributes"] = json!(md5);
    }
    answer
}

#[derive(Default)]
struct Outcomes {
    successful: Vec<Value>,
    failed: Vec<Value>,
}

impl Outcomes {
    fn add(&mut self, id: String, result: Result<(), QueueError>) {
        match result {
            Ok(()) => self.succeeded(id, json!({})),
            Err(error) => self.failed(id, &error),
        }
    }

    fn succeeded(&mut self, id: String, mut answer: Value) {
        answer["Id"] = Value::String(id);
        self.successful.push(answer);
    }

    fn failed(&mut self, id: String, error: &QueueError) {
        self.failed.push(json!({
            "Id": id, "Code": error.code(), "Message": error.to_string(), "SenderFault": error.is_senders(),
        }));
    }

    fn into_json(self) -> Value {
        let mut answer = json!({"Successful": self.successful});
        if !self.failed.is_empty() {
            answer["Failed"] = Value::Array(self.failed);
        }
        answer
    }
}
