//! Tasks that no worker can run: their attempts are used up, or the queue delivered them again and again in vain.

use ledgerline_event::catalogue::{ErrorCategory, FailureSource, TaskFailed};
use ledgerline_ledger::control::keys;

use super::{
    TaskMessage,
    end::Ending,
    message::{group, seal},
    record::{Phase, TaskRecord},
};
use crate::{Dispatch, DispatchError, Queue, claim::Message, conditional::number};

/// SQS delays a message at most this long.
const MAX_DELAY_SECONDS: u64 = 900;

/// What became of a task on the dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buried {
    /// It has failed now.
    Ended,
    /// A worker runs it: its message is on the task queue again.
    PutBack,
    /// It had ended before.
    AlreadyEnded,
}

impl Dispatch {
    /// Moves a message to the dead-letter queue: there are no attempts left.
    pub async fn bury(&self, message: &TaskMessage, body: &str) -> Result<(), DispatchError> {
        let (group, body) = (group(&message.tenant_id), body.to_owned());
        self.send_messages(vec![Message { queue: Queue::TaskDeadLetters, group, body, delay_seconds: 0 }])
            .await
    }

    /// Ends a task whose message came to the dead-letter queue, unless a worker runs it.
    pub async fn dead_letter(&self, message: &TaskMessage, body: &str) -> Result<Buried, DispatchError> {
        let key = keys::task_record(&message.tenant_id, &message.request_id, message.generation);
        loop {
            let now = self.now();
            let record: TaskRecord = self.control.get(&key).await?.unwrap_or_default();
            if record.phase == Phase::Ended {
                self.repeat(&key).await?;
                return Ok(Buried::AlreadyEnded);
            }
            if record.is_held(now) {
                let left = record.lease_until.map_or(0, |until| until.get().saturating_sub(now.get()));
                let delay_seconds = left.div_ceil(1_000).min(MAX_DELAY_SECONDS);
                let (group, body) = (group(&message.tenant_id), body.to_owned());
                self.send_messages(vec![Message { queue: Queue::Tasks, group, body, delay_seconds }]).await?;
                return Ok(Buried::PutBack);
            }
            let failed = TaskFailed {
                request_id: message.request_id.to_string(),
                job_id: message.job_id.as_ref().map(ToString::to_string),
                error: record.last_error.clone().unwrap_or_else(|| match record.attempt {
                    0 => "delivered again and again, and no worker took it".into(),
                    _ => "its worker was gone before it ended, each time".into(),
                }),
                error_category: record.last_category.unwrap_or(ErrorCategory::ServerError),
                retry_count: record.counted,
                source: FailureSource::Dlq,
            };
            let emitter = self.about_task(message, "task-dlq").within(|origin| {
                origin.context.attempt = (record.attempt > 0).then_some(record.attempt);
            });
            let event = seal(&emitter, &message.request_id, failed).await?;
            // The record must be as it was read: no worker has taken the task since, and none holds it.
            let mut condition = "(attribute_not_exists(phase) OR phase <> :ended) \
                                 AND (attribute_not_exists(leaseUntil) OR leaseUntil <= :now)"
                .to_owned();
            let mut values = vec![(":now", number(now.get()))];
            match record.attempt {
                0 => condition.push_str(" AND (attribute_not_exists(attempt) OR attempt = :attempt)"),
                _ => condition.push_str(" AND attempt = :attempt"),
            }
            values.push((":attempt", number(record.attempt.into())));
            let ending = Ending { key: key.clone(), event, condition: &condition, also: "", values };
            if self.claim_end(ending).await?.is_ok() {
                return Ok(Buried::Ended);
            }
        }
    }
}
