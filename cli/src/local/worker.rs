//! A worker in local mode's own process.

use std::time::Duration;

use ledgerline_dispatch::Dispatch;
use ledgerline_ledger::{Clients, Clock};
use tokio::{sync::watch, task::JoinHandle};

use super::supervise::Supervisor;
use crate::worker::{self, Config, Stop, WorkerOptions};

/// A person at a terminal does not wait as long as a deployment may.
const GRACE: Duration = Duration::from_secs(5);

/// The worker, running.
pub(crate) struct LocalWorker {
    stop: watch::Sender<Stop>,
    running: JoinHandle<()>,
}

impl LocalWorker {
    pub(crate) fn start(
        dispatch: &Dispatch,
        clients: &Clients,
        queue_url: String,
        config: Config,
        clock: Clock,
        supervisor: &Supervisor,
    ) -> Self {
        let (dispatch, sqs) = (dispatch.clone(), clients.sqs.clone());
        let (stop, stopped) = watch::channel(Stop::No);
        let options = WorkerOptions { dispatch, sqs, queue_url, config, grace: GRACE, once: false, clock };
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
    pub(crate) async fn stop(self) {
        self.stop.send_replace(Stop::Gently);
        if let Err(error) = self.running.await {
            tracing::error!(%error, "the worker ended badly");
        }
    }
}
