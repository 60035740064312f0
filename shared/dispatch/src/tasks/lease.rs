//! Acquiring, renewing and releasing the lease on a task. The number of the attempt is its fence: a worker
//! that wakes up after another one has taken the task has an older number, and the table refuses its writes.

use std::time::Duration;

use ledgerline_event::{
    Millis,
    catalogue::{ErrorCategory, TaskProcessingFailed},
};
use ledgerline_ledger::{Emitter, control::keys};

use super::{
    TaskMessage,
    message::seal,
    record::{KEPT_MESSAGE_BYTES, Phase, TaskRecord},
};
use crate::{
    Dispatch, DispatchError,
    claim::{Claim, Effects, Intent},
    conditional::{Answer, conditionally, number, text},
};

/// What became of asking for a task.
#[derive(Debug)]
pub enum Taken {
    /// This attempt holds it for a while.
    Mine(Box<TaskLease>),
    /// It has ended: the message is of no use any more.
    Ended,
    /// A worker runs it.
    Held {
        /// When its lease expires, unless the worker renews it.
        until: Millis,
    },
    /// It was tried as often as it may be.
    Exhausted {
        /// How often.
        attempts: u32,
    },
}

/// A task that is ours, as far as we know.
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
    pub taken_at: Millis,
}

/// How long a worker holds a task without renewing: half as long again as its message is hidden.
fn lease_of(extension: Duration) -> u64 {
    u64::try_from(extension.as_millis() * 3 / 2).unwrap_or(u64::MAX)
}

impl TaskLease {
    fn key(&self) -> keys::ControlKey {
        let message = &self.message;
        keys::task_record(&message.tenant_id, &message.request_id, message.generation)
    }
}

impl Dispatch {
    /// Acquires a task if no worker holds it, it has not ended, and it may be tried again. `extension` is how
    /// long its message is hidden at a time.
    pub async fn take(
        &self,
        message: &TaskMessage,
        body: &str,
        worker_id: &str,
        extension: Duration,
        max_attempts: u32,
    ) -> Result<Taken, DispatchError> {
        let now = self.now();
        let key = keys::task_record(&message.tenant_id, &message.request_id, message.generation);
        let until = now.plus(lease_of(extension));
        let me = self.new_event_id();
        let mut set = "SET phase = :running, attempt = if_not_exists(attempt, :zero) + :one, \
                       counted = if_not_exists(counted, :zero) + :one, leaseUntil = :until, workerId = :worker, \
                       takenBy = :me"
            .to_owned();
        let mut update = self
            .control
            .update(&key)
            .condition_expression(
                "(attribute_not_exists(phase) OR phase <> :ended) \
                 AND (attribute_not_exists(leaseUntil) OR leaseUntil <= :now) \
                 AND (attribute_not_exists(counted) OR counted < :max)",
            )
            .expression_attribute_values(":running", text("running"))
            .expression_attribute_values(":ended", text("ended"))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":until", number(until.get()))
            .expression_attribute_values(":max", number(max_attempts.into()))
            .expression_attribute_values(":worker", text(worker_id))
            .expression_attribute_values(":me", text(&me));
        if body.len() <= KEPT_MESSAGE_BYTES {
            set.push_str(", message = if_not_exists(message, :message)");
            update = update.expression_attribute_values(":message", text(body));
        }
        // The version before gave some records the expiry of their cause. A task that runs must not lose its record; its
        // end says how long the record is kept.
        set.push_str(" REMOVE #ttl");
        let update = update.expression_attribute_names("#ttl", "ttl").update_expression(set);
        let record: TaskRecord = match conditionally(update).await? {
            Answer::Done(record) => record,
            // The answer to our own request was lost, and it was sent again.
            Answer::Refused(Some(record)) if record.taken_by.as_deref() == Some(me.as_str()) => record,
            Answer::Refused(Some(record)) if record.phase == Phase::Ended => {
                // The process that ended it may have died before it sent the event.
                self.repeat(&key).await?;
                return Ok(Taken::Ended);
            }
            Answer::Refused(Some(record)) if record.is_held(now) => {
                return Ok(Taken::Held { until: record.lease_until.unwrap_or(now) });
            }
            Answer::Refused(Some(record)) => return Ok(Taken::Exhausted { attempts: record.counted }),
            Answer::Refused(None) => return Ok(Taken::Exhausted { attempts: 0 }),
        };
        Ok(Taken::Mine(Box::new(TaskLease {
            message: message.clone(),
            attempt: record.attempt,
            counted: record.counted,
            is_last: record.counted >= max_attempts,
            until,
            worker_id: worker_id.to_owned(),
            taken_at: now,
        })))
    }

    /// Renews the lease on a task; `false` if this attempt does not hold it any more, or the task has ended.
    pub async fn renew(&self, lease: &mut TaskLease, extension: Duration) -> Result<bool, DispatchError> {
        let until = self.now().plus(lease_of(extension));
        let update = self
            .control
            .update(&lease.key())
            .update_expression("SET leaseUntil = :until")
            // Never back: an earlier renewal may be on its way still, and come after this one.
            .condition_expression("phase = :running AND attempt = :attempt AND leaseUntil <= :until")
            .expression_attribute_values(":until", number(until.get()))
            .expression_attribute_values(":running", text("running"))
            .expression_attribute_values(":attempt", number(lease.attempt.into()));
        let held = match conditionally::<TaskRecord>(update).await? {
            Answer::Done(record) => Some(record),
            Answer::Refused(record) => {
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
    pub async fn retry_later(
        &self,
        lease: &TaskLease,
        error: &str,
        category: ErrorCategory,
    ) -> Result<bool, DispatchError> {
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
        let intent = Intent { key: lease.key(), effects, started: None, ttl: None };
        let claim = self.pending(&intent).await?;
        loop {
            let update = self
                .let_go(
                    lease,
                    &format!(
                        "failedAttempt = :attempt, lastError = :error, lastCategory = :category, {}",
                        Claim::SET
                    ),
                )
                .expression_attribute_names("#state", "state")
                .expression_attribute_values(":error", text(&shortened(error)))
                .expression_attribute_values(":category", text(category.as_str()));
            let update = claim
                .values()
                .into_iter()
                .fold(update, |update, (name, value)| update.expression_attribute_values(name, value));
            let update = update.condition_expression(
                "phase = :running AND attempt = :attempt AND (attribute_not_exists(#state) OR #state <> :pending)",
            );
            match conditionally::<TaskRecord>(update).await? {
                Answer::Done(_) => break,
                Answer::Refused(Some(record)) if record.let_go == Some(lease.attempt) => break,
                Answer::Refused(Some(record))
                    if record.attempt == lease.attempt
                        && record.phase == Phase::Running
                        && record.has_pending_claim() =>
                {
                    self.repeat(&lease.key()).await?;
                }
                Answer::Refused(_) => return Ok(false),
            }
        }
        self.repeat(&lease.key()).await?;
        Ok(true)
    }

    /// Releases a task that nothing is wrong with: the attempt does not count. `false` if this attempt did
    /// not hold the task any more.
    pub async fn give_back(&self, lease: &TaskLease) -> Result<bool, DispatchError> {
        let update = self
            .let_go(lease, "counted = counted - :one")
            .expression_attribute_values(":one", number(1))
            .condition_expression("phase = :running AND attempt = :attempt");
        Ok(match conditionally::<TaskRecord>(update).await? {
            Answer::Done(_) => true,
            Answer::Refused(record) => record.is_some_and(|record| record.let_go == Some(lease.attempt)),
        })
    }

    fn let_go(
        &self,
        lease: &TaskLease,
        also: &str,
    ) -> aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder {
        self.control
            .update(&lease.key())
            .update_expression(format!(
                "SET phase = :waiting, letGo = :attempt, {also} REMOVE leaseUntil, takenBy"
            ))
            .expression_attribute_values(":waiting", text("waiting"))
            .expression_attribute_values(":running", text("running"))
            .expression_attribute_values(":attempt", number(lease.attempt.into()))
    }

    /// An emitter for events about an attempt, with its context.
    pub fn task_emitter(&self, lease: &TaskLease) -> Emitter {
        self.about_task(&lease.message, "worker").within(|origin| {
            origin.context.attempt = Some(lease.attempt);
            origin.context.worker_id = Some(lease.worker_id.clone());
        })
    }

    /// An emitter for events about a task.
    pub(super) fn about_task(&self, message: &TaskMessage, component: &str) -> Emitter {
        self.emitter.within(|origin| {
            let environment = origin.context.environment.take();
            origin.tenant = message.tenant_id.clone();
            origin.app = message.app_name.clone();
            origin.context = message.context.clone();
            origin.context.source = Some("system".into());
            origin.context.environment = environment;
            origin.context.origin = Some(component.to_owned());
            origin.context.generation = Some(message.generation);
        })
    }
}

/// An error as far as it is kept in the record.
pub(super) fn shortened(error: &str) -> String {
    error.chars().take(500).collect()
}
