//! Visits that took long and failed. For a while, wake-ups leave such a tenant to the sweep: a wake-up handles a batch of the
//! stream, which holds the events of other tenants too, and the next batch waits for it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::dirty_marks::Visit;

/// A visit that fails sooner than this hardly delays other tenants.
const SLOW: Duration = Duration::from_secs(2);
/// For this long only the sweep visits such a tenant.
const LEFT_FOR: Duration = Duration::from_secs(5 * 60);

/// What this process knows about slow visits.
#[derive(Debug, Default)]
pub(crate) struct SlowVisits(Mutex<BTreeMap<Visit, Instant>>);

impl SlowVisits {
    /// Records that a visit, which began at `began`, has failed.
    pub(crate) fn note_failure(&self, visit: &Visit, began: Instant) {
        let now = Instant::now();
        let mut slow = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slow.retain(|_, until| *until > now);
        if now.duration_since(began) >= SLOW {
            slow.insert(visit.clone(), now + LEFT_FOR);
        }
    }

    /// Records that a visit has succeeded.
    pub(crate) fn note_success(&self, visit: &Visit) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(visit);
    }

    /// Whether wake-ups leave this visit to the sweep.
    pub(crate) fn is_left_to_sweeps(&self, visit: &Visit) -> bool {
        let slow = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slow.get(visit).is_some_and(|until| *until > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::Name;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_visit_that_took_long_and_failed_is_left_to_sweeps_for_a_while() {
        let visit = |tenant: &str| (Name::new("t", tenant).unwrap(), Name::new("d", "jobs").unwrap());
        let slow = SlowVisits::default();
        let began = Instant::now();
        slow.note_failure(&visit("quick"), began);
        tokio::time::advance(SLOW).await;
        slow.note_failure(&visit("slow"), began);
        slow.note_failure(&visit("mended"), began);
        slow.note_success(&visit("mended"));
        let left = ["quick", "slow", "mended"].map(|tenant| slow.is_left_to_sweeps(&visit(tenant)));
        assert_eq!(left, [false, true, false]);
        tokio::time::advance(LEFT_FOR).await;
        assert!(!slow.is_left_to_sweeps(&visit("slow")));
    }
}
