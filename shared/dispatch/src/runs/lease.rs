//! Acquiring, renewing and releasing the lease on a run. The lease keeps two runners from executing the same
//! step at the same time; the log decides what may be written.

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::control::keys;

use super::{LookPositions, RunRecord};
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number, text},
};

/// How long a runner has a run without renewing.
pub const RUN_LEASE_MS: u64 = 60_000;

/// Characters of an error that the record keeps: errors may quote what they are about.
const ERROR_CHARS: usize = 1_000;

/// What became of asking for a run.
#[derive(Debug)]
pub enum RunTaken {
    /// This runner holds it for a while.
    Mine(Box<RunLease>),
    /// Another runner holds it; if the run is woken, that runner looks again before it releases it.
    Held,
    /// It has ended, and all of its events are emitted.
    Ended,
    /// There is no such run.
    Unknown,
}

/// A run that is ours, as far as we know.
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
    /// Nothing has happened.
    Kept,
    /// The run was woken: there is more in its log, or a sender has called one of its waits.
    Woken,
    /// Another runner has the run.
    Lost,
}

impl RunLease {
    pub(super) fn owner(&self) -> &Name {
        &self.owner
    }

    /// How long it lasts without being renewed.
    pub fn lease_ms(&self) -> u64 {
        self.lease_ms
    }
}

/// When a runner has to visit a released run again.
#[derive(Clone, Copy, Debug)]
pub enum LetGo<'a> {
    /// When it is woken, from outside or by a timer.
    UntilWoken {
        /// When a message for it will come.
        alarm_at: Option<Millis>,
    },
    /// At this time in any case.
    Until(Millis),
    /// After a visit that could not go on: a runner tries again later.
    InTrouble {
        /// Why the visit could not go on.
        error: &'a str,
        /// When to try again.
        again_at: Millis,
        /// When a message for it will come; the sweep comes only after that.
        alarm_at: Option<Millis>,
        /// How many visits in a row could not go on, this one included.
        failed: u32,
        /// How many of them failed in a way that does not pass by itself.
        rejected: u32,
    },
}

/// What became of releasing a run.
#[derive(Debug)]
pub enum Released {
    /// No runner holds it now.
    Done,
    /// It was woken meanwhile, so this runner still holds it: there is more in its log, or a sender has
    /// called one of its waits.
    Woken,
    /// This runner did not hold it any more.
    Lost,
}

impl Dispatch {
    /// Acquires a run if no other runner holds it.
    pub async fn take_run(
        &self,
        tenant: &Name,
        run_id: &Name,
        lease_ms: u64,
    ) -> Result<RunTaken, DispatchError> {
        let now = self.now();
        let key = keys::run(tenant, run_id);
        let owner = self.new_event_id();
        let until = now.plus(lease_ms);
        let update = self
            .control
            .update(&key)
            .update_expression(
                "SET leaseOwner = :me, leaseUntil = :until, dueShard = :dueShard, dueAt = :until, takes = takes + :one",
            )
            .condition_expression(
                "attribute_exists(PK) AND (attribute_not_exists(leaseUntil) OR leaseUntil <= :now) \
                 AND (attribute_exists(dueAt) OR attribute_not_exists(endedAt))",
            )
            .expression_attribute_values(":me", text(&owner))
            .expression_attribute_values(":until", number(until.get()))
            .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":one", number(1));
        let record = match conditionally::<RunRecord>(update).await? {
            Answer::Done(record) => record,
            // The answer to our own request was lost, and it was sent again.
            Answer::Refused(Some(record)) if record.lease_owner.as_ref() == Some(&owner) => record,
            Answer::Refused(Some(record)) if record.is_held(now) => return Ok(RunTaken::Held),
            Answer::Refused(Some(_)) => return Ok(RunTaken::Ended),
            Answer::Refused(None) => return Ok(RunTaken::Unknown),
        };
        let positions = record.positions();
        let lease = RunLease { tenant: tenant.clone(), record, positions, owner, lease_ms };
        Ok(RunTaken::Mine(Box::new(lease)))
    }

    /// Renews the lease on a run, and notes how often the run was woken and which of its waits were called.
    pub async fn renew_run(&self, lease: &mut RunLease) -> Result<Renewed, DispatchError> {
        let until = self.now().plus(lease.lease_ms);
        let key = keys::run(&lease.tenant, &lease.record.run_id);
        let update = self
            .control
            .update(&key)
            // If a program outside has started the run meanwhile, settling the run has removed `dueShard` and
            // `dueAt`.
            .update_expression("SET leaseUntil = :until, dueShard = :dueShard, dueAt = :until")
            .condition_expression("leaseOwner = :me")
            .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
            .expression_attribute_values(":me", text(&lease.owner))
            .expression_attribute_values(":until", number(until.get()));
        Ok(match conditionally::<RunRecord>(update).await? {
            Answer::Done(record) => {
                let woken = record.wakes != lease.record.wakes;
                lease.record = record;
                if woken { Renewed::Woken } else { Renewed::Kept }
            }
            Answer::Refused(_) => Renewed::Lost,
        })
    }

    /// Releases a run whose log the runner has read and emitted up to the entry `emitted`.
    pub async fn release_run(
        &self,
        lease: &mut RunLease,
        emitted: u64,
        how: LetGo<'_>,
    ) -> Result<Released, DispatchError> {
        let mut set = "SET emitted = :emitted, takes = :zero".to_owned();
        let mut remove = " REMOVE leaseOwner, leaseUntil".to_owned();
        let key = keys::run(&lease.tenant, &lease.record.run_id);
        let mut update = self
            .control
            .update(&key)
            .condition_expression("leaseOwner = :me AND wakes = :wakes")
            .expression_attribute_values(":me", text(&lease.owner))
            .expression_attribute_values(":wakes", number(lease.record.wakes))
            .expression_attribute_values(":emitted", number(emitted))
            .expression_attribute_values(":zero", number(0));
        let alarm_at = match how {
            LetGo::UntilWoken { alarm_at } | LetGo::InTrouble { alarm_at, .. } => alarm_at,
            LetGo::Until(_) => None,
        };
        match alarm_at {
            Some(at) => {
                set.push_str(", alarmAt = :alarm");
                update = update.expression_attribute_values(":alarm", number(at.get()));
            }
            None => remove.push_str(", alarmAt"),
        }
        match how {
            LetGo::InTrouble { error, failed, rejected, .. } => {
                let error: String = error.chars().take(ERROR_CHARS).collect();
                set.push_str(", lastError = :error, failedVisits = :failed, rejectedVisits = :rejected");
                update = update
                    .expression_attribute_values(":error", text(&error))
                    .expression_attribute_values(":failed", number(failed.into()))
                    .expression_attribute_values(":rejected", number(rejected.into()));
            }
            // A runner that releases it in order has done everything up to there, for every wait that was called.
            LetGo::UntilWoken { .. } | LetGo::Until(_) => {
                set.push_str(", lookedBack = :emitted, looked = :emitted");
                remove.push_str(", lastError, calledWaits, failedVisits, rejectedVisits");
                if lease.positions != lease.record.positions() {
                    set.push_str(", looks = :looks");
                    update = update.expression_attribute_values(":looks", text(&lease.positions.to_json()));
                }
            }
        }
        let due_at = match how {
            LetGo::UntilWoken { .. } => None,
            LetGo::Until(at) => Some(at),
            // The runner that gets the message has time to take the run before the sweep sends another.
            LetGo::InTrouble { alarm_at: Some(at), .. } => Some(at.plus(RUN_LEASE_MS)),
            LetGo::InTrouble { again_at, .. } => Some(again_at),
        };
        match due_at {
            Some(due_at) => {
                set.push_str(", dueShard = :dueShard, dueAt = :again");
                update = update
                    .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
                    .expression_attribute_values(":again", number(due_at.get()));
            }
            None => remove.push_str(", dueShard, dueAt"),
        }
        match conditionally::<RunRecord>(update.update_expression(set + &remove)).await? {
            Answer::Done(_) => Ok(Released::Done),
            Answer::Refused(Some(record)) if record.lease_owner.as_ref() == Some(&lease.owner) => {
                lease.record = record;
                Ok(Released::Woken)
            }
            Answer::Refused(_) => Ok(Released::Lost),
        }
    }
}
