//! Backoff of runs whose visits fail: the pause before the next visit, and when the run fails.

use ledgerline_ledger::EmitError;
use ledgerline_outbox::ComponentError;
use ledgerline_runs::RunRecord;
use ledgerline_store::Fault;

/// After this many visits with a permanent error the run fails.
pub(super) const REJECTED_MAX: u32 = 5;
/// The pause after the first visit that failed.
const FAILED_MS: u64 = 5_000;
/// The pause after the first visit of a runner that does not have the workflow.
const REFUSED_MS: u64 = 60_000;
/// The longest pause.
const LONGEST_MS: u64 = 5 * 60_000;

/// The failed visits of a run, the one that has just ended included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backoff {
    /// How many visits in a row failed.
    pub(super) failed: u32,
    /// How many had a permanent error.
    pub(super) rejected: u32,
    first_ms: u64,
}

/// What a visit did before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitProgress {
    /// It appended an entry to the log.
    Appended,
    /// It appended nothing.
    Nothing,
}

impl Backoff {
    /// The backoff after a visit that failed with `error`.
    pub(super) fn of(error: &ComponentError, run: &RunRecord, progress: VisitProgress) -> Self {
        let rejected = run.rejected_visits();
        match is_permanent(error) {
            // An appended entry does not reset this count: each attempt at a step is an entry, and its result may be what
            // is rejected.
            true => Self {
                failed: run.failed_visits().saturating_add(1),
                rejected: rejected.saturating_add(1),
                first_ms: FAILED_MS,
            },
            false if progress == VisitProgress::Appended => Self { failed: 1, rejected, first_ms: FAILED_MS },
            false => Self { failed: run.failed_visits().saturating_add(1), rejected, first_ms: FAILED_MS },
        }
    }

    /// The backoff after a visit of a runner that does not have the workflow.
    pub(super) fn refused(run: &RunRecord) -> Self {
        let failed = run.failed_visits().saturating_add(1);
        Self { failed, rejected: run.rejected_visits(), first_ms: REFUSED_MS }
    }

    /// The pause before the next visit: twice as long each time.
    pub(super) fn pause_ms(self) -> u64 {
        let doublings = self.failed.saturating_sub(1).min(20);
        self.first_ms.saturating_mul(1 << doublings).min(LONGEST_MS)
    }
}

/// Whether a visit with this error would fail in the same way each time.
fn is_permanent(error: &ComponentError) -> bool {
    match error {
        ComponentError::Store(error)
        | ComponentError::NotNotified(error)
        | ComponentError::Emit(EmitError::Overflow(error)) => error.fault == Fault::Rejected,
        ComponentError::Emit(EmitError::Invalid(_))
        | ComponentError::Invalid(_)
        | ComponentError::Unknown { .. }
        | ComponentError::Illegal(_)
        | ComponentError::Refused(_) => true,
        ComponentError::Emit(EmitError::NotAccepted { .. }) | ComponentError::Alert(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_store::StoreError;
    use serde_json::json;

    use super::*;

    fn run(failed: u32, rejected: u32) -> RunRecord {
        let record = json!({
            "runId": "run-1", "workflowName": "w", "appName": "shop", "state": "running", "createdBy": "evnt-1",
            "createdAt": 1_767_453_739_000_u64, "context": "{}", "lastError": "no",
            "failedVisits": failed, "rejectedVisits": rejected,
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_permanent_error_counts_even_after_progress() {
        let error = ComponentError::Refused("no".into());
        for progress in [VisitProgress::Nothing, VisitProgress::Appended] {
            let backoff = Backoff::of(&error, &run(3, 2), progress);
            assert_eq!((backoff.failed, backoff.rejected), (4, 3));
        }
    }

    #[test]
    fn progress_resets_the_count_of_transient_errors() {
        let down = StoreError::told("GetItem", Fault::Unavailable, "InternalServerError", "?");
        let error = ComponentError::Store(down);
        let failed = |progress| {
            let backoff = Backoff::of(&error, &run(3, 2), progress);
            (backoff.failed, backoff.rejected, backoff.pause_ms())
        };
        assert_eq!(failed(VisitProgress::Nothing), (4, 2, 40_000));
        assert_eq!(failed(VisitProgress::Appended), (1, 2, 5_000));
    }
}
