use std::sync::Arc;

use futures::future::BoxFuture;
use ledgerline_alert::Slack;
use ledgerline_ledger::{Emitter, telemetry::Metrics};
use ledgerline_store::{Claims, ControlTable, FirstRequests, IdempotencyMarkers, Payloads, Sweeps};

use crate::{ComponentError, NewRun, Queues, SentEvent};

/// An effect that the component of runs executes.
#[derive(Clone, Debug)]
pub enum RunEffect {
    /// A run begins.
    Begin(NewRun),
    /// An event is delivered to runs.
    Deliver(SentEvent),
}

/// Executes effects on runs. The component of runs passes it in, since that component depends on the outbox.
pub type RunEffects = Arc<dyn Fn(RunEffect) -> BoxFuture<'static, Result<(), ComponentError>> + Send + Sync>;

/// The outbox of one stage. Cheap to clone.
#[derive(Clone)]
pub struct Outbox {
    pub(crate) claims: Claims,
    pub(crate) first_requests: FirstRequests,
    pub(crate) markers: IdempotencyMarkers,
    pub(crate) sweeps: Sweeps,
    pub(crate) payloads: Payloads,
    pub(crate) emitter: Emitter,
    pub(crate) queues: Queues,
    /// Sends alerts. Without it, alerts wait for a process that has one.
    pub(crate) slack: Option<Arc<Slack>>,
    pub(crate) metrics: Metrics,
    pub(crate) run_effects: RunEffects,
}

impl Outbox {
    /// An outbox that executes effects on runs by `run_effects`.
    pub fn new(
        control: ControlTable,
        payloads: Payloads,
        emitter: Emitter,
        queues: Queues,
        slack: Option<Arc<Slack>>,
        metrics: Metrics,
        run_effects: RunEffects,
    ) -> Self {
        Self {
            claims: Claims::new(control.clone()),
            first_requests: FirstRequests::new(control.clone()),
            markers: IdempotencyMarkers::new(control.clone()),
            sweeps: Sweeps::new(control),
            payloads,
            emitter,
            queues,
            slack,
            metrics,
            run_effects,
        }
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").finish_non_exhaustive()
    }
}
