//! Tasks whose worker is gone. The queue delivers such a task again by itself, unless its message is gone
//! too; so the health check sends the message once more, once for each attempt. If both messages are
//! delivered, the second worker finds the lease of the first.

use std::collections::HashMap;

use ledgerline_event::{Millis, Name, TaskSummary};
use ledgerline_ledger::control::{
    keys::{self, ControlKey},
    read,
};

use tokio::time::Instant;

use super::MINUTE_MS;
use crate::{
    Dispatch, DispatchError, Queue,
    claim::{Claim, Effects, Intent, Message},
    conditional::{Answer, conditionally, number},
    tasks::{
        message::group,
        record::{Phase, TaskRecord},
        unchanged::as_read,
    },
};

/// A worker's clock and ours may differ, and its renewal may be on its way.
const GRACE_MS: u64 = 30_000;

/// What became of a task without a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
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
fn is_gone(record: &TaskRecord, now: Millis) -> bool {
    match record.phase {
        Phase::Ended => false,
        Phase::Running => record.lease_until.is_some_and(|until| until <= now.minus(GRACE_MS)),
        // A task that its worker released waits on the queue. Otherwise its worker takes no leases, and
        // nothing but its events said that it has the task.
        Phase::Waiting => record.attempt == 0 || record.let_go != Some(record.attempt),
    }
}

impl Dispatch {
    /// Gives back those of the tasks that no worker has any more. Trouble with one leaves the others alone;
    /// it is logged, and counted in the second answer. After `deadline` it stops, but not before it has sent
    /// one, or failed to: the next check comes to the rest.
    pub(super) async fn give_back_gone(
        &self,
        tenant: &Name,
        overdue: &[&TaskSummary],
        now: Millis,
        deadline: Instant,
    ) -> Result<(HashMap<Name, Gone>, usize), DispatchError> {
        let key_of = |task: &TaskSummary| keys::task_record(tenant, &task.request_id, task.generation);
        let keys: Vec<ControlKey> = overdue.iter().map(|task| key_of(task)).collect();
        let (mut gone, mut trouble) = (HashMap::new(), 0);
        let mut records: HashMap<String, Option<TaskRecord>> = HashMap::new();
        for item in self.control.get_all(&keys).await? {
            let Some(pk) = item.get("PK").and_then(|pk| pk.as_s().ok()).cloned() else { continue };
            let record = read(item).inspect_err(|error| {
                trouble += 1;
                tracing::error!(%tenant, task = pk, %error, "the record of a task cannot be read");
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
                None => Ok(Some(Gone::NotKept)),
                Some(None) => Ok(None),
                Some(Some(record)) => self.send_again(tenant, key, task, record.clone(), now).await,
            };
            // To find that a task was given back before, or is not gone, takes no request.
            has_worked |= matches!(found, Ok(Some(Gone::SentAgain)) | Err(_));
            match found {
                Ok(found) => gone.extend(found.map(|found| (task.request_id.clone(), found))),
                Err(error) => {
                    trouble += 1;
                    tracing::error!(%tenant, task = %task.request_id, %error, "a task without a worker was not given back");
                }
            }
        }
        Ok((gone, trouble))
    }

    async fn send_again(
        &self,
        tenant: &Name,
        key: &ControlKey,
        task: &TaskSummary,
        mut record: TaskRecord,
        now: Millis,
    ) -> Result<Option<Gone>, DispatchError> {
        loop {
            if !is_gone(&record, now) {
                return Ok(None);
            }
            let Some(body) = record.message.clone() else { return Ok(Some(Gone::NotKept)) };
            // A worker that takes no leases may count its attempts itself.
            let attempt = record.attempt.max(task.attempt.unwrap_or(0));
            if record.has_pending_claim() {
                // What it claimed before has not been sent: that comes first.
                self.repeat(key).await?;
            }
            if record.given_back.is_some_and(|given_back| given_back >= attempt) {
                return Ok(Some(Gone::SentBefore));
            }
            let message = Message { queue: Queue::Tasks, group: group(tenant), body, delay_seconds: 0 };
            let effects = Effects { messages: vec![message], ..Effects::default() };
            let claim = self.pending(&Intent { key: key.clone(), effects, started: None, ttl: None }).await?;
            match self.claim_return(key, &record, attempt, &claim).await? {
                Answer::Done(_) => {
                    tracing::warn!(%tenant, task = %task.request_id, attempt, "its worker is gone; its message was sent again");
                    self.repeat(key).await?;
                    return Ok(Some(Gone::SentAgain));
                }
                Answer::Refused(None) => return Ok(None),
                // The record has changed: taken, ended, given back by another process, or with something
                // unsent in it.
                Answer::Refused(Some(there)) => record = there,
            }
        }
    }

    /// Makes the record the claim of its message, if it is as it was read and has nothing unsent in it.
    async fn claim_return(
        &self,
        key: &ControlKey,
        record: &TaskRecord,
        attempt: u32,
        claim: &Claim,
    ) -> Result<Answer<TaskRecord>, DispatchError> {
        let (update, condition) = as_read(self.control.update(key), record);
        let update = update
            .update_expression(format!("SET givenBack = :givenBack, {}", Claim::SET))
            .condition_expression(format!(
                "{condition} AND (attribute_not_exists(givenBack) OR givenBack < :givenBack)"
            ))
            .expression_attribute_values(":givenBack", number(attempt.into()));
        let update = claim
            .values()
            .into_iter()
            .fold(update, |update, (name, value)| update.expression_attribute_values(name, value));
        Ok(conditionally(update).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_without_a_worker_when_its_lease_is_over_or_its_word_is_all_there_was() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let running = |until: Millis| TaskRecord {
            phase: Phase::Running,
            attempt: 1,
            lease_until: Some(until),
            ..TaskRecord::default()
        };
        assert!(!is_gone(&running(now), now));
        assert!(!is_gone(&running(now.minus(GRACE_MS - 1)), now));
        assert!(is_gone(&running(now.minus(GRACE_MS)), now));
        assert!(is_gone(&TaskRecord::default(), now));
        let let_go = TaskRecord { attempt: 2, let_go: Some(2), ..TaskRecord::default() };
        assert!(!is_gone(&let_go, now));
        assert!(!is_gone(&TaskRecord { phase: Phase::Ended, ..TaskRecord::default() }, now));
    }
}
