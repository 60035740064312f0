//! A runner: for each message it acquires the run and visits it once. [`Visit`] does the work of one visit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use ledgerline_outbox::ComponentError;
use ledgerline_runs::{RUN_LEASE_MS, RunAcquisition, RunLease, RunMessage};
use ledgerline_stage::Stage;
use tokio::{sync::Notify, time::Instant};

use super::{
    log_cache::{LogCache, RunKey},
    visit::Visit,
};
use crate::Workflows;

/// The settings of a runner.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// How long a lease lasts without renewal: if the runner dies, no other runner continues the run before that.
    pub lease_ms: u64,
    /// If something is due within this time, the runner keeps the lease and waits for it instead of sending itself a
    /// delayed message, because queue delays have whole seconds.
    pub wait_in_place_ms: u64,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self { lease_ms: RUN_LEASE_MS, wait_in_place_ms: 1_000 }
    }
}

/// Executes runs of the workflows that it has. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    parts: Arc<Parts>,
}

struct Parts {
    stage: Stage,
    workflows: Workflows,
    options: RunnerOptions,
    /// The runs that this process holds, each with the `Notify` that makes its visit read the log again.
    held: Mutex<HashMap<RunKey, Arc<Notify>>>,
    log_cache: Mutex<LogCache>,
}

/// The result of a visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visited {
    /// The run has ended.
    Ended,
    /// The run waits: for a time, an event, a payload, a task.
    Suspended,
    /// Another visit holds the lease, and will read the new entries.
    Held,
    /// Another runner acquired the run during this visit.
    Lost,
    /// There is no such run.
    Unknown,
    /// This runner cannot execute the run, for this reason. The run is tried again later.
    Refused(String),
    /// The visit failed, for this reason. The message that it sent, or the sweep, begins the next visit.
    RetryScheduled(String),
}

impl Runner {
    /// A runner of `workflows`.
    pub fn new(stage: Stage, workflows: Workflows, options: RunnerOptions) -> Self {
        Self {
            parts: Arc::new(Parts {
                stage,
                workflows,
                options,
                held: Mutex::default(),
                log_cache: Mutex::default(),
            }),
        }
    }

    /// Its workflows.
    pub fn workflows(&self) -> &Workflows {
        &self.parts.workflows
    }

    /// Its access to runs.
    pub fn stage(&self) -> &Stage {
        &self.parts.stage
    }

    /// Publishes the workflows of this runner, so that the start of a run of an unknown workflow is refused.
    pub async fn publish(&self) -> Result<(), ComponentError> {
        self.parts.stage.runs.registry.publish_workflows(self.parts.workflows.versions()).await
    }

    /// Continues a run until it ends or waits. After `deadline` no step begins: the runner enqueues the run again
    /// instead.
    pub async fn visit(
        &self,
        message: &RunMessage,
        deadline: Option<Instant>,
    ) -> Result<Visited, ComponentError> {
        let RunMessage { tenant_id, run_id } = message;
        let stage = &self.parts.stage;
        match stage.runs.leases.acquire_run(tenant_id, run_id, self.parts.options.lease_ms).await? {
            RunAcquisition::Acquired(lease) => Box::pin(self.run_visit(*lease, deadline)).await,
            RunAcquisition::Held => {
                if let Some(holder) = self.held().get(&(tenant_id.clone(), run_id.clone())) {
                    holder.notify_one();
                }
                Ok(Visited::Held)
            }
            RunAcquisition::Ended => Ok(Visited::Ended),
            RunAcquisition::Unknown => Ok(Visited::Unknown),
        }
    }

    async fn run_visit(&self, lease: RunLease, deadline: Option<Instant>) -> Result<Visited, ComponentError> {
        let key = (lease.tenant.clone(), lease.record.run_id.clone());
        let wake = Arc::new(Notify::new());
        self.held().insert(key.clone(), wake.clone());
        let _held = Held { runner: self, key: key.clone(), wake: wake.clone() };
        let wait_in_place_ms = self.parts.options.wait_in_place_ms;
        let cached_log = self.log_cache().take(&key);
        let visit = Visit::new(&self.parts.stage, &self.parts.workflows, lease, &wake, deadline);
        let visit = visit.with_wait_in_place(wait_in_place_ms).with_cached_log(cached_log);
        let (visited, cached_log) = visit.run().await;
        if !matches!(visited, Ok(Visited::Ended)) {
            self.log_cache().put(key, cached_log);
        }
        visited
    }

    fn log_cache(&self) -> std::sync::MutexGuard<'_, LogCache> {
        // Each change of the cache is one call: a panic leaves the cache consistent.
        self.parts.log_cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<RunKey, Arc<Notify>>> {
        // Each change of the map is one call: a panic leaves the map consistent.
        self.parts.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the run from the held runs, however the visit ends.
struct Held<'a> {
    runner: &'a Runner,
    key: RunKey,
    wake: Arc<Notify>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.runner.held();
        // After a lost lease, a second visit of this process may hold the run.
        if held.get(&self.key).is_some_and(|wake| Arc::ptr_eq(wake, &self.wake)) {
            held.remove(&self.key);
        }
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("workflows", &self.parts.workflows).finish_non_exhaustive()
    }
}
