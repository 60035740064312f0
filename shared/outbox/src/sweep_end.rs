//! Sweeps leave the time of their end, so that one that does not come any more is seen.

use ledgerline_store::{
    SweepEnd,
    keys::{self, ControlKey},
};

use crate::Outbox;

/// What sweeps regularly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweeper {
    /// Claims, marks and rounds.
    Dispatcher,
    /// Runs and timers.
    Runs,
    /// Tasks under way.
    HealthCheck,
}

impl Sweeper {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dispatcher, Self::Runs, Self::HealthCheck];

    /// Where the time of its last end is.
    pub fn key(self) -> ControlKey {
        match self {
            Self::Dispatcher => keys::sweep_place("ENDED#DISPATCHER"),
            Self::Runs => keys::run_sweep_ended(),
            Self::HealthCheck => keys::sweep_place("ENDED#HEALTH"),
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

    /// What waits while it does not come.
    pub fn brings(self) -> &'static str {
        match self {
            Self::Dispatcher => "retries, unfinished starts and scheduled drainers wait for it",
            Self::Runs => "timers of runs and runs without a runner wait for it",
            Self::HealthCheck => "tasks whose worker is gone wait for it",
        }
    }

    /// Notes in the control table that this sweep has come to its end. If that fails, the sweep shows as late too early.
    pub async fn note_end(self, outbox: &Outbox) {
        let end = SweepEnd { ended_at: outbox.emitter.now() };
        if let Err(error) = outbox.sweeps.set_end(&self.key(), end).await {
            tracing::warn!(sweep = self.name(), %error, "the end of the sweep was not noted");
        }
    }
}
