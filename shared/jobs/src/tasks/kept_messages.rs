//! Messages that are kept beside their tasks, to send them again.

use ledgerline_event::{Millis, Name, TaskSummary};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{
    KeptMessage, TaskRecord,
    keys::{self, ControlKey},
};

use super::TaskMessage;
use crate::Tasks;

/// Messages up to this size are kept in the record: every renewal of a lease writes all of it.
pub(super) const KEPT_MESSAGE_BYTES: usize = 2_000;
/// Larger messages are kept in the payload bucket: a row costs by the kilobyte.
const ROW_BYTES: usize = 8_000;
/// How long a message is kept beside its task. Enqueueing it renews that.
const KEPT_SECONDS: u64 = 30 * 24 * 60 * 60;

/// The row that has the message of a task whose record does not hold it.
fn message_key_of(message: &TaskMessage, record: &TaskRecord) -> ControlKey {
    let TaskMessage { tenant_id, request_id, generation, .. } = message;
    match &record.message_key {
        Some(name) => keys::named_task_message(tenant_id, request_id, name),
        None => keys::task_message(tenant_id, request_id, *generation),
    }
}

impl Tasks {
    /// A record as a start puts it, with the message in it or with the name of the row that has the message. The row
    /// is put first, and under a name that nothing else has: if the start is refused, nothing reads that row.
    pub async fn new_record(
        &self,
        message: &TaskMessage,
        hash: Option<String>,
        now: Millis,
    ) -> Result<TaskRecord, ComponentError> {
        let mut record = TaskRecord { content_hash: hash, created_at: Some(now), ..TaskRecord::default() };
        let body = message.body()?;
        if body.len() <= KEPT_MESSAGE_BYTES {
            record.message = Some(body);
            return Ok(record);
        }
        let TaskMessage { tenant_id, request_id, generation, .. } = message;
        let key = keys::own_task_message(tenant_id, request_id, *generation, &self.emitter.new_event_id());
        self.put_message(&key, &body).await?;
        record.message_key = Some(key.sk);
        Ok(record)
    }

    /// Keeps the message of a task that begins without a record. Its id is new, so no other task has the row.
    pub async fn keep_message(&self, message: &TaskMessage, body: &str) -> Result<(), ComponentError> {
        self.put_message(&message_key_of(message, &TaskRecord::default()), body).await
    }

    /// Keeps the message of a task for another month, unless its record holds the message.
    pub async fn keep_on(
        &self,
        message: &TaskMessage,
        body: &str,
        record: &TaskRecord,
    ) -> Result<(), ComponentError> {
        match record.message {
            Some(_) => Ok(()),
            None => self.put_message(&message_key_of(message, record), body).await,
        }
    }

    async fn put_message(&self, key: &ControlKey, body: &str) -> Result<(), ComponentError> {
        let ttl = self.emitter.now().seconds().plus(KEPT_SECONDS);
        let mut kept = KeptMessage { body: None, body_key: None, ttl };
        if body.len() <= ROW_BYTES {
            kept.body = Some(body.to_owned());
        } else {
            // Not by the id of the task: tenants choose those, and two tenants may choose the same.
            let key = format!("tasks/{}-message.json", self.emitter.new_event_id());
            self.payloads.put(&key, body.as_bytes().to_vec()).await?;
            kept.body_key = Some(key);
        }
        Ok(self.messages.put(key, &kept).await?)
    }

    /// The message of a task as it was sent.
    pub async fn kept_message(
        &self,
        tenant: &Name,
        task: &TaskSummary,
        record: &TaskRecord,
    ) -> Result<Option<TaskMessage>, ComponentError> {
        let key = match (&record.message, &record.message_key) {
            (Some(body), _) => return Ok(Some(TaskMessage::parse(body)?)),
            (None, Some(name)) => keys::named_task_message(tenant, &task.request_id, name),
            (None, None) => keys::task_message(tenant, &task.request_id, task.generation),
        };
        let body = match self.messages.get(&key).await? {
            Some(KeptMessage { body: Some(body), .. }) => Some(body),
            Some(KeptMessage { body_key: Some(key), .. }) => {
                let body = self.payloads.get(&key).await?;
                body.map(|body| String::from_utf8_lossy(&body).into_owned())
            }
            _ => None,
        };
        Ok(body.map(|body| TaskMessage::parse(&body)).transpose()?)
    }
}
