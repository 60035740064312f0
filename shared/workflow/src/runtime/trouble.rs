//! What a visit that could not go on means for the next: how long to wait, and when to give the run up.

use ledgerline_dispatch::{DispatchError, RunRecord};
use ledgerline_ledger::{EmitError, Fault};

/// After so many visits that failed in a way that does not pass by itself the run fails.
pub(super) const REJECTED_MAX: u32 = 5;
/// The pause after the first visit that failed.
const FAILED_MS: u64 = 5_000;
/// The pause after the first visit of a runner that does not have the workflow.
const REFUSED_MS: u64 = 60_000;
/// The longest pause.
const LONGEST_MS: u64 = 5 * 60_000;

/// What is known of a run that could not go on, the visit that has just ended included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// How many visits in a row could not go on.
    pub(super) failed: u32,
    /// How many failed in a way that does not pass by itself.
    pub(super) rejected: u32,
    first_ms: u64,
}

impl Trouble {
    /// A visit failed with `error`; `progressed` says whether it had appended something before.
    pub(super) fn of(error: &DispatchError, run: &RunRecord, progressed: bool) -> Self {
        let rejected = run.rejected_visits();
        match does_not_pass(error) {
            // Appending is no excuse here: each attempt at a step is an entry, and its result may be what is rejected.
            true => Self {
                failed: run.failed_visits().saturating_add(1),
                rejected: rejected.saturating_add(1),
                first_ms: FAILED_MS,
            },
            false if progressed => Self { failed: 1, rejected, first_ms: FAILED_MS },
            false => Self { failed: run.failed_visits().saturating_add(1), rejected, first_ms: FAILED_MS },
        }
    }

    /// A runner does not have the workflow.
    pub(super) fn refused(run: &RunRecord) -> Self {
        let failed = run.failed_visits().saturating_add(1);
        Self { failed, rejected: run.rejected_visits(), first_ms: REFUSED_MS }
    }

    /// How long the run is left alone: twice as long each time.
    pub(super) fn pause_ms(self) -> u64 {
        let doublings = self.failed.saturating_sub(1).min(20);
        self.first_ms.saturating_mul(1 << doublings).min(LONGEST_MS)
    }
}

/// Whether the same visit would fail in the same way however often it is repeated.
fn does_not_pass(error: &DispatchError) -> bool {
    match error {
        DispatchError::Store(error)
        | DispatchError::NotCalled(error)
        | DispatchError::Emit(EmitError::Overflow(error)) => error.fault == Fault::Rejected,
        DispatchError::Emit(EmitError::Invalid(_))
        | DispatchError::Invalid(_)
        | DispatchError::Unknown { .. }
        | DispatchError::Illegal(_)
        | DispatchError::Refused(_) => true,
        DispatchError::Emit(EmitError::NotAccepted { .. }) | DispatchError::Alert(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_ledger::StoreError;
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
    fn a_rejected_visit_counts_whether_it_appended_something_or_not() {
        let error = DispatchError::Refused("no".into());
        for progressed in [false, true] {
            let trouble = Trouble::of(&error, &run(3, 2), progressed);
            assert_eq!((trouble.failed, trouble.rejected), (4, 3));
        }
    }

    #[test]
    fn a_visit_that_fails_for_another_reason_begins_to_count_anew_once_it_appended_something() {
        let down = StoreError::told("GetItem", Fault::Unavailable, "InternalServerError", "?");
        let error = DispatchError::Store(down);
        let failed = |progressed| {
            let trouble = Trouble::of(&error, &run(3, 2), progressed);
            (trouble.failed, trouble.rejected, trouble.pause_ms())
        };
        assert_eq!(failed(false), (4, 2, 40_000));
        assert_eq!(failed(true), (1, 2, 5_000));
    }
}
