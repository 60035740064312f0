//! Acquiring, renewing and releasing the lease on a run. The lease keeps two runners from executing the same
//! step at the same time; the log decides what may be written.

use super::{LookPositions, RunRecord};
use crate::RunLeases;
use ledgerline_event::{Millis, Name};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{Conditional, NewRunLease, RunRelease, VisitEnd};

/// How long a runner has a run without renewing.
pub const RUN_LEASE_MS: u64 = 60_000;

/// Characters of an error that the record keeps: errors may quote what they are about.
const ERROR_CHARS: usize = 1_000;

/// What became of acquiring a run.
#[derive(Debug)]
pub enum RunAcquisition {
    /// This runner holds it for a while.
    Acquired(Box<RunLease>),
    /// Another runner holds it; if the run is woken, that runner looks again before it releases it.
    Held,
    /// It has ended, and all of its events are emitted.
    Ended,
    /// There is no such run.
    Unknown,
}

/// A run that this process holds, as far as it knows.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct RunLease {
    pub tenant: Name,
    pub record: RunRecord,
    /// How far the waits of the run have looked for events.
    pub positions: LookPositions,
    owner: Name,
    lease_ms: u64,
}

/// What became of renewing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The run was not woken.
    Kept,
    /// The run was woken: there is more in its log, or a sender has notified one of its waits.
    Woken,
    /// Another runner has the run.
    Lost,
}

impl RunLease {
    /// The visit that holds the lease.
    pub fn owner(&self) -> &Name {
        &self.owner
    }

    /// How long it lasts without being renewed.
    pub fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    /// How far the waits have looked, as JSON, if that is not what the record says.
    fn changed_looks(&self) -> Option<String> {
        (self.positions != LookPositions::of(&self.record)).then(|| self.positions.to_json())
    }
}

/// When a runner has to visit a released run again.
#[derive(Clone, Copy, Debug)]
pub enum ReleasePlan<'a> {
    /// When it is woken, by another process or by a timer.
    UntilWoken {
        /// When a message for it will come.
        alarm_at: Option<Millis>,
    },
    /// At this time in any case.
    Until(Millis),
    /// After a visit that failed: a runner tries again later.
    AfterFailure {
        /// Why the visit failed.
        error: &'a str,
        /// When to try again.
        again_at: Millis,
        /// When a message for it will come; the sweep comes only after that.
        alarm_at: Option<Millis>,
        /// How many visits in a row failed, this one included.
        failed: u32,
        /// How many of them failed in a way that does not pass by itself.
        rejected: u32,
    },
}

impl ReleasePlan<'_> {
    /// The error of the visit as the record keeps it.
    fn shortened_error(&self) -> String {
        match self {
            Self::AfterFailure { error, .. } => error.chars().take(ERROR_CHARS).collect(),
            Self::UntilWoken { .. } | Self::Until(_) => String::new(),
        }
    }
}

/// What a release writes into the record. `looks` and `error` are as the record keeps them.
fn release_of<'a>(
    lease: &'a RunLease,
    emitted: u64,
    plan: ReleasePlan<'_>,
    looks: Option<&'a str>,
    error: &'a str,
) -> RunRelease<'a> {
    let (visit, alarm_at, due_at) = match plan {
        // A runner that releases it in order has done everything up to there, for every wait that was notified.
        ReleasePlan::UntilWoken { alarm_at } => (VisitEnd::Done { looks }, alarm_at, None),
        ReleasePlan::Until(at) => (VisitEnd::Done { looks }, None, Some(at)),
        ReleasePlan::AfterFailure { again_at, alarm_at, failed, rejected, .. } => {
            // The runner that gets the message has time to acquire the run before the sweep sends another.
            let due_at = alarm_at.map_or(again_at, |at| at.plus(RUN_LEASE_MS));
            (VisitEnd::Failed { error, failed, rejected }, alarm_at, Some(due_at))
        }
    };
    RunRelease { owner: &lease.owner, wake_count: lease.record.wake_count, emitted, visit, alarm_at, due_at }
}

/// What became of releasing a run.
#[derive(Debug)]
pub enum Released {
    /// No runner holds it now.
    Done,
    /// It was woken meanwhile, so this runner still holds it: there is more in its log, or a sender has
    /// notified one of its waits.
    Woken,
    /// This runner did not hold it any more.
    Lost,
}

impl RunLeases {
    /// Acquires a run if no other runner holds it.
    pub async fn acquire_run(
        &self,
        tenant: &Name,
        run_id: &Name,
        lease_ms: u64,
    ) -> Result<RunAcquisition, ComponentError> {
        let now = self.emitter.now();
        let owner = self.emitter.new_event_id();
        let lease = NewRunLease { owner: &owner, now, until: now.plus(lease_ms) };
        let record = match self.records.acquire(tenant, run_id, lease).await? {
            Conditional::Done(record) => record,
            // The answer to our own request was lost, and it was sent again.
            Conditional::Refused(Some(record)) if record.lease_owner.as_ref() == Some(&owner) => record,
            Conditional::Refused(Some(record)) if record.is_held(now) => return Ok(RunAcquisition::Held),
            Conditional::Refused(Some(_)) => return Ok(RunAcquisition::Ended),
            Conditional::Refused(None) => return Ok(RunAcquisition::Unknown),
        };
        let positions = LookPositions::of(&record);
        let lease = RunLease { tenant: tenant.clone(), record, positions, owner, lease_ms };
        Ok(RunAcquisition::Acquired(Box::new(lease)))
    }

    /// Renews the lease on a run, and notes how often the run was woken and which of its waits were notified.
    pub async fn renew_run(&self, lease: &mut RunLease) -> Result<Renewed, ComponentError> {
        let until = self.emitter.now().plus(lease.lease_ms);
        let run_id = &lease.record.run_id;
        Ok(match self.records.renew(&lease.tenant, run_id, &lease.owner, until).await? {
            Conditional::Done(record) => {
                let woken = record.wake_count != lease.record.wake_count;
                lease.record = record;
                if woken { Renewed::Woken } else { Renewed::Kept }
            }
            Conditional::Refused(_) => Renewed::Lost,
        })
    }

    /// Releases a run whose log the runner has read and emitted up to the entry `emitted`.
    pub async fn release_run(
        &self,
        lease: &mut RunLease,
        emitted: u64,
        how: ReleasePlan<'_>,
    ) -> Result<Released, ComponentError> {
        let looks = lease.changed_looks();
        let error = how.shortened_error();
        let release = release_of(lease, emitted, how, looks.as_deref(), &error);
        match self.records.release(&lease.tenant, &lease.record.run_id, release).await? {
            Conditional::Done(_) => Ok(Released::Done),
            Conditional::Refused(Some(record)) if record.lease_owner.as_ref() == Some(&lease.owner) => {
                lease.record = record;
                Ok(Released::Woken)
            }
            Conditional::Refused(_) => Ok(Released::Lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(ms: u64) -> Millis {
        Millis::try_from(ms).unwrap()
    }

    fn lease() -> RunLease {
        let record: RunRecord = serde_json::from_value(json!({
            "runId": "run-1", "workflowName": "w", "appName": "app", "state": "running",
            "createdAt": 1_767_453_739_640_u64, "createdBy": "evnt_1", "context": "{}", "wakes": 3, "takes": 2,
        }))
        .unwrap();
        let [tenant, owner] = ["t", "visit-1"].map(|id| Name::new("id", id).unwrap());
        RunLease { tenant, positions: LookPositions::of(&record), record, owner, lease_ms: 60_000 }
    }

    #[test]
    fn a_released_run_is_due_when_a_runner_has_to_visit_it_and_after_its_message() {
        let (lease, alarm, again) = (lease(), at(1_767_453_800_000), at(1_767_453_900_000));
        let release = |plan| release_of(&lease, 5, plan, None, "busy");
        let failed = |alarm_at| ReleasePlan::AfterFailure {
            error: "busy",
            again_at: again,
            alarm_at,
            failed: 2,
            rejected: 1,
        };
        for (plan, alarm_at, due_at) in [
            (ReleasePlan::UntilWoken { alarm_at: Some(alarm) }, Some(alarm), None),
            (ReleasePlan::Until(again), None, Some(again)),
            (failed(None), None, Some(again)),
            (failed(Some(alarm)), Some(alarm), Some(alarm.plus(RUN_LEASE_MS))),
        ] {
            let release = release(plan);
            assert_eq!((release.alarm_at, release.due_at), (alarm_at, due_at), "{plan:?}");
            assert_eq!((release.wake_count, release.emitted), (3, 5));
        }
        let visit = VisitEnd::Failed { error: "busy", failed: 2, rejected: 1 };
        assert_eq!(release(failed(None)).visit, visit);
        assert_eq!(release(ReleasePlan::Until(again)).visit, VisitEnd::Done { looks: None });
    }
}
