//! Taking a run, keeping it, letting it go. The lease keeps two runners from executing the same step at the same time;
//! what may be written is decided by the log alone.

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::control::keys;

use super::RunRecord;
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number, text},
};

/// How long a runner has a run without renewing.
pub const RUN_LEASE_MS: u64 = 60_000;

/// What became of asking for a run.
#[derive(Debug)]
pub enum RunTaken {
    /// It is ours for a while.
    Mine(Box<RunLease>),
    /// Somebody works on it, and will look again before they let it go.
    Held,
    /// It has ended and everything about it is told.
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
    owner: Name,
    lease_ms: u64,
}

impl RunLease {
    /// How long it lasts without being renewed.
    pub fn lease_ms(&self) -> u64 {
        self.lease_ms
    }
}

/// What became of letting a run go.
#[derive(Debug)]
pub enum Released {
    /// It is nobody's now.
    Done,
    /// Somebody has woken it meanwhile: it is still ours, and there is news in its log.
    Woken,
    /// It was somebody else's already.
    Lost,
}

impl Dispatch {
    /// Takes a run if nobody has it.
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
        Ok(RunTaken::Mine(Box::new(RunLease { tenant: tenant.clone(), record, owner, lease_ms })))
    }

    /// Keeps a run. Answers how often it was woken; `None` if it is somebody else's now.
    pub async fn renew_run(&self, lease: &mut RunLease) -> Result<Option<u64>, DispatchError> {
        let until = self.now().plus(lease.lease_ms);
        let update = self
            .control
            .update(&keys::run(&lease.tenant, &lease.record.run_id))
            .update_expression("SET leaseUntil = :until, dueAt = :until")
            .condition_expression("leaseOwner = :me")
            .expression_attribute_values(":me", text(&lease.owner))
            .expression_attribute_values(":until", number(until.get()));
        Ok(match conditionally::<RunRecord>(update).await? {
            Answer::Done(record) => {
                lease.record.lease_until = record.lease_until;
                Some(record.wakes)
            }
            Answer::Refused(_) => None,
        })
    }

    /// Lets a run go whose log was read and told up to `emitted`. `alarm_at` is when a message for it will come,
    /// `again_at` when somebody must look after it in any case.
    pub async fn release_run(
        &self,
        lease: &mut RunLease,
        emitted: u64,
        alarm_at: Option<Millis>,
        trouble: Option<(&str, Millis)>,
    ) -> Result<Released, DispatchError> {
        let mut set = "SET emitted = :emitted, takes = :zero".to_owned();
        let mut remove = " REMOVE leaseOwner, leaseUntil".to_owned();
        let mut update = self
            .control
            .update(&keys::run(&lease.tenant, &lease.record.run_id))
            .condition_expression("leaseOwner = :me AND wakes = :wakes")
            .expression_attribute_values(":me", text(&lease.owner))
            .expression_attribute_values(":wakes", number(lease.record.wakes))
            .expression_attribute_values(":emitted", number(emitted))
            .expression_attribute_values(":zero", number(0));
        match alarm_at {
            Some(at) => {
                set.push_str(", alarmAt = :alarm");
                update = update.expression_attribute_values(":alarm", number(at.get()));
            }
            None => remove.push_str(", alarmAt"),
        }
        match trouble {
            Some((error, again_at)) => {
                set.push_str(", lastError = :error, dueAt = :again");
                update = update
                    .expression_attribute_values(":error", text(error))
                    .expression_attribute_values(":again", number(again_at.get()));
            }
            None => {
                // Whoever lets it go in order has done everything up to there.
                set.push_str(", lookedBack = :emitted");
                remove.push_str(", lastError, dueShard, dueAt");
            }
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
