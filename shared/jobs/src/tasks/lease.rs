//! Acquiring, renewing and releasing the lease on a task. The number of the attempt is its fence: a worker
//! that wakes up after another one has taken the task has an older number, and the table refuses its writes.

use std::time::Duration;

use ledgerline_event::{
    Millis,
    catalogue::{ErrorCategory, TaskProcessingFailed},
};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::{ComponentError, Effects, PendingEffects};
use ledgerline_store::{AcquireRequest, Conditional, Phase, TaskRecord, keys};

use super::{TaskMessage, kept_messages::KEPT_MESSAGE_BYTES, message::seal};
use crate::Tasks;

/// What became of acquiring a task.
#[derive(Debug)]
pub enum Acquisition {
    /// This attempt holds it for a while.
    Acquired(Box<TaskLease>),
    /// It has ended: the message is of no use any more.
    Ended,
    /// A worker runs it.
    Held {
        /// When its lease expires, unless the worker renews it.
        until: Millis,
    },
    /// It has no attempts left.
    Exhausted {
        /// How many there were.
        attempts: u32,
    },
}

/// A task that this process holds, as far as it knows.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct TaskLease {
    pub message: TaskMessage,
    /// Which attempt this is; also the fence.
    pub attempt: u32,
    /// Attempts that count, this one among them.
    pub counted: u32,
    /// Whether there is no other attempt after this one.
    pub is_last: bool,
    pub until: Millis,
    pub worker_id: String,
    pub acquired_at: Millis,
}

/// How long a worker holds a task without renewing: half as long again as its message is hidden.
fn lease_of(extension: Duration) -> u64 {
    u64::try_from(extension.as_millis() * 3 / 2).unwrap_or(u64::MAX)
}

/// What the answer of the table to an acquisition means.
#[derive(Debug)]
enum AcquireStep {
    Acquired(Box<TaskRecord>),
    Ended,
    Held { until: Millis },
    Exhausted { attempts: u32 },
}

/// What follows from the answer to the acquisition by `request`.
fn acquire_step(answer: Conditional<TaskRecord>, request: &str, now: Millis) -> AcquireStep {
    match answer {
        Conditional::Done(record) => AcquireStep::Acquired(Box::new(record)),
        // The answer to this very request was lost, and it was sent again.
        Conditional::Refused(Some(record)) if record.acquired_by.as_deref() == Some(request) => {
            AcquireStep::Acquired(Box::new(record))
        }
        Conditional::Refused(Some(record)) if record.phase == Phase::Ended => AcquireStep::Ended,
        Conditional::Refused(Some(record)) if record.is_held(now) => {
            AcquireStep::Held { until: record.lease_until.unwrap_or(now) }
        }
        Conditional::Refused(Some(record)) => AcquireStep::Exhausted { attempts: record.counted },
        Conditional::Refused(None) => AcquireStep::Exhausted { attempts: 0 },
    }
}

/// What the answer of the table to the release of a failed attempt means.
#[derive(Debug, PartialEq, Eq)]
enum ReleaseStep {
    Released,
    /// The record still holds an earlier claim: resume that, then try again.
    ResumeThenRetry,
    /// This attempt does not hold the task any more.
    NotHeld,
}

/// What follows from the answer to the release by `attempt`.
fn release_step(answer: Conditional<TaskRecord>, attempt: u32) -> ReleaseStep {
    match answer {
        Conditional::Done(_) => ReleaseStep::Released,
        // Only the answer was lost.
        Conditional::Refused(Some(record)) if record.released_attempt == Some(attempt) => {
            ReleaseStep::Released
        }
        Conditional::Refused(Some(record))
            if record.attempt == attempt && record.phase == Phase::Running && record.has_pending_claim() =>
        {
            ReleaseStep::ResumeThenRetry
        }
        Conditional::Refused(_) => ReleaseStep::NotHeld,
    }
}

impl TaskLease {
    fn key(&self) -> keys::ControlKey {
        let message = &self.message;
        keys::task_record(&message.tenant_id, &message.request_id, message.generation)
    }
}

impl Tasks {
    /// Acquires a task if no worker holds it, it has not ended, and it may be tried again. `extension` is how
    /// long its message is hidden at a time.
    pub async fn acquire(
        &self,
        message: &TaskMessage,
        body: &str,
        worker_id: &str,
        extension: Duration,
        max_attempts: u32,
    ) -> Result<Acquisition, ComponentError> {
        let now = self.emitter.now();
        let key = keys::task_record(&message.tenant_id, &message.request_id, message.generation);
        let until = now.plus(lease_of(extension));
        let me = self.emitter.new_event_id();
        let request = AcquireRequest {
            worker_id,
            request: &me,
            now,
            until,
            max_attempts,
            message: (body.len() <= KEPT_MESSAGE_BYTES).then_some(body),
        };
        let record = match acquire_step(self.records.acquire(&key, &request).await?, &me, now) {
            AcquireStep::Acquired(record) => record,
            AcquireStep::Ended => {
                // The process that ended it may have died before it sent the event.
                self.outbox.resume(&key).await?;
                return Ok(Acquisition::Ended);
            }
            AcquireStep::Held { until } => return Ok(Acquisition::Held { until }),
            AcquireStep::Exhausted { attempts } => return Ok(Acquisition::Exhausted { attempts }),
        };
        Ok(Acquisition::Acquired(Box::new(TaskLease {
            message: message.clone(),
            attempt: record.attempt,
            counted: record.counted,
            is_last: record.counted >= max_attempts,
            until,
            worker_id: worker_id.to_owned(),
            acquired_at: now,
        })))
    }

    /// Renews the lease on a task; `false` if this attempt does not hold it any more, or the task has ended.
    pub async fn renew(&self, lease: &mut TaskLease, extension: Duration) -> Result<bool, ComponentError> {
        let until = self.emitter.now().plus(lease_of(extension));
        let held = match self.records.renew(&lease.key(), lease.attempt, until).await? {
            Conditional::Done(record) => Some(record),
            Conditional::Refused(record) => {
                record.filter(|record| record.phase == Phase::Running && record.attempt == lease.attempt)
            }
        };
        if let Some(until) = held.as_ref().and_then(|record| record.lease_until) {
            lease.until = until;
        }
        Ok(held.is_some())
    }

    /// Releases a task that failed for a passing reason, and emits that; `false` if this attempt did not hold
    /// it any more.
    pub async fn release(
        &self,
        lease: &TaskLease,
        error: &str,
        category: ErrorCategory,
    ) -> Result<bool, ComponentError> {
        let message = &lease.message;
        let failed = TaskProcessingFailed {
            request_id: message.request_id.to_string(),
            job_id: message.job_id.as_ref().map(ToString::to_string),
            attempt_number: lease.attempt,
            error: error.to_owned(),
            error_category: category,
        };
        let event = seal(&self.task_emitter(lease), &message.request_id, failed).await?;
        let effects = Effects { events: vec![event], ..Effects::default() };
        let pending = PendingEffects { key: lease.key(), effects, started: None, ttl: None };
        let claim = self.outbox.new_claim(&pending).await?;
        let error = shortened(error);
        loop {
            let released =
                self.records.release_failed(&lease.key(), lease.attempt, &error, category, &claim).await?;
            match release_step(released, lease.attempt) {
                ReleaseStep::Released => break,
                ReleaseStep::ResumeThenRetry => drop(self.outbox.resume(&lease.key()).await?),
                ReleaseStep::NotHeld => return Ok(false),
            }
        }
        self.outbox.resume(&lease.key()).await?;
        Ok(true)
    }

    /// Releases a task that nothing is wrong with: the attempt does not count. `false` if this attempt did
    /// not hold the task any more.
    pub async fn abandon(&self, lease: &TaskLease) -> Result<bool, ComponentError> {
        Ok(match self.records.release_uncounted(&lease.key(), lease.attempt).await? {
            Conditional::Done(_) => true,
            Conditional::Refused(record) => {
                record.is_some_and(|record| record.released_attempt == Some(lease.attempt))
            }
        })
    }

    /// An emitter for events about an attempt, with its context.
    pub fn task_emitter(&self, lease: &TaskLease) -> Emitter {
        self.about_task(&lease.message, "worker").with_scope(|scope| {
            scope.context.attempt = Some(lease.attempt);
            scope.context.worker_id = Some(lease.worker_id.clone());
        })
    }

    /// An emitter for events about a task.
    pub fn about_task(&self, message: &TaskMessage, component: &str) -> Emitter {
        self.emitter.with_scope(|scope| {
            let environment = scope.context.environment.take();
            scope.tenant = message.tenant_id.clone();
            scope.app = message.app_name.clone();
            scope.context = message.context.clone();
            scope.context.source = Some("system".into());
            scope.context.environment = environment;
            scope.context.origin = Some(component.to_owned());
            scope.context.generation = Some(message.generation);
        })
    }
}

/// An error as far as it is kept in the record.
pub(super) fn shortened(error: &str) -> String {
    error.chars().take(500).collect()
}

#[cfg(test)]
mod tests {
    use ledgerline_store::ClaimState;

    use super::*;

    fn running(attempt: u32, until: Millis) -> TaskRecord {
        TaskRecord {
            phase: Phase::Running,
            attempt,
            counted: attempt,
            lease_until: Some(until),
            ..TaskRecord::default()
        }
    }

    #[test]
    fn an_acquisition_that_is_refused_says_what_became_of_the_task() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let refused = |record| acquire_step(Conditional::Refused(record), "me", now);
        let until = now.plus(1);
        assert!(
            matches!(refused(Some(running(2, until))), AcquireStep::Held { until: held } if held == until)
        );
        assert!(matches!(refused(Some(running(2, now))), AcquireStep::Exhausted { attempts: 2 }));
        let ended = TaskRecord { phase: Phase::Ended, ..running(2, until) };
        assert!(matches!(refused(Some(ended)), AcquireStep::Ended));
        assert!(matches!(refused(None), AcquireStep::Exhausted { attempts: 0 }));
    }

    #[test]
    fn a_worker_whose_answer_was_lost_recognises_its_acquisition() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let mine = TaskRecord { acquired_by: Some("me".into()), ..running(1, now.plus(1)) };
        assert!(matches!(
            acquire_step(Conditional::Refused(Some(mine)), "me", now),
            AcquireStep::Acquired(_)
        ));
    }

    #[test]
    fn a_release_waits_for_the_pending_claim_of_its_own_attempt_only() {
        let now = Millis::try_from(1_767_453_739_000).unwrap();
        let refused = |record| release_step(Conditional::Refused(record), 2);
        let pending =
            |attempt| TaskRecord { claim_state: Some(ClaimState::Pending), ..running(attempt, now) };
        assert_eq!(refused(Some(pending(2))), ReleaseStep::ResumeThenRetry);
        assert_eq!(refused(Some(pending(3))), ReleaseStep::NotHeld);
        assert_eq!(refused(Some(running(2, now))), ReleaseStep::NotHeld);
        assert_eq!(refused(None), ReleaseStep::NotHeld);
        let released = TaskRecord { phase: Phase::Waiting, released_attempt: Some(2), ..running(2, now) };
        assert_eq!(refused(Some(released)), ReleaseStep::Released);
    }
}
