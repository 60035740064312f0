//! From messages of the run queue to visits, and from a tick of the schedule to a sweep.
//!
//! A message only says that a run may have something to do. The run's record says when it is due, and the sweep finds it there.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use futures::future::join_all;
use ledgerline_lambda::item_failure;
use ledgerline_ledger::{Clock, telemetry::Metrics};
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{RunMessage, RunsSwept};
use ledgerline_workflow::{Runner, Visited};
use tokio::time::Instant;

/// Executes the runs that messages name, and sweeps.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Handler {
    pub runner: Runner,
    pub metrics: Metrics,
    pub clock: Clock,
}

/// The outcome of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOutcome {
    /// The runner executed the run as far as it goes; the message is deleted.
    Done,
    /// This runner has no such workflow or version. The run is tried again later; the message is deleted.
    Refused,
    /// The visit failed, and the next visit has a message of its own; this message is deleted.
    Postponed,
    /// A service failed; the queue delivers the message again.
    Failed,
    /// It names no run; the queue delivers it again until it is a dead letter.
    NoRun,
}

impl MessageOutcome {
    /// Whether the message can be deleted.
    pub fn is_done(self) -> bool {
        match self {
            Self::Done | Self::Refused | Self::Postponed => true,
            Self::Failed | Self::NoRun => false,
        }
    }
}

impl Handler {
    /// Executes the runs of a batch; the messages that the answer names go back to the queue.
    pub async fn handle(&self, batch: SqsEvent, deadline: Option<Instant>) -> SqsBatchResponse {
        let visits = batch.records.iter().map(|record| async move {
            (record, Box::pin(self.visit(record.body.as_deref().unwrap_or_default(), deadline)).await)
        });
        let mut response = SqsBatchResponse::default();
        for (record, outcome) in join_all(visits).await {
            if !outcome.is_done() {
                response.batch_item_failures.push(item_failure(record));
            }
        }
        response
    }

    /// Continues the run that a message names. After `deadline` it begins nothing more.
    pub async fn visit(&self, body: &str, deadline: Option<Instant>) -> MessageOutcome {
        let outcome = match RunMessage::parse(body) {
            Ok(message) => self.visit_run(&message, deadline).await,
            Err(error) => {
                let begins: String = body.chars().take(300).collect();
                tracing::error!(%error, begins, "a message of the run queue is no run; look at it and delete it");
                MessageOutcome::NoRun
            }
        };
        let counts = match outcome {
            MessageOutcome::Done => ("Visited", 1),
            MessageOutcome::Refused => ("Refused", 1),
            MessageOutcome::Postponed | MessageOutcome::Failed => ("Failed", 1),
            MessageOutcome::NoRun => ("NoRun", 1),
        };
        self.metrics.count((self.clock)(), &[counts]);
        outcome
    }

    async fn visit_run(&self, message: &RunMessage, deadline: Option<Instant>) -> MessageOutcome {
        let (tenant, run_id) = (&message.tenant_id, &message.run_id);
        match self.runner.visit(message, deadline).await {
            // The runner has logged why.
            Ok(Visited::Refused(_)) => MessageOutcome::Refused,
            Ok(Visited::RetryScheduled(_)) => MessageOutcome::Postponed,
            Ok(visited) => {
                tracing::debug!(%tenant, %run_id, ?visited, "visited");
                MessageOutcome::Done
            }
            Err(error) => {
                tracing::error!(%tenant, %run_id, %error, "run execution failed; the message will be redelivered");
                MessageOutcome::Failed
            }
        }
    }

    /// The work of the schedule: publishes the workflows, and sweeps the runs that are due.
    pub async fn tick(&self, deadline: Instant) -> Result<RunsSwept, ComponentError> {
        let published = self.runner.publish().await;
        // The sweep also runs if the publishing failed: existing runs do not depend on it.
        let swept = self.runner.stage().run_sweep.sweep_runs_until(deadline).await?;
        self.metrics.count((self.clock)(), &[("SentAgain", swept.sent_again), ("Timers", swept.timers)]);
        published.map(|()| swept)
    }
}
