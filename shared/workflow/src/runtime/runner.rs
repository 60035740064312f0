//! A runner: acquires the runs that it gets messages for, and makes one visit for each message.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use ledgerline_dispatch::{Dispatch, DispatchError, RUN_LEASE_MS, RunLease, RunMessage, RunTaken};
use tokio::{sync::Notify, time::Instant};

use super::{
    known_logs::{KnownLogs, RunKey},
    visit::Visit,
};
use crate::Workflows;

/// How a runner works.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// How long a lease lasts without renewal: if the runner dies, no other runner continues the run before that.
    pub lease_ms: u64,
    /// The runner keeps its lease and waits for what is due within this time: queue delays have whole seconds.
    pub patience_ms: u64,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self { lease_ms: RUN_LEASE_MS, patience_ms: 1_000 }
    }
}

/// Executes runs of the workflows that it has. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    parts: Arc<Parts>,
}

struct Parts {
    dispatch: Dispatch,
    workflows: Workflows,
    options: RunnerOptions,
    /// The runs that this process works on, each with the `Notify` that tells its visit to read the log again.
    held: Mutex<HashMap<RunKey, Arc<Notify>>>,
    known_logs: Mutex<KnownLogs>,
}

/// What became of a visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visited {
    /// The run has ended.
    Ended,
    /// It waits for something: a time, an event, a payload, a task.
    Suspended,
    /// Another visit holds the lease, and will see what is new.
    Held,
    /// Another runner acquired the run during this visit.
    Lost,
    /// There is no such run.
    Unknown,
    /// It cannot go on here, and why. It is looked at again later.
    Refused(String),
    /// The visit failed, and why. A message that was sent for it, or the sweep, brings the next visit.
    Failed(String),
}

impl Runner {
    /// A runner of `workflows`.
    pub fn new(dispatch: Dispatch, workflows: Workflows, options: RunnerOptions) -> Self {
        Self {
            parts: Arc::new(Parts {
                dispatch,
                workflows,
                options,
                held: Mutex::default(),
                known_logs: Mutex::default(),
            }),
        }
    }

    /// The workflows that it has.
    pub fn workflows(&self) -> &Workflows {
        &self.parts.workflows
    }

    /// What it works with.
    pub fn dispatch(&self) -> &Dispatch {
        &self.parts.dispatch
    }

    /// Publishes the workflows of this runner, so that the start of a run of an unknown workflow is refused.
    pub async fn publish(&self) -> Result<(), DispatchError> {
        self.parts.dispatch.publish_workflows(self.parts.workflows.versions()).await
    }

    /// Goes on with a run until it ends or has to wait. Past `deadline` no more is begun: the run is sent again instead.
    pub async fn visit(
        &self,
        message: &RunMessage,
        deadline: Option<Instant>,
    ) -> Result<Visited, DispatchError> {
        let RunMessage { tenant_id, run_id } = message;
        let dispatch = &self.parts.dispatch;
        match dispatch.take_run(tenant_id, run_id, self.parts.options.lease_ms).await? {
            RunTaken::Mine(lease) => Box::pin(self.work(*lease, deadline)).await,
            RunTaken::Held => {
                if let Some(holder) = self.held().get(&(tenant_id.clone(), run_id.clone())) {
                    holder.notify_one();
                }
                Ok(Visited::Held)
            }
            RunTaken::Ended => Ok(Visited::Ended),
            RunTaken::Unknown => Ok(Visited::Unknown),
        }
    }

    async fn work(&self, lease: RunLease, deadline: Option<Instant>) -> Result<Visited, DispatchError> {
        let key = (lease.tenant.clone(), lease.record.run_id.clone());
        let news = Arc::new(Notify::new());
        self.held().insert(key.clone(), news.clone());
        let _held = Held { runner: self, key: key.clone(), news: news.clone() };
        let patience_ms = self.parts.options.patience_ms;
        let known_log = self.known_logs().take(&key);
        let visit = Visit::new(&self.parts.dispatch, &self.parts.workflows, lease, &news, deadline);
        let (visited, known_log) = visit.with_patience(patience_ms).with_known_log(known_log).work().await;
        if !matches!(visited, Ok(Visited::Ended)) {
            self.known_logs().keep(key, known_log);
        }
        visited
    }

    fn known_logs(&self) -> std::sync::MutexGuard<'_, KnownLogs> {
        // A log is added in one go: the map is whole after a panic too.
        self.parts.known_logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<RunKey, Arc<Notify>>> {
        // Each change of the map is one call: the map is whole after a panic, too.
        self.parts.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the run off the list whichever way the visit ends.
struct Held<'a> {
    runner: &'a Runner,
    key: RunKey,
    news: Arc<Notify>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.runner.held();
        // After a lost lease a second visit of this process may have taken the place.
        if held.get(&self.key).is_some_and(|there| Arc::ptr_eq(there, &self.news)) {
            held.remove(&self.key);
        }
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("workflows", &self.parts.workflows).finish_non_exhaustive()
    }
}
