//! Tasks that no worker takes. SQS keeps a message for 14 days: after ten the message is enqueued again, so that a task
//! waits for its worker for as long as it takes.
//!
//! The row that people list is due ten days after the task began to wait, and says where to look. The task's record
//! decides, as for everything else: it becomes the claim of the message, on condition that no worker has taken the task
//! and that its message was not enqueued within the last ten days.

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::{Millis, Name, Seconds, TaskEvent, TaskSummary, catalogue::TaskState};
use ledgerline_ledger::{
    Fault, StoreError,
    control::keys::{self, ControlKey, DUE_SHARDS},
};
use serde::{Deserialize, Serialize};

use super::{
    TaskMessage,
    record::{KEPT_MESSAGE_BYTES, Phase, TaskRecord},
    summary::SummaryRow,
};
use crate::{
    Dispatch, DispatchError,
    claim::{Claim, Effects, Intent},
    conditional::{Answer, conditionally, number, text},
};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// After this long without a worker a message is enqueued again: four days before SQS drops it.
const UNTAKEN_MS: u64 = 10 * DAY_MS;
/// Messages of one shard and one check; the next check takes the rest.
const AT_ONCE: i32 = 50;
/// Larger messages are kept in the payload bucket: a row costs by the kilobyte.
const ROW_BYTES: usize = 8_000;
/// How long a message is kept beside its task. Enqueueing it renews that.
const KEPT_SECONDS: u64 = 30 * 24 * 60 * 60;

/// A message that the task's record does not keep: it is large, or the task has no record yet.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptMessage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body_key: Option<String>,
    ttl: Seconds,
}

/// What is to be done about a task that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Enqueue,
    LookAt(Millis),
    Nothing,
}

/// When a task has waited so long for a worker that its message may be lost; `None` while it does not wait for one.
pub(super) fn untaken_at(task: &TaskSummary) -> Option<Millis> {
    match (task.state, task.last_event_type) {
        (TaskState::Pending, _) => Some(task.entered_at.plus(UNTAKEN_MS)),
        // Its last attempt failed, and its message waits for the next.
        (TaskState::Processing, TaskEvent::AttemptFailed) => Some(task.last_event_at.plus(UNTAKEN_MS)),
        (TaskState::Processing | TaskState::Completed | TaskState::Failed, _) => None,
    }
}

/// What a task's record says about it.
fn next(record: &TaskRecord, now: Millis) -> Next {
    let enqueued_again = record.enqueued_at.map(|at| at.plus(UNTAKEN_MS));
    match (record.phase, enqueued_again) {
        (Phase::Ended, _) => Next::Nothing,
        // A worker has it. If that worker is gone, its lease says so.
        (Phase::Running, _) => Next::LookAt(now.plus(DAY_MS)),
        (Phase::Waiting, Some(at)) if at > now => Next::LookAt(at),
        (Phase::Waiting, _) => Next::Enqueue,
    }
}

impl Dispatch {
    /// Keeps the message of a task, unless its record does.
    pub(super) async fn keep_message(
        &self,
        message: &TaskMessage,
        body: &str,
        has_record: bool,
    ) -> Result<(), DispatchError> {
        if has_record && body.len() <= KEPT_MESSAGE_BYTES {
            return Ok(());
        }
        let ttl = self.now().seconds().plus(KEPT_SECONDS);
        let mut kept = KeptMessage { body: None, body_key: None, ttl };
        if body.len() <= ROW_BYTES {
            kept.body = Some(body.to_owned());
        } else {
            // A name of its own: ids of tasks are the tenants', and two may have the same.
            let key = format!("tasks/{}-message.json", self.new_event_id());
            self.payloads.put(&key, body.as_bytes().to_vec()).await?;
            kept.body_key = Some(key);
        }
        let key = keys::task_message(&message.tenant_id, &message.request_id, message.generation);
        let put = self.control.put(&key, &kept)?.send().await;
        put.map_err(|error| StoreError::new("PutItem", error))?;
        Ok(())
    }

    /// Enqueues tasks again that no worker has taken for ten days. Answers how many, and how many were left because of
    /// trouble: the next check comes back to those.
    pub(super) async fn enqueue_untaken(&self) -> Result<(usize, usize), DispatchError> {
        let (mut enqueued, mut trouble) = (0, 0);
        for shard in 0..DUE_SHARDS {
            for key in self.control.due(&keys::task_due_shard(shard), self.now(), AT_ONCE).await? {
                match self.look_at_untaken(&key).await {
                    Ok(again) => enqueued += usize::from(again),
                    Err(error) => {
                        trouble += 1;
                        tracing::error!(task = key.pk, %error, "a task that no worker takes was not enqueued again");
                    }
                }
            }
        }
        Ok((enqueued, trouble))
    }

    async fn look_at_untaken(&self, row_key: &ControlKey) -> Result<bool, DispatchError> {
        let now = self.now();
        let Some(row) = self.control.get::<SummaryRow>(row_key).await? else { return Ok(false) };
        // The index lags behind the row.
        let (Some(due_at), Some(task)) = (row.due_at, row.summary()) else { return Ok(false) };
        let Some((tenant, _)) = keys::parse_task(&row_key.pk) else { return Ok(false) };
        if due_at > now {
            return Ok(false);
        }
        let tenant = Name::stored("tenantId", tenant)?;
        let key = keys::task_record(&tenant, &task.request_id, task.generation);
        let mut enqueued = false;
        let again_at = loop {
            // One that a subscription started has no record until a worker takes it.
            let record: TaskRecord = self.control.get(&key).await?.unwrap_or_default();
            match next(&record, now) {
                Next::Nothing => break None,
                Next::LookAt(at) => break Some(at),
                Next::Enqueue => {}
            }
            if record.has_pending_claim() {
                // What it claimed before has not been sent: that comes first.
                self.repeat(&key).await?;
                continue;
            }
            let Some(body) = self.kept_message(&tenant, &task, &record).await? else {
                tracing::warn!(%tenant, task = %task.request_id, "no worker takes it, and its message is not kept here");
                break None;
            };
            if self.claim_enqueued(&key, &record, &body, now).await? {
                tracing::warn!(%tenant, task = %task.request_id, "no worker has taken it for ten days; it was enqueued again");
                enqueued = true;
                break Some(now.plus(UNTAKEN_MS));
            }
        };
        self.note_due(row_key, &row, again_at).await?;
        Ok(enqueued)
    }

    /// The message of a task as it was sent.
    async fn kept_message(
        &self,
        tenant: &Name,
        task: &TaskSummary,
        record: &TaskRecord,
    ) -> Result<Option<TaskMessage>, DispatchError> {
        let body = match &record.message {
            Some(body) => Some(body.clone()),
            None => {
                let key = keys::task_message(tenant, &task.request_id, task.generation);
                match self.control.get::<KeptMessage>(&key).await? {
                    Some(KeptMessage { body: Some(body), .. }) => Some(body),
                    Some(KeptMessage { body_key: Some(key), .. }) => {
                        let body = self.payloads.get(&key).await?;
                        body.map(|body| String::from_utf8_lossy(&body).into_owned())
                    }
                    _ => None,
                }
            }
        };
        Ok(body.map(|body| TaskMessage::parse(&body)).transpose()?)
    }

    /// Makes the record the claim of its message and sends it; `false` if the record is not as it was read.
    async fn claim_enqueued(
        &self,
        key: &ControlKey,
        record: &TaskRecord,
        message: &TaskMessage,
        now: Millis,
    ) -> Result<bool, DispatchError> {
        let queued = message.to_queue()?;
        // It lies beside its task for as long as the task waits.
        self.keep_message(message, &queued.body, record.message.is_some()).await?;
        let effects = Effects { messages: vec![queued], ..Effects::default() };
        let claim = self.pending(&Intent { key: key.clone(), effects, started: None, ttl: None }).await?;
        let attempt = match record.attempt {
            0 => "(attribute_not_exists(attempt) OR attempt = :attempt)",
            _ => "attempt = :attempt",
        };
        let update = self
            .control
            .update(key)
            .update_expression(format!("SET enqueuedAt = :now, {}", Claim::SET))
            .condition_expression(format!(
                "(attribute_not_exists(#state) OR #state <> :pending) \
                 AND (attribute_not_exists(phase) OR phase = :waiting) AND {attempt} \
                 AND (attribute_not_exists(enqueuedAt) OR enqueuedAt <= :before)"
            ))
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":before", number(now.minus(UNTAKEN_MS).get()))
            .expression_attribute_values(":waiting", text("waiting"))
            .expression_attribute_values(":attempt", number(record.attempt.into()));
        let update = claim
            .values()
            .into_iter()
            .fold(update, |update, (name, value)| update.expression_attribute_values(name, value));
        match conditionally::<TaskRecord>(update).await? {
            Answer::Done(_) => {
                self.repeat(key).await?;
                Ok(true)
            }
            Answer::Refused(_) => Ok(false),
        }
    }

    /// Comes back to a row later, or not at all, if it is as it was read: whoever folds it says itself when it is due.
    async fn note_due(
        &self,
        key: &ControlKey,
        row: &SummaryRow,
        again_at: Option<Millis>,
    ) -> Result<(), DispatchError> {
        let update = self
            .control
            .update(key)
            .condition_expression("version = :version AND attribute_exists(dueAt)")
            .expression_attribute_values(":version", AttributeValue::N(row.version.to_string()));
        let update = match again_at {
            None => update.update_expression("REMOVE dueShard, dueAt"),
            Some(at) => update
                .update_expression("SET dueAt = :again")
                .expression_attribute_values(":again", number(at.get())),
        };
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            Err(error) if error.fault == Fault::Conflict => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_task_that_waits_and_was_not_enqueued_within_ten_days_is_enqueued() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let waiting = |enqueued_at: Option<Millis>| TaskRecord { enqueued_at, ..TaskRecord::default() };
        assert_eq!(next(&waiting(None), now), Next::Enqueue);
        assert_eq!(next(&waiting(Some(now.minus(UNTAKEN_MS))), now), Next::Enqueue);
        let yesterday = now.minus(DAY_MS);
        assert_eq!(next(&waiting(Some(yesterday)), now), Next::LookAt(yesterday.plus(UNTAKEN_MS)));
        let running = TaskRecord { phase: Phase::Running, ..TaskRecord::default() };
        assert_eq!(next(&running, now), Next::LookAt(now.plus(DAY_MS)));
        let ended = TaskRecord { phase: Phase::Ended, ..TaskRecord::default() };
        assert_eq!(next(&ended, now), Next::Nothing);
    }
}
