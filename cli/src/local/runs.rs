//! Runs in local mode: the sweep in any case, and a runner in the same process if it is given workflows. Without them
//! the run queue is for programs of their own.

use std::{sync::Arc, time::Duration};

use ledgerline_dispatch::Dispatch;
use ledgerline_embedded::{QueueError, Queues, Receive};
use ledgerline_ledger::{Clock, StoreError, telemetry::Metrics};
use ledgerline_workflow::{Runner, RunnerOptions, Workflows};
use tokio::{sync::watch, task::JoinHandle};
use workflow_runner::{Handler, Inbox, Letter, Polling, poll};

use super::{STOP_WITHIN, supervise::Supervisor};

const LONG_POLL: Duration = Duration::from_secs(20);
/// Runs at the same time: most of them wait for the store or for a step.
const CONCURRENCY: usize = 32;

/// The run queue, without the way over HTTP.
struct LocalInbox {
    queues: Arc<Queues>,
    queue: String,
}

impl Inbox for LocalInbox {
    async fn receive(&self, max: usize) -> Result<Vec<Letter>, StoreError> {
        let wanted = Receive { max, wait: Some(LONG_POLL), visibility_seconds: None };
        let received = self.queues.receive(&self.queue, wanted).await;
        let received = received.map_err(|error| told("ReceiveMessage", &error))?;
        Ok(received.into_iter().map(|one| Letter { body: one.body, receipt: one.receipt }).collect())
    }

    async fn delete(&self, receipt: &str) -> Result<(), StoreError> {
        self.queues.delete(&self.queue, receipt).map_err(|error| told("DeleteMessage", &error))
    }
}

fn told(operation: &'static str, error: &QueueError) -> StoreError {
    StoreError::unreadable(operation, error.to_string())
}

/// A runner in this process.
pub(super) struct LocalRunner {
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

impl LocalRunner {
    pub(super) async fn start(
        dispatch: &Dispatch,
        workflows: Workflows,
        queues: Arc<Queues>,
        queue: String,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> anyhow::Result<Self> {
        // A caller that passes workflows leaves all runs to this runner: an old lease is that of a dead process.
        dispatch.break_run_leases().await?;
        let runner = Runner::new(dispatch.clone(), workflows, RunnerOptions::default());
        runner.publish().await?;
        let handler = Handler { runner, metrics: Metrics::silent(), clock };
        let (stop, stopped) = watch::channel(false);
        let until = stopped.clone();
        let running = supervisor.run(
            "workflow-runner",
            stopped,
            |stop| *stop,
            move || {
                let inbox = LocalInbox { queues: queues.clone(), queue: queue.clone() };
                let polling = Polling { concurrency: CONCURRENCY, grace: STOP_WITHIN };
                poll(handler.clone(), inbox, polling, until.clone())
            },
        );
        Ok(Self { stop, running })
    }

    /// Takes no more runs, and lets those in flight come to a halt.
    pub(super) async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.running.await {
            tracing::error!(%error, "the runner of workflows ended badly");
        }
    }
}

/// Sweeps the runs that are due, as often as on AWS. The first sweep is at once, for what an earlier process left.
pub(super) async fn sweep(dispatch: Dispatch, every: Duration, mut stopped: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(every);
    // A machine that slept makes up for nothing: one sweep sees everything.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        let dispatch = dispatch.clone();
        match tokio::spawn(async move { dispatch.sweep_runs().await }).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(%error, "runs could not be swept; the next minute tries again"),
            Err(error) => {
                tracing::error!(%error, "the sweep of runs crashed; the next minute tries again")
            }
        }
    }
}
