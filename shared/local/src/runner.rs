//! A runner in local mode's own process, if the caller passes workflows. Without them the runners of other programs poll
//! the run queue.

use std::{sync::Arc, time::Duration};

use ledgerline_embedded::{QueueError, Queues, Receive};
use ledgerline_ledger::{Clock, telemetry::Metrics};
use ledgerline_runner::{Handler, Polling, QueueMessage, RunQueue, poll};
use ledgerline_stage::Stage;
use ledgerline_store::StoreError;
use ledgerline_workflow::{Runner, RunnerOptions, Workflows};
use tokio::{sync::watch, task::JoinHandle};

use super::{local_mode::STOP_WITHIN, supervisor::Supervisor};

const LONG_POLL: Duration = Duration::from_secs(20);
/// Runs that are executed at the same time: most of them wait for the store or for a step.
const CONCURRENCY: usize = 32;

/// The run queue, without the way over HTTP.
struct LocalRunQueue {
    queues: Arc<Queues>,
    queue: String,
}

impl RunQueue for LocalRunQueue {
    async fn receive(&self, max: usize) -> Result<Vec<QueueMessage>, StoreError> {
        let wanted = Receive { max, wait: Some(LONG_POLL), visibility_seconds: None };
        let received = self.queues.receive(&self.queue, wanted).await;
        let received = received.map_err(|error| store_error("ReceiveMessage", &error))?;
        Ok(received.into_iter().map(|one| QueueMessage { body: one.body, receipt: one.receipt }).collect())
    }

    async fn delete(&self, receipt: &str) -> Result<(), StoreError> {
        self.queues.delete(&self.queue, receipt).map_err(|error| store_error("DeleteMessage", &error))
    }
}

fn store_error(operation: &'static str, error: &QueueError) -> StoreError {
    StoreError::unreadable(operation, error.to_string())
}

/// The runner, running.
pub(super) struct LocalRunner {
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

impl LocalRunner {
    pub(super) async fn start(
        stage: &Stage,
        workflows: Workflows,
        queues: Arc<Queues>,
        queue: String,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> anyhow::Result<Self> {
        // A caller that passes workflows leaves all runs to this runner: an old lease is that of a dead process.
        stage.run_sweep.expire_run_leases().await?;
        let runner = Runner::new(stage.clone(), workflows, RunnerOptions::default());
        runner.publish().await?;
        let handler = Handler { runner, metrics: Metrics::silent(), clock };
        let (stop, stopped) = watch::channel(false);
        let until = stopped.clone();
        let running = supervisor.run(
            "runner",
            stopped,
            |stop| *stop,
            move || {
                let inbox = LocalRunQueue { queues: queues.clone(), queue: queue.clone() };
                let polling = Polling { concurrency: CONCURRENCY, grace: STOP_WITHIN };
                poll(handler.clone(), inbox, polling, until.clone())
            },
        );
        Ok(Self { stop, running })
    }

    /// Takes no more runs, and lets those in flight reach a point at which they can pause.
    pub(super) async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.running.await {
            tracing::error!(%error, "the runner panicked");
        }
    }
}
