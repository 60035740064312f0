//! Each sweep stores the time of its end, so that operators see when a sweep no longer runs.

use ledgerline_store::{
    SweepEnd,
    keys::{self, ControlKey},
};

use crate::Outbox;

/// The sweeps that run on a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweeper {
    /// Claims, marks, rounds and alerts.
    Dispatcher,
    /// Runs and timers.
    Runs,
    /// Tasks under way.
    HealthCheck,
}

impl Sweeper {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dispatcher, Self::Runs, Self::HealthCheck];

    /// The key of the record with the time of its last end.
    pub fn key(self) -> ControlKey {
        match self {
            Self::Dispatcher => keys::sweep_record("ENDED#DISPATCHER"),
            Self::Runs => keys::run_sweep_ended(),
            Self::HealthCheck => keys::sweep_record("ENDED#HEALTH"),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dispatcher => "dispatcher",
            Self::Runs => "runs",
            Self::HealthCheck => "health-check",
        }
    }

    /// What waits while it does not run.
    pub fn impact_when_late(self) -> &'static str {
        match self {
            Self::Dispatcher => "retries, unfinished starts and scheduled drainers wait for it",
            Self::Runs => "timers of runs and runs without a runner wait for it",
            Self::HealthCheck => "tasks whose worker is gone wait for it",
        }
    }

    /// Stores that this sweep has ended. If that fails, operators see the sweep as late too early.
    pub async fn note_end(self, outbox: &Outbox) {
        let end = SweepEnd { ended_at: outbox.emitter.now() };
        if let Err(error) = outbox.sweeps.set_end(&self.key(), end).await {
            tracing::warn!(sweep = self.name(), %error, "could not store the time of the sweep's end");
        }
    }
}
