//! Tasks that no worker can run: their attempts are used up, or the queue delivered them again and again in vain.

use ledgerline_event::catalogue::{ErrorCategory, FailureSource, TaskFailed};
use ledgerline_outbox::{ComponentError, Message, Queue, message_group};
use ledgerline_store::{EndCondition, Phase, keys};

use super::{TaskMessage, end::EndClaim, message::seal};
use crate::Tasks;

/// SQS delays a message at most this long.
const MAX_DELAY_SECONDS: u64 = 900;

/// What became of a task on the dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterEnd {
    /// It has failed now.
    Ended,
    /// A worker runs it: its message is on the task queue again.
    Enqueued,
    /// It had ended before.
    AlreadyEnded,
}

impl Tasks {
    /// Moves a message to the dead-letter queue: there are no attempts left.
    pub async fn dead_letter(&self, message: &TaskMessage, body: &str) -> Result<(), ComponentError> {
        let (group, body) = (message_group(&message.tenant_id), body.to_owned());
        self.queues
            .send_messages(vec![Message { queue: Queue::TaskDeadLetters, group, body, delay_seconds: 0 }])
            .await
    }

    /// Ends a task whose message came to the dead-letter queue, unless a worker runs it.
    pub async fn end_dead_letter(
        &self,
        message: &TaskMessage,
        body: &str,
    ) -> Result<DeadLetterEnd, ComponentError> {
        let key = keys::task_record(&message.tenant_id, &message.request_id, message.generation);
        loop {
            let now = self.emitter.now();
            let record = self.records.get(&key).await?.unwrap_or_default();
            if record.phase == Phase::Ended {
                self.outbox.resume(&key).await?;
                return Ok(DeadLetterEnd::AlreadyEnded);
            }
            if record.is_held(now) {
                let left = record.lease_until.map_or(0, |until| until.get().saturating_sub(now.get()));
                let delay_seconds = left.div_ceil(1_000).min(MAX_DELAY_SECONDS);
                let (group, body) = (message_group(&message.tenant_id), body.to_owned());
                self.queues
                    .send_messages(vec![Message { queue: Queue::Tasks, group, body, delay_seconds }])
                    .await?;
                return Ok(DeadLetterEnd::Enqueued);
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
            let emitter = self.about_task(message, "task-dlq").with_scope(|scope| {
                scope.context.attempt = (record.attempt > 0).then_some(record.attempt);
            });
            let event = seal(&emitter, &message.request_id, failed).await?;
            let condition = EndCondition::HeldByNone { attempt: record.attempt, now };
            match self.claim_end(&key, condition, event).await? {
                EndClaim::Made => return Ok(DeadLetterEnd::Ended),
                // The next iteration reads what has changed.
                EndClaim::Refused(_) => {}
            }
        }
    }
}
