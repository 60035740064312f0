//! From dead letters of the task queue to ended tasks.
//!
//! A message leaves the queue only when its task has ended or is on the task queue again. A message that is no task
//! stays: it names no tenant that could be notified, and the `NoTask` alarm notifies an operator.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use futures::future::join_all;
use ledgerline_jobs::{DeadLetterEnd, TaskMessage};
use ledgerline_lambda::item_failure;
use ledgerline_ledger::{Clock, telemetry::Metrics};
use ledgerline_outbox::ComponentError;
use ledgerline_stage::Stage;

/// Ends the tasks of dead letters.
#[allow(missing_docs)]
pub struct Handler {
    pub stage: Stage,
    pub metrics: Metrics,
    pub clock: Clock,
}

/// The outcome of one message.
enum Outcome {
    Handled(DeadLetterEnd),
    NoTask,
    Failed(ComponentError),
}

impl Handler {
    /// Ends the task of each message or puts it back; the messages that the answer names go back to the queue.
    pub async fn handle(&self, batch: SqsEvent) -> SqsBatchResponse {
        let outcomes = join_all(
            batch.records.iter().map(|record| async move { (record, Box::pin(self.end_task(record)).await) }),
        )
        .await;
        let mut response = SqsBatchResponse::default();
        let (mut ended, mut put_back, mut no_task, mut failed) = (0, 0, 0, 0);
        for (record, outcome) in outcomes {
            let message_id = record.message_id.as_deref();
            match outcome {
                Outcome::Handled(DeadLetterEnd::Ended) => ended += 1,
                Outcome::Handled(DeadLetterEnd::Enqueued) => put_back += 1,
                Outcome::Handled(DeadLetterEnd::AlreadyEnded) => {}
                Outcome::NoTask => {
                    no_task += 1;
                    response.batch_item_failures.push(item_failure(record));
                }
                Outcome::Failed(error) => {
                    tracing::error!(message_id, %error, "the task was not ended; its message goes back to the queue");
                    failed += 1;
                    response.batch_item_failures.push(item_failure(record));
                }
            }
        }
        let counts = [("TasksEnded", ended), ("PutBack", put_back), ("NoTask", no_task), ("Failed", failed)];
        self.metrics.count((self.clock)(), &counts);
        response
    }

    async fn end_task(&self, record: &SqsMessage) -> Outcome {
        let body = record.body.as_deref().unwrap_or_default();
        let message = match TaskMessage::parse(body) {
            Ok(message) => message,
            Err(error) => {
                let message_id = record.message_id.as_deref();
                tracing::error!(message_id, %error, "a dead letter is no task and stays where it is; look at it and delete it");
                return Outcome::NoTask;
            }
        };
        match self.stage.tasks.end_dead_letter(&message, body).await {
            Ok(outcome) => {
                let (tenant, task) = (&message.tenant_id, &message.request_id);
                tracing::info!(%tenant, %task, generation = message.generation, ?outcome, "dead letter handled");
                Outcome::Handled(outcome)
            }
            Err(error) => Outcome::Failed(error),
        }
    }
}
