//! The lease of a drainer for one tenant: acquired with a new fence, renewed, written with, released.
//!
//! A pass announces its watermarks before it reads: in the write that acquires the lease, or, for a further pass, in
//! the write that ended the previous one.

use ledgerline_event::{Millis, Name};
use ledgerline_store::{
    Conditional, DrainState, DrainStates, LeaseChange, LeaseRequest, LeaseWrite, Progress, StoreError,
    Watermarks,
};

/// How long a lease lasts without being renewed.
pub const LEASE_MS: u64 = 60_000;
/// The watermarks stay this far behind the clock, so that events that arrive in time are read in order.
pub const SETTLE_MS: u64 = 5_000;

/// A lease that is held, as far as this process knows.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) tenant: Name,
    pub(crate) drainer: Name,
    pub(crate) state: DrainState,
    /// Up to where this pass reads.
    pub(crate) watermarks: Watermarks,
}

/// What became of a request for the lease.
#[derive(Debug)]
pub(crate) enum Acquired {
    Held(Box<Lease>),
    /// Another process holds it; once woken, that process looks again before it releases the lease.
    Contended {
        fence: u64,
    },
    /// This drainer has nothing to do for this tenant.
    NoState,
}

/// What becomes of the lease in the write of the progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThenLease {
    /// Renew it: this pass goes on.
    Renew,
    /// Renew it, and announce the watermarks of the next pass, which begins.
    AnnounceNextPass,
    /// Release it, unless a wake-up has come.
    Release,
}

/// What became of a write on condition of the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// A wake-up has come: one more pass is due, and nothing of the progress is written yet.
    Woken {
        wake: u64,
    },
    /// This visit does not hold the lease any more.
    Lost,
}

/// Acquires, renews and releases leases.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    pub(crate) states: DrainStates,
}

/// What a refused request for the lease means.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// The lease is this visit's already, with these watermarks: the answer to its own request was lost.
    Ours(Watermarks),
    /// Another visit holds the lease.
    Contended { fence: u64 },
    /// The lease is free, but higher watermarks were announced. Retry with these: never below the announced ones.
    Retry(Watermarks),
}

impl Refusal {
    fn of(state: &DrainState, owner: &str, watermarks: Watermarks, now: Millis) -> Self {
        if state.owner.as_deref() == Some(owner) {
            return Self::Ours(watermarks.not_below(&state.watermarks));
        }
        if state.owner.is_some() && state.lease_until.is_some_and(|until| until > now) {
            return Self::Contended { fence: state.fence };
        }
        // A process whose clock is ahead of this one's has announced higher watermarks: read up to those.
        Self::Retry(watermarks.not_below(&state.watermarks))
    }
}

fn settled(now: Millis) -> Watermarks {
    Watermarks::at(now.minus(SETTLE_MS))
}

impl Leases {
    /// Acquires the lease if it is free, and announces the watermarks in the same write.
    pub(crate) async fn acquire(
        &self,
        tenant: &Name,
        drainer: &Name,
        owner: &str,
        now: Millis,
    ) -> Result<Acquired, StoreError> {
        let mut watermarks = settled(now);
        let held = |state: Box<DrainState>, watermarks| {
            let (tenant, drainer) = (tenant.clone(), drainer.clone());
            Ok(Acquired::Held(Box::new(Lease { tenant, drainer, state: *state, watermarks })))
        };
        loop {
            let until = now.plus(LEASE_MS);
            let state = match self.states.acquire((tenant, drainer), owner, &watermarks, now, until).await? {
                LeaseRequest::Acquired(state) => return held(state, watermarks),
                LeaseRequest::Missing => return Ok(Acquired::NoState),
                LeaseRequest::Refused(state) => state,
            };
            match Refusal::of(&state, owner, watermarks, now) {
                Refusal::Ours(watermarks) => return held(state, watermarks),
                Refusal::Contended { fence } => return Ok(Acquired::Contended { fence }),
                Refusal::Retry(higher) => watermarks = higher,
            }
        }
    }

    /// Renews the lease.
    pub(crate) async fn renew(&self, lease: &Lease, now: Millis) -> Result<LeaseWrite, StoreError> {
        let drain_key = (&lease.tenant, &lease.drainer);
        self.states.renew(drain_key, lease.state.fence, now.plus(LEASE_MS)).await
    }

    /// Writes what a pass has achieved, if this visit still holds the lease.
    pub(crate) async fn write(
        &self,
        lease: &mut Lease,
        progress: &Progress,
        then: ThenLease,
        now: Millis,
    ) -> Result<Written, StoreError> {
        let until = now.plus(LEASE_MS);
        let watermarks = match then {
            ThenLease::AnnounceNextPass => settled(now).not_below(&lease.state.watermarks),
            ThenLease::Renew | ThenLease::Release => lease.watermarks.clone(),
        };
        let change = match then {
            ThenLease::Renew => LeaseChange::Renew { until },
            ThenLease::AnnounceNextPass => LeaseChange::Announce { until, watermarks: &watermarks },
            ThenLease::Release => LeaseChange::Release { wake: lease.state.wake },
        };
        let (drain_key, fence) = ((&lease.tenant, &lease.drainer), lease.state.fence);
        match self.states.write_progress(drain_key, fence, progress, change, now).await? {
            Conditional::Done(state) => {
                // The lease keeps the wake count from the beginning of the pass. The release is on condition of that
                // count, so it fails if a wake-up came during the pass.
                let wake = if then == ThenLease::AnnounceNextPass { state.wake } else { lease.state.wake };
                lease.state = DrainState { wake, ..state };
                lease.watermarks = watermarks;
                Ok(Written::Done)
            }
            Conditional::Refused(Some(state)) if state.fence == fence && state.owner.is_some() => {
                Ok(Written::Woken { wake: state.wake })
            }
            Conditional::Refused(_) => Ok(Written::Lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_store::AnnouncedWatermarks;

    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(1_767_453_739_000 + ms).unwrap()
    }

    fn held_by(owner: Option<&str>, until: u64) -> DrainState {
        let announced = Watermarks::at(at(40));
        DrainState {
            owner: owner.map(str::to_owned),
            lease_until: Some(at(until)),
            fence: 7,
            watermarks: AnnouncedWatermarks {
                events: Some(announced.events),
                late_arrivals: Some(announced.late_arrivals),
            },
            ..DrainState::default()
        }
    }

    #[test]
    fn a_lease_of_another_visit_is_contended_until_it_expires() {
        let refusal =
            |until, now| Refusal::of(&held_by(Some("other"), until), "me", Watermarks::at(at(1)), at(now));
        assert_eq!(refusal(100, 99), Refusal::Contended { fence: 7 });
        assert_eq!(refusal(100, 100), Refusal::Retry(Watermarks::at(at(40))));
    }

    #[test]
    fn a_free_lease_whose_watermarks_are_ahead_is_asked_for_again_with_those() {
        let free = held_by(None, 0);
        let behind = Refusal::of(&free, "me", Watermarks::at(at(1)), at(50));
        assert_eq!(behind, Refusal::Retry(Watermarks::at(at(40))));
        let ahead = Refusal::of(&free, "me", Watermarks::at(at(60)), at(50));
        assert_eq!(ahead, Refusal::Retry(Watermarks::at(at(60))));
    }

    #[test]
    fn a_lease_whose_answer_was_lost_is_held_with_the_watermarks_that_it_announced() {
        let ours = Refusal::of(&held_by(Some("me"), 100), "me", Watermarks::at(at(1)), at(50));
        assert_eq!(ours, Refusal::Ours(Watermarks::at(at(40))));
    }
}
