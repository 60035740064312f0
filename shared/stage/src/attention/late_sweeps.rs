//! Each sweep and round records when it last finished. One that last finished too long ago is reported as late; one
//! that has never finished is not reported.

use ledgerline_event::Millis;

use super::{Note, NoteKind};
use crate::Attention;
use ledgerline_outbox::{ComponentError, SweepEnd, Sweeper};

/// A sweep that last finished longer ago than this is late. The slowest of them runs every two minutes.
const LATE_MS: u64 = 10 * 60_000;

/// Whether a sweep that last finished at `ended_at` is late.
fn is_late(ended_at: Millis, now: Millis) -> bool {
    ended_at.plus(LATE_MS) < now
}

impl Attention {
    /// Sweeps and rounds that should have finished by now.
    pub(super) async fn late_sweeps(&self) -> Result<Vec<Note>, ComponentError> {
        let now = self.emitter.now();
        let mut notes = Vec::new();
        for sweeper in Sweeper::ALL {
            let Some(SweepEnd { ended_at }) = self.sweeps.end(&sweeper.key()).await? else { continue };
            if is_late(ended_at, now) {
                let message = format!(
                    "the sweep `{}` has not come to its end in time: {}",
                    sweeper.name(),
                    sweeper.impact_when_late()
                );
                notes.push(late(sweeper.name(), ended_at, message));
            }
        }
        for drainer in self.drainers.iter() {
            let period = u64::try_from(drainer.round().as_millis()).unwrap_or(u64::MAX / 4);
            let Some(visited_at) = self.sweep.last_round(drainer).await? else { continue };
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
