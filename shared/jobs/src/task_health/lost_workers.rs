//! Tasks whose worker is lost. The queue delivers such a task again by itself, unless its message is lost
//! too; so the health check sends the message once more, once for each attempt. If both messages are
//! delivered, the second worker finds the lease of the first.

use std::collections::HashMap;

use ledgerline_event::{Millis, Name, TaskSummary};
use ledgerline_outbox::{ComponentError, Effects, Message, PendingEffects, Queue, message_group};
use ledgerline_store::{
    Conditional, FoundRecord, Phase, TaskRecord,
    keys::{self, ControlKey},
};
use tokio::time::Instant;

use super::MINUTE_MS;
use crate::Health;

/// A worker's clock and ours may differ, and its renewal may be on its way.
const GRACE_MS: u64 = 30_000;

/// What became of a task without a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostTask {
    /// Its message is on the queue again.
    SentAgain,
    /// An earlier check has sent its message again.
    SentBefore,
    /// Its record does not hold its message.
    NotKept,
}

/// Whether `effectiveUntil`, as the task's worker last reported it, has passed.
pub(super) fn is_overdue(task: &TaskSummary, now: Millis) -> bool {
    task.effective_until.is_some_and(|until| until.get() <= now.minus(GRACE_MS).seconds().get())
}

/// Whether no worker has the task. Its record decides.
fn is_lost(record: &TaskRecord, now: Millis) -> bool {
    match record.phase {
        Phase::Ended => false,
        Phase::Running => record.lease_until.is_some_and(|until| until <= now.minus(GRACE_MS)),
        // A task that its worker released waits on the queue. Otherwise its worker takes no leases, and
        // nothing but its events said that it has the task.
        Phase::Waiting => record.attempt == 0 || record.released_attempt != Some(record.attempt),
    }
}

impl Health {
    /// Enqueues those of the tasks again that no worker has any more. A failure with one is logged and leaves the others
    /// alone; the second part of the result counts the failures. After `deadline` it stops, but not before it has sent
    /// one message, or failed to: the next check continues.
    pub async fn resend_lost(
        &self,
        tenant: &Name,
        overdue: &[&TaskSummary],
        now: Millis,
        deadline: Instant,
    ) -> Result<(HashMap<Name, LostTask>, usize), ComponentError> {
        let key_of = |task: &TaskSummary| keys::task_record(tenant, &task.request_id, task.generation);
        let keys: Vec<ControlKey> = overdue.iter().map(|task| key_of(task)).collect();
        let (mut lost, mut trouble) = (HashMap::new(), 0);
        let mut records: HashMap<String, Option<TaskRecord>> = HashMap::new();
        for FoundRecord { pk, record } in self.tasks.records.get_all(&keys).await? {
            let record = record.inspect_err(|error| {
                trouble += 1;
                tracing::error!(%tenant, task = pk, %error, "could not read the record of a task");
            });
            records.insert(pk, record.ok());
        }
        let mut tasks: Vec<_> = overdue.iter().zip(&keys).collect();
        if !tasks.is_empty() {
            // Each minute begins with another task: one that always fails must not keep the others from their turn.
            let first = usize::try_from(now.get() / MINUTE_MS).unwrap_or(0) % tasks.len();
            tasks.rotate_left(first);
        }
        let mut has_worked = false;
        for (task, key) in tasks {
            if has_worked && Instant::now() >= deadline {
                tracing::warn!(%tenant, "the time of the check is over; the next one gives back the rest");
                break;
            }
            let found = match records.get(&key.pk) {
                // The task has no record, so there is no message in it to send.
                None => Ok(Some(LostTask::NotKept)),
                Some(None) => Ok(None),
                Some(Some(record)) => self.send_again(tenant, key, task, record.clone(), now).await,
            };
            // To find that a task was given back before, or is not lost, takes no request.
            has_worked |= matches!(found, Ok(Some(LostTask::SentAgain)) | Err(_));
            match found {
                Ok(found) => lost.extend(found.map(|found| (task.request_id.clone(), found))),
                Err(error) => {
                    trouble += 1;
                    tracing::error!(%tenant, task = %task.request_id, %error, "a task without a worker was not given back");
                }
            }
        }
        Ok((lost, trouble))
    }

    async fn send_again(
        &self,
        tenant: &Name,
        key: &ControlKey,
        task: &TaskSummary,
        mut record: TaskRecord,
        now: Millis,
    ) -> Result<Option<LostTask>, ComponentError> {
        loop {
            if !is_lost(&record, now) {
                return Ok(None);
            }
            let Some(body) = record.message.clone() else { return Ok(Some(LostTask::NotKept)) };
            // A worker that takes no leases may count its attempts itself.
            let attempt = record.attempt.max(task.attempt.unwrap_or(0));
            if record.has_pending_claim() {
                // What it claimed before has not been sent: that comes first.
                self.outbox.resume(key).await?;
            }
            if record.resent_attempt.is_some_and(|resent| resent >= attempt) {
                return Ok(Some(LostTask::SentBefore));
            }
            let message =
                Message { queue: Queue::Tasks, group: message_group(tenant), body, delay_seconds: 0 };
            let effects = Effects { messages: vec![message], ..Effects::default() };
            let claim = self
                .outbox
                .new_claim(&PendingEffects { key: key.clone(), effects, started: None, ttl: None })
                .await?;
            match self.tasks.records.send_again(key, &record, attempt, &claim).await? {
                Conditional::Done(_) => {
                    tracing::warn!(%tenant, task = %task.request_id, attempt, "its worker is lost; its message was sent again");
                    self.outbox.resume(key).await?;
                    return Ok(Some(LostTask::SentAgain));
                }
                Conditional::Refused(None) => return Ok(None),
                // The record has changed: taken, ended, given back by another process, or with something
                // unsent in it.
                Conditional::Refused(Some(there)) => record = there,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_without_a_worker_when_its_lease_has_expired_or_it_never_had_one() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let running = |until: Millis| TaskRecord {
            phase: Phase::Running,
            attempt: 1,
            lease_until: Some(until),
            ..TaskRecord::default()
        };
        assert!(!is_lost(&running(now), now));
        assert!(!is_lost(&running(now.minus(GRACE_MS - 1)), now));
        assert!(is_lost(&running(now.minus(GRACE_MS)), now));
        assert!(is_lost(&TaskRecord::default(), now));
        let released = TaskRecord { attempt: 2, released_attempt: Some(2), ..TaskRecord::default() };
        assert!(!is_lost(&released, now));
        assert!(!is_lost(&TaskRecord { phase: Phase::Ended, ..TaskRecord::default() }, now));
    }
}
