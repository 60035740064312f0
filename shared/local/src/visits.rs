//! Visits of the local dispatcher. Each visit has a tokio task of its own, so that one tenant's backlog does not delay
//! the others. A tenant that is woken during its visit is visited once more.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use ledgerline_drains::Swept;
use ledgerline_event::Name;
use ledgerline_outbox::ComponentError;
use ledgerline_stage::Stage;
use tokio::task::JoinSet;

use super::supervisor::AbortOnDrop;

/// Tenants that are visited at the same time.
const CONCURRENCY: usize = 8;

/// The visits under way, and those that wait.
#[derive(Default)]
pub(super) struct Visits {
    running: BTreeSet<Name>,
    waiting: BTreeSet<Name>,
    tasks: JoinSet<Ended>,
    sweeping: bool,
}

/// What has ended, with its result unless it failed.
pub(super) enum Ended {
    Visit { tenant: Name, result: Option<Swept> },
    Sweep(Option<Swept>),
}

impl Visits {
    /// Visits a tenant, now or as soon as a place is free.
    pub(super) fn visit(&mut self, stage: &Stage, tenant: Name) {
        self.waiting.insert(tenant);
        self.start_waiting(stage);
    }

    /// Sweeps, unless a sweep is under way.
    pub(super) fn sweep(
        &mut self,
        work: impl Future<Output = Result<Swept, ComponentError>> + Send + 'static,
    ) {
        if !std::mem::replace(&mut self.sweeping, true) {
            self.tasks.spawn(async move { Ended::Sweep(isolated(work).await) });
        }
    }

    /// Waits for a visit or sweep to end, for ever if none is under way.
    pub(super) async fn ended(&mut self, stage: &Stage) -> Ended {
        let Some(ended) = self.tasks.join_next().await else { return std::future::pending().await };
        let ended = ended.unwrap_or(Ended::Sweep(None));
        match &ended {
            Ended::Visit { tenant, .. } => drop(self.running.remove(tenant)),
            Ended::Sweep(_) => self.sweeping = false,
        }
        self.start_waiting(stage);
        ended
    }

    fn start_waiting(&mut self, stage: &Stage) {
        while self.running.len() < CONCURRENCY {
            let Some(tenant) = self.waiting.iter().find(|tenant| !self.running.contains(*tenant)).cloned()
            else {
                return;
            };
            self.waiting.remove(&tenant);
            self.running.insert(tenant.clone());
            let stage = stage.clone();
            self.tasks.spawn(async move {
                let began = Instant::now();
                let tenants = BTreeSet::from([tenant.clone()]);
                let result = isolated(async move { stage.sweep.wake(tenants, None).await }).await;
                // Each visit reads the newest events again: under a stream of writes, pause as long as the visit took,
                // up to a bound.
                tokio::time::sleep(began.elapsed().min(Duration::from_millis(200))).await;
                Ended::Visit { tenant, result }
            });
        }
    }
}

/// Runs in a tokio task of its own, so that a panic ends only this visit.
async fn isolated(
    work: impl Future<Output = Result<Swept, ComponentError>> + Send + 'static,
) -> Option<Swept> {
    match AbortOnDrop(tokio::spawn(work)).await {
        Ok(Ok(swept)) => Some(swept),
        Ok(Err(error)) => {
            tracing::error!(%error, "the dispatcher could not finish a visit or sweep; it tries again");
            None
        }
        Err(error) => {
            tracing::error!(%error, "a visit or sweep of the dispatcher crashed; it tries again");
            None
        }
    }
}
