//! Sweeps leave the time of their end, and rounds theirs, so that one that does not come any more is seen.

use ledgerline_event::Millis;
use ledgerline_ledger::{
    StoreError,
    control::keys::{self, ControlKey},
};
use serde::{Deserialize, Serialize};

use super::{Note, NoteKind};
use crate::{Dispatch, DispatchError};

/// A sweep whose last end is longer ago is late. The slowest of them comes every two minutes.
const LATE_MS: u64 = 10 * 60_000;

/// What sweeps regularly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweeper {
    /// Claims, marks and rounds.
    Dispatcher,
    /// Runs and timers.
    Runs,
    /// Tasks under way.
    HealthCheck,
}

impl Sweeper {
    const ALL: [Self; 3] = [Self::Dispatcher, Self::Runs, Self::HealthCheck];

    fn key(self) -> ControlKey {
        match self {
            Self::Dispatcher => keys::sweep_place("ENDED#DISPATCHER"),
            Self::Runs => keys::run_sweep_ended(),
            Self::HealthCheck => keys::sweep_place("ENDED#HEALTH"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Dispatcher => "dispatcher",
            Self::Runs => "runs",
            Self::HealthCheck => "health-check",
        }
    }

    /// What waits while it does not come.
    fn brings(self) -> &'static str {
        match self {
            Self::Dispatcher => "retries, unfinished starts and scheduled drainers wait for it",
            Self::Runs => "timers of runs and runs without a runner wait for it",
            Self::HealthCheck => "tasks whose worker is gone wait for it",
        }
    }
}

/// When a sweep last came to its end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SweepEnd {
    ended_at: Millis,
}

/// Whether a sweep that last ended then is late.
fn is_late(ended_at: Millis, now: Millis) -> bool {
    ended_at.plus(LATE_MS) < now
}

impl Dispatch {
    /// Notes that a sweep has come to its end. If that fails, the sweep shows as late too early.
    pub(crate) async fn note_swept(&self, sweeper: Sweeper) {
        let written = match self.control.put(&sweeper.key(), &SweepEnd { ended_at: self.now() }) {
            Ok(put) => put.send().await.map(drop).map_err(|error| StoreError::new("PutItem", error)),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!(sweep = sweeper.name(), %error, "the end of the sweep was not noted");
        }
    }

    /// Sweeps and rounds that should have come to their end by now. One that never has is not known to be late.
    pub(super) async fn late_sweeps(&self) -> Result<Vec<Note>, DispatchError> {
        let now = self.now();
        let mut notes = Vec::new();
        for sweeper in Sweeper::ALL {
            let Some(SweepEnd { ended_at }) = self.control.get(&sweeper.key()).await? else { continue };
            if is_late(ended_at, now) {
                let message = format!(
                    "the sweep `{}` has not come to its end in time: {}",
                    sweeper.name(),
                    sweeper.brings()
                );
                notes.push(late(sweeper.name(), ended_at, message));
            }
        }
        for drainer in self.drainers.iter() {
            let period = u64::try_from(drainer.round().as_millis()).unwrap_or(u64::MAX / 4);
            let Some(visited_at) = self.last_round(drainer).await? else { continue };
            // A round may take as long as its period.
            if is_late(visited_at.plus(period.saturating_mul(2)), now) {
                let message =
                    format!("the round of `{}` over all tenants has not come to its end in time", drainer.id);
                notes.push(late(&drainer.id, visited_at, message));
            }
        }
        Ok(notes)
    }
}

fn late(subject: &str, since: Millis, message: String) -> Note {
    Note {
        kind: NoteKind::LateSweep,
        subject: subject.to_owned(),
        count: 1,
        at_least: false,
        since: Some(since),
        message,
        next: None,
    }
}
