//! From messages of the run queue to visits, and from a tick of the schedule to a sweep.
//!
//! A message only says that there may be something to do for a run. What must not be forgotten is in the run's record,
//! and the sweep finds it there.

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use futures::future::join_all;
use ledgerline_dispatch::{DispatchError, RunMessage, RunsSwept};
use ledgerline_lambda::item_failure;
use ledgerline_ledger::{Clock, telemetry::Metrics};
use ledgerline_workflow::{Runner, Visited};
use tokio::time::Instant;

/// What the function needs.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Handler {
    pub runner: Runner,
    pub metrics: Metrics,
    pub clock: Clock,
}

/// What became of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The run was looked after: the message can go.
    Done,
    /// It cannot go on here. It is looked at again later; the message can go.
    Refused,
    /// The visit failed, and the next one has a message of its own: this message can go.
    Postponed,
    /// A service did not do its part: the message comes again.
    Failed,
    /// It is no run: the message comes again, until it is a dead letter.
    NoRun,
}

impl Seen {
    /// Whether the message has done its service.
    pub fn is_done(self) -> bool {
        match self {
            Self::Done | Self::Refused | Self::Postponed => true,
            Self::Failed | Self::NoRun => false,
        }
    }
}

impl Handler {
    /// Visits the runs of a batch; what is named in the answer goes back to the queue.
    pub async fn handle(&self, batch: SqsEvent, deadline: Option<Instant>) -> SqsBatchResponse {
        let visits = batch.records.iter().map(|record| async move {
            (record, Box::pin(self.visit(record.body.as_deref().unwrap_or_default(), deadline)).await)
        });
        let mut response = SqsBatchResponse::default();
        for (record, seen) in join_all(visits).await {
            if !seen.is_done() {
                response.batch_item_failures.push(item_failure(record));
            }
        }
        response
    }

    /// Goes on with the run that a message names. Past `deadline` nothing more is begun.
    pub async fn visit(&self, body: &str, deadline: Option<Instant>) -> Seen {
        let seen = match RunMessage::parse(body) {
            Ok(message) => self.visit_run(&message, deadline).await,
            Err(error) => {
                let begins: String = body.chars().take(300).collect();
                tracing::error!(%error, begins, "a message of the run queue is no run; look at it and delete it");
                Seen::NoRun
            }
        };
        let counts = match seen {
            Seen::Done => ("Visited", 1),
            Seen::Refused => ("Refused", 1),
            Seen::Postponed | Seen::Failed => ("Failed", 1),
            Seen::NoRun => ("NoRun", 1),
        };
        self.metrics.count((self.clock)(), &[counts]);
        seen
    }

    async fn visit_run(&self, message: &RunMessage, deadline: Option<Instant>) -> Seen {
        let (tenant, run_id) = (&message.tenant_id, &message.run_id);
        match self.runner.visit(message, deadline).await {
            // The runner has said why.
            Ok(Visited::Refused(_)) => Seen::Refused,
            Ok(Visited::Failed(_)) => Seen::Postponed,
            Ok(visited) => {
                tracing::debug!(%tenant, %run_id, ?visited, "visited");
                Seen::Done
            }
            Err(error) => {
                tracing::error!(%tenant, %run_id, %error, "the run was not looked after to the end; it is tried again");
                Seen::Failed
            }
        }
    }

    /// What the schedule asks for: says which workflows there are, and looks after runs whose time has come.
    pub async fn tick(&self, deadline: Instant) -> Result<RunsSwept, DispatchError> {
        let published = self.runner.publish().await;
        // Whether others know of the workflows is no matter of the runs that there are.
        let swept = self.runner.dispatch().sweep_runs_until(deadline).await?;
        self.metrics.count((self.clock)(), &[("SentAgain", swept.sent_again), ("Timers", swept.timers)]);
        published.map(|()| swept)
    }
}
