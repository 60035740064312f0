//! A worker in local mode's own process.

use std::time::Duration;

use ledgerline_ledger::{Clients, Clock};
use ledgerline_stage::Stage;
use ledgerline_worker::{self as worker, Config, Stop, WorkerOptions};
use tokio::{sync::watch, task::JoinHandle};

use super::supervisor::Supervisor;

/// The grace period: a user at a terminal does not wait as long as a deployment may.
const GRACE: Duration = Duration::from_secs(5);

/// The worker, running.
pub struct LocalWorker {
    stop: watch::Sender<Stop>,
    running: JoinHandle<()>,
}

impl LocalWorker {
    pub(super) fn start(
        stage: &Stage,
        clients: &Clients,
        queue_url: String,
        config: Config,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> Self {
        let (stage, sqs) = (stage.clone(), clients.sqs.clone());
        let (stop, stopped) = watch::channel(Stop::No);
        let options = WorkerOptions {
            tasks: stage.tasks,
            sqs,
            queue_url,
            config,
            grace: GRACE,
            until_idle: false,
            clock,
        };
        let until = stopped.clone();
        let running = supervisor.run(
            "worker",
            stopped,
            |stop| *stop != Stop::No,
            move || worker::run(options.clone(), until.clone()),
        );
        Self { stop, running }
    }

    /// Lets running tasks finish, and gives back those that do not.
    pub async fn stop(self) {
        self.stop.send_replace(Stop::Gently);
        if let Err(error) = self.running.await {
            tracing::error!(%error, "the worker panicked");
        }
    }
}
