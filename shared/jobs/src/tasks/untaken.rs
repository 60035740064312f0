//! Tasks that no worker takes. SQS keeps a message for 14 days: after ten the message is enqueued again, so that a task
//! waits for its worker for as long as it takes.
//!
//! The row that people list is due ten days after the task began to wait, or three days after the last that was heard of
//! its worker, and says where to look. The task's record decides, as for everything else: it becomes the claim of the
//! message, on condition that no worker has the task and that its message was not enqueued within the last ten days.

use ledgerline_event::{Invalid, Millis, Name, Seconds, TaskSummary, catalogue::TaskState};
use ledgerline_outbox::{ComponentError, Effects, PendingEffects};
use ledgerline_store::{
    Conditional, Phase, RowPut, SummaryRow, TaskRecord,
    keys::{self, ControlKey, DUE_SHARDS},
};
use tokio::time::Instant;

use super::TaskMessage;
use crate::Health;

const HOUR_MS: u64 = 60 * 60 * 1_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// A message that is this old is enqueued again if no worker has its task: four days before SQS drops it.
const UNTAKEN_MS: u64 = 10 * DAY_MS;
/// A task that a worker held is looked at after this long without an event. A worker may take a message when it is ten
/// days old, and give it back: a day is left before SQS drops it.
const SILENT_MS: u64 = 3 * DAY_MS;
/// A worker whose lease expired this long ago is lost.
const LOST_MS: u64 = DAY_MS;
/// How long after a failure to enqueue a task it is checked again.
const AFTER_TROUBLE_MS: u64 = HOUR_MS;
/// How long a row is kept after the time of its next check: the health check may be down for a while.
const OUTLIVES_SECONDS: u64 = 30 * 24 * 60 * 60;
/// Messages of one shard and one check; the next check takes the rest.
const AT_ONCE: i32 = 50;

/// What to do about a task that has not ended, by its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Enqueue,
    LookAt(Millis),
    /// Its record has ended; the drainer will fold its end into the row.
    Nothing,
}

/// When a row is checked again.
#[derive(Clone, Copy)]
struct Again {
    at: Millis,
    /// Whether the row is kept until then, however soon its events go.
    keeps_row: bool,
}

/// When the message of a task may have to be enqueued again; `None` if the task has ended.
pub(super) fn enqueue_check_at(task: &TaskSummary) -> Option<Millis> {
    match task.state {
        TaskState::Pending => Some(task.entered_at.plus(UNTAKEN_MS)),
        // A worker that gives a task back emits nothing, and one that dies does not either.
        TaskState::Processing => Some(task.last_event_at.plus(SILENT_MS)),
        TaskState::Completed | TaskState::Failed => None,
    }
}

/// The expiry of a row that is checked at `due_at`: if it expired with its events, no check would find the task.
pub(super) fn kept_while_due(ttl: Option<Seconds>, due_at: Option<Millis>) -> Option<Seconds> {
    let needed = due_at.map(|due_at| due_at.seconds().plus(OUTLIVES_SECONDS));
    ttl.map(|ttl| needed.map_or(ttl, |needed| ttl.max(needed)))
}

/// What to do about a task, by its record and its last events.
fn next(record: &TaskRecord, task: &TaskSummary, now: Millis) -> Next {
    let lost_at = match record.phase {
        Phase::Ended => return Next::Nothing,
        Phase::Running => record.lease_until.unwrap_or(now).plus(LOST_MS),
        // A worker that takes no leases: only its heartbeats say how long it has the task.
        Phase::Waiting if record.attempt == 0 => {
            let until_ms = task.effective_until.map_or(0, |until| until.get().saturating_mul(1_000));
            // Its clock may be anywhere.
            Millis::try_from(until_ms).map_or(now, |until| until.min(now.plus(UNTAKEN_MS)))
        }
        Phase::Waiting => now,
    };
    let sent_at = [record.created_at, record.enqueued_at, task.pending_at].into_iter().flatten().max();
    let old_at = sent_at.map_or(now, |at| at.plus(UNTAKEN_MS));
    match lost_at.max(old_at) {
        at if at > now => Next::LookAt(at),
        _ => Next::Enqueue,
    }
}

impl Health {
    /// Enqueues tasks again that no worker has taken for ten days. Returns how many it enqueued, and how many failed: a
    /// later check retries those. After `deadline` it checks one task of each shard.
    pub async fn enqueue_untaken(&self, deadline: Instant) -> Result<(usize, usize), ComponentError> {
        let (mut enqueued, mut trouble) = (0, 0);
        for shard in 0..DUE_SHARDS {
            let due = self.tasks.rows.due(shard, self.emitter.now(), AT_ONCE).await?;
            for (position, key) in due.iter().enumerate() {
                if position > 0 && Instant::now() >= deadline {
                    break;
                }
                match self.look_at_untaken(key).await {
                    Ok(again) => enqueued += usize::from(again),
                    Err(error) => {
                        trouble += 1;
                        tracing::error!(task = key.pk, %error, "a task that no worker takes was not enqueued again");
                        self.postpone_untaken(key).await;
                    }
                }
            }
        }
        Ok((enqueued, trouble))
    }

    async fn look_at_untaken(&self, row_key: &ControlKey) -> Result<bool, ComponentError> {
        let now = self.emitter.now();
        let Some(row) = self.tasks.rows.get(row_key).await? else { return Ok(false) };
        // The index lags behind the row.
        if row.due_at.is_none_or(|due_at| due_at > now) {
            return Ok(false);
        }
        let task = row.summary().ok_or_else(|| Invalid::new("history", "its events cannot be read"))?;
        let (tenant, _) = keys::parse_task(&row_key.pk).ok_or_else(|| Invalid::new("PK", "is no task"))?;
        let tenant = Name::stored("tenantId", tenant)?;
        let key = keys::task_record(&tenant, &task.request_id, task.generation);
        let mut enqueued = false;
        let again = loop {
            // One that a subscription started has no record until a worker takes it.
            let record = self.tasks.records.get(&key).await?.unwrap_or_default();
            match next(&record, &task, now) {
                Next::Nothing => break Again { at: now.plus(DAY_MS), keeps_row: false },
                Next::LookAt(at) => break Again { at, keeps_row: true },
                Next::Enqueue => {}
            }
            if record.has_pending_claim() {
                // What it claimed before has not been sent: that comes first.
                self.outbox.resume(&key).await?;
                continue;
            }
            let Some(message) = self.tasks.kept_message(&tenant, &task, &record).await? else {
                tracing::warn!(%tenant, task = %task.request_id, "no worker takes the task, and there is no stored message to enqueue again");
                break Again { at: now.plus(UNTAKEN_MS), keeps_row: false };
            };
            if self.claim_enqueued(&key, &record, &message, now).await? {
                tracing::warn!(%tenant, task = %task.request_id, "no worker has taken the task for ten days; its message was enqueued again");
                enqueued = true;
                break Again { at: now.plus(UNTAKEN_MS), keeps_row: true };
            }
        };
        self.note_due(row_key, &row, again).await?;
        Ok(enqueued)
    }

    /// Makes the record the claim of its message and sends it; `false` if the record is not as it was read.
    async fn claim_enqueued(
        &self,
        key: &ControlKey,
        record: &TaskRecord,
        message: &TaskMessage,
        now: Millis,
    ) -> Result<bool, ComponentError> {
        let message = self.tasks.with_renewed_input(message).await?;
        let queued = message.to_queue()?;
        let body = queued.body.clone();
        // It lies beside its task for as long as the task waits.
        self.tasks.keep_on(&message, &body, record).await?;
        let effects = Effects { messages: vec![queued], ..Effects::default() };
        let claim = self
            .outbox
            .new_claim(&PendingEffects { key: key.clone(), effects, started: None, ttl: None })
            .await?;
        let before = now.minus(UNTAKEN_MS);
        match self.tasks.records.enqueue_again(key, record, &body, now, before, &claim).await? {
            Conditional::Done(_) => {
                self.outbox.resume(key).await?;
                Ok(true)
            }
            Conditional::Refused(_) => Ok(false),
        }
    }

    /// Sets when a row is checked again, on condition that it is as it was read: a fold that changed it has set the time.
    async fn note_due(&self, key: &ControlKey, row: &SummaryRow, again: Again) -> Result<(), ComponentError> {
        let ttl = kept_while_due(row.ttl, Some(again.at)).filter(|_| again.keeps_row);
        match self.tasks.rows.make_due(key, row, again.at, ttl).await? {
            RowPut::Applied | RowPut::Superseded => Ok(()),
        }
    }

    /// Postpones the check of a row that failed, so that the rows behind it have their turn. If that fails too, the next
    /// check finds the row again.
    async fn postpone_untaken(&self, key: &ControlKey) {
        let row = match self.tasks.rows.get(key).await {
            Ok(Some(row)) => row,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(task = key.pk, %error, "could not read the task's row; its check is not postponed");
                return;
            }
        };
        let again = Again { at: self.emitter.now().plus(AFTER_TROUBLE_MS), keeps_row: true };
        if row.due_at.is_some_and(|due_at| due_at < again.at)
            && let Err(error) = self.note_due(key, &row, again).await
        {
            tracing::error!(task = key.pk, %error, "could not postpone the check of a task");
        }
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::TaskEvent;
    use serde_json::json;

    use super::*;

    fn task(state: TaskState, heard_at: Millis) -> TaskSummary {
        let summary = json!({
            "requestId": "req-1", "state": state, "generation": 1, "enteredAt": heard_at, "lastEventAt": heard_at,
            "lastEventType": TaskEvent::Pending,
        });
        serde_json::from_value(summary).unwrap()
    }

    #[test]
    fn only_a_task_without_a_worker_whose_message_is_ten_days_old_is_enqueued() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let (long_ago, yesterday) = (now.minus(UNTAKEN_MS), now.minus(DAY_MS));
        let quiet = task(TaskState::Pending, long_ago);
        let waiting = TaskRecord { created_at: Some(long_ago), ..TaskRecord::default() };
        let enqueued = |at| TaskRecord { enqueued_at: Some(at), ..waiting.clone() };
        assert_eq!(next(&TaskRecord::default(), &quiet, now), Next::Enqueue);
        assert_eq!(next(&waiting, &quiet, now), Next::Enqueue);
        assert_eq!(next(&enqueued(long_ago), &quiet, now), Next::Enqueue);
        assert_eq!(next(&enqueued(yesterday), &quiet, now), Next::LookAt(yesterday.plus(UNTAKEN_MS)));
        let new = TaskRecord { created_at: Some(yesterday), ..TaskRecord::default() };
        assert_eq!(next(&new, &quiet, now), Next::LookAt(yesterday.plus(UNTAKEN_MS)));
        let running =
            |until| TaskRecord { phase: Phase::Running, attempt: 1, lease_until: until, ..waiting.clone() };
        assert_eq!(next(&running(Some(yesterday)), &quiet, now), Next::Enqueue);
        assert_eq!(next(&running(Some(now)), &quiet, now), Next::LookAt(now.plus(LOST_MS)));
        assert_eq!(next(&running(None), &quiet, now), Next::LookAt(now.plus(LOST_MS)));
        let ended = TaskRecord { phase: Phase::Ended, ..waiting.clone() };
        assert_eq!(next(&ended, &quiet, now), Next::Nothing);
    }

    #[test]
    fn the_heartbeat_of_a_worker_without_a_lease_counts_and_that_of_one_that_released_its_task_does_not() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let until = |at: Millis| TaskSummary {
            effective_until: Some(at.seconds()),
            ..task(TaskState::Processing, now.minus(UNTAKEN_MS))
        };
        let external = TaskRecord::default();
        assert_eq!(next(&external, &until(now.plus(DAY_MS)), now), Next::LookAt(now.plus(DAY_MS)));
        assert_eq!(next(&external, &until(now.plus(90 * DAY_MS)), now), Next::LookAt(now.plus(UNTAKEN_MS)));
        assert_eq!(next(&external, &until(now), now), Next::Enqueue);
        let released = TaskRecord { attempt: 1, released_attempt: Some(1), ..TaskRecord::default() };
        assert_eq!(next(&released, &until(now.plus(DAY_MS)), now), Next::Enqueue);
    }

    #[test]
    fn a_row_outlives_the_time_at_which_it_is_looked_at_and_one_without_expiry_gets_none() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let soon = Some(now.seconds());
        let needed = now.seconds().plus(OUTLIVES_SECONDS);
        assert_eq!(kept_while_due(soon, Some(now)), Some(needed));
        assert_eq!(kept_while_due(Some(needed.plus(1)), Some(now)), Some(needed.plus(1)));
        assert_eq!(kept_while_due(soon, None), soon);
        assert_eq!(kept_while_due(None, Some(now)), None);
    }
}
