//! The record of a run: who works on it, how far its outbox is, where it is listed. What happened is in its log.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use ledgerline_event::{Context, Millis, Name, RunState};
use serde::{Deserialize, Serialize};

use crate::{
    Cancelled, Conditional, ControlKey, ControlTable, ListCursor, LogEntryRow, RequestRetry, StoreError,
    back_off, build_error, cancelled, conditionally, keys, number, text,
};

/// A run as it is stored, without its log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct RunRecord {
    pub run_id: Name,
    pub workflow_name: String,
    pub app_name: Name,
    pub state: RunState,
    /// Whether an external program drives it over HTTP. No runner executes it then.
    #[serde(default)]
    pub external: bool,
    pub created_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// The version of the workflow that began it, and must continue it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_version: Option<String>,
    /// Why the last visit of a runner failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// How many visits in a row failed.
    #[serde(default)]
    pub failed_visits: u32,
    /// How many visits failed since the last one that did not, in a way that does not pass by itself.
    #[serde(default)]
    pub rejected_visits: u32,
    /// The event with which it ends, as JSON, while it closes what is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<String>,
    /// The same, where it lies in the payload bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending_key: Option<String>,
    /// Its `run_created` event.
    pub created_by: Name,
    /// The context of its events, as JSON.
    pub context: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caused_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_owner: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Millis>,
    /// How often it was woken: by an append without a lease, or by a sender that called one of its waits.
    #[serde(default, rename = "wakes")]
    pub wake_count: u64,
    /// How often it was acquired since a runner last released it.
    #[serde(default, rename = "takes")]
    pub lease_count: u32,
    /// The last entry of the log whose events are in the ledger.
    #[serde(default)]
    pub emitted: u64,
    /// The last entry of the log whose waits have all looked for events that were sent before. Senders set it to zero
    /// when they notify the run, for runners of versions before 0.1.0, which do not know `calledWaits`.
    #[serde(default)]
    pub looked_back: u64,
    /// The same, set by runners only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked: Option<u64>,
    /// The waits that senders of events have notified since the run was last released.
    #[serde(default, skip_serializing, rename = "calledWaits")]
    pub notified_waits: BTreeSet<Name>,
    /// How far its waits have looked, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looks: Option<String>,
    /// The time for which a delayed message is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_shard: Option<String>,
    /// When the sweep handles it, unless a runner has visited it by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_in: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_at: Option<String>,
}

impl RunRecord {
    /// Whether a runner may be working on it: the lease has not expired.
    pub fn is_held(&self, now: Millis) -> bool {
        self.lease_until.is_some_and(|until| until > now)
    }

    /// How many times before this one a runner acquired it and did not release it: the runner died, or lost
    /// the lease.
    pub fn lost_leases(&self) -> u32 {
        self.lease_count.saturating_sub(1)
    }

    /// How many visits in a row failed. A process that does not know this count clears the
    /// error alone, so the count holds only together with the error.
    pub fn failed_visits(&self) -> u32 {
        if self.last_error.is_some() { self.failed_visits } else { 0 }
    }

    /// How many visits failed in a way that does not pass by itself.
    pub fn rejected_visits(&self) -> u32 {
        if self.last_error.is_some() { self.rejected_visits } else { 0 }
    }

    /// The last entry of its log whose events are in the ledger.
    pub fn emitted(&self) -> u64 {
        self.emitted
    }

    /// The last entry of its log whose waits have all looked for events that were sent before.
    pub fn looked(&self) -> u64 {
        self.looked.unwrap_or(self.looked_back)
    }

    /// The waits that senders of events have notified.
    pub fn notified_waits(&self) -> &BTreeSet<Name> {
        &self.notified_waits
    }

    /// The time for which a delayed message is on its way.
    pub fn alarm_at(&self) -> Option<Millis> {
        self.alarm_at
    }

    /// How often it was woken: by an append without a lease, or by a sender that called one of its waits.
    pub fn wake_count(&self) -> u64 {
        self.wake_count
    }

    /// The context of its events.
    pub fn context(&self) -> Context {
        serde_json::from_str(&self.context).unwrap_or_default()
    }
}

/// The records of runs.
#[derive(Clone, Debug)]
pub struct RunRecords {
    table: ControlTable,
}

/// What became of making a run.
#[derive(Debug)]
pub enum RunCreation {
    /// It is new.
    Created,
    /// There is one with this id, or its log.
    Exists(Option<Box<RunRecord>>),
}

/// A lease that a runner asks for.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct NewRunLease<'a> {
    pub owner: &'a Name,
    pub now: Millis,
    pub until: Millis,
}

/// What a runner that releases a run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRelease<'a> {
    /// The visit that holds the lease.
    pub owner: &'a Name,
    /// How often the run was woken as far as the runner has seen: one more time refuses the release.
    pub wake_count: u64,
    /// The last entry of the log whose events are in the ledger.
    pub emitted: u64,
    /// How the visit ended.
    pub visit: VisitEnd<'a>,
    /// When a message for the run will come.
    pub alarm_at: Option<Millis>,
    /// When the sweep handles it.
    pub due_at: Option<Millis>,
}

/// How a visit of a runner ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisitEnd<'a> {
    /// It succeeded: everything up to `emitted` is done, for every wait that was notified.
    Done {
        /// How far its waits have looked, as JSON, if it has changed.
        looks: Option<&'a str>,
    },
    /// It failed.
    Failed {
        /// Why.
        error: &'a str,
        /// How many visits in a row failed.
        failed: u32,
        /// How many of them failed in a way that does not pass by itself.
        rejected: u32,
    },
}

impl RunRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// One run.
    pub async fn get(&self, tenant: &str, run_id: &str) -> Result<Option<RunRecord>, StoreError> {
        self.table.get(&keys::run(tenant, run_id)).await
    }

    /// Runs that are in one of these states, list by list, the newest first.
    pub async fn list(
        &self,
        tenant: &str,
        states: &[RunState],
        limit: usize,
        cursor: ListCursor,
    ) -> Result<(Vec<RunRecord>, Option<String>), StoreError> {
        let lists: Vec<String> = states.iter().map(|state| keys::runs_in(tenant, state.as_str())).collect();
        self.table.list_pages(&lists, limit, cursor, |id| keys::run(tenant, id)).await
    }

    /// Makes a run, its record and the first entry of its log, unless there is one.
    pub async fn create(
        &self,
        tenant: &str,
        record: &RunRecord,
        first: &LogEntryRow,
    ) -> Result<RunCreation, StoreError> {
        let key = keys::run(tenant, &record.run_id);
        let mut retries = RequestRetry::default();
        loop {
            let mut transaction = self.table.transaction();
            for put in [
                self.table.put_for_transaction(&key, record)?,
                self.table.put_for_transaction(&keys::run_entry(tenant, &record.run_id, 1), first)?,
            ] {
                let put =
                    put.condition_expression("attribute_not_exists(PK)").build().map_err(build_error)?;
                transaction = transaction.transact_items(TransactWriteItem::builder().put(put).build());
            }
            match cancelled(transaction.send().await)? {
                None => return Ok(RunCreation::Created),
                Some(Cancelled::Refused(_)) => return Ok(RunCreation::Exists(self.table.get(&key).await?)),
                Some(Cancelled::Busy(why)) => back_off(&mut retries, why).await?,
            }
        }
    }

    /// Acquires a run if no lease on it is running. A run that has ended is acquired only while something is left
    /// to do about it.
    pub async fn acquire(
        &self,
        tenant: &str,
        run_id: &str,
        lease: NewRunLease<'_>,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        let key = keys::run(tenant, run_id);
        let update = self
            .table
            .update(&key)
            .update_expression(
                "SET leaseOwner = :me, leaseUntil = :until, dueShard = :dueShard, dueAt = :until, takes = takes + :one",
            )
            .condition_expression(
                "attribute_exists(PK) AND (attribute_not_exists(leaseUntil) OR leaseUntil <= :now) \
                 AND (attribute_exists(dueAt) OR attribute_not_exists(endedAt))",
            )
            .expression_attribute_values(":me", text(lease.owner))
            .expression_attribute_values(":until", number(lease.until.get()))
            .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
            .expression_attribute_values(":now", number(lease.now.get()))
            .expression_attribute_values(":one", number(1));
        conditionally(update).await
    }

    /// Extends the lease of `owner`.
    pub async fn renew(
        &self,
        tenant: &str,
        run_id: &str,
        owner: &Name,
        until: Millis,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        let key = keys::run(tenant, run_id);
        let update = self
            .table
            .update(&key)
            // If an external program has started the run meanwhile, settling the run has removed `dueShard` and
            // `dueAt`.
            .update_expression("SET leaseUntil = :until, dueShard = :dueShard, dueAt = :until")
            .condition_expression("leaseOwner = :me")
            .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
            .expression_attribute_values(":me", text(owner))
            .expression_attribute_values(":until", number(until.get()));
        conditionally(update).await
    }

    /// Releases a run, unless it was woken meanwhile or another runner holds it.
    pub async fn release(
        &self,
        tenant: &str,
        run_id: &str,
        release: RunRelease<'_>,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        let mut set = "SET emitted = :emitted, takes = :zero".to_owned();
        let mut remove = " REMOVE leaseOwner, leaseUntil".to_owned();
        let key = keys::run(tenant, run_id);
        let mut update = self
            .table
            .update(&key)
            .condition_expression("leaseOwner = :me AND wakes = :wakes")
            .expression_attribute_values(":me", text(release.owner))
            .expression_attribute_values(":wakes", number(release.wake_count))
            .expression_attribute_values(":emitted", number(release.emitted))
            .expression_attribute_values(":zero", number(0));
        match release.alarm_at {
            Some(at) => {
                set.push_str(", alarmAt = :alarm");
                update = update.expression_attribute_values(":alarm", number(at.get()));
            }
            None => remove.push_str(", alarmAt"),
        }
        match release.visit {
            VisitEnd::Failed { error, failed, rejected } => {
                set.push_str(", lastError = :error, failedVisits = :failed, rejectedVisits = :rejected");
                update = update
                    .expression_attribute_values(":error", text(error))
                    .expression_attribute_values(":failed", number(failed.into()))
                    .expression_attribute_values(":rejected", number(rejected.into()));
            }
            VisitEnd::Done { looks } => {
                set.push_str(", lookedBack = :emitted, looked = :emitted");
                remove.push_str(", lastError, calledWaits, failedVisits, rejectedVisits");
                if let Some(looks) = looks {
                    set.push_str(", looks = :looks");
                    update = update.expression_attribute_values(":looks", text(looks));
                }
            }
        }
        match release.due_at {
            Some(due_at) => {
                set.push_str(", dueShard = :dueShard, dueAt = :again");
                update = update
                    .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
                    .expression_attribute_values(":again", number(due_at.get()));
            }
            None => remove.push_str(", dueShard, dueAt"),
        }
        conditionally(update.update_expression(set + &remove)).await
    }

    /// Removes the lease on a run, if there is one, and makes the run due.
    pub async fn break_lease(
        &self,
        key: &ControlKey,
        now: Millis,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        let update = self
            .table
            .update(key)
            .update_expression("SET dueShard = :dueShard, dueAt = :now REMOVE leaseOwner, leaseUntil")
            .condition_expression("attribute_exists(leaseOwner)")
            .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(key)))
            .expression_attribute_values(":now", number(now.get()));
        conditionally(update).await
    }

    /// Moves the time at which the sweep handles a run, unless another process has changed it.
    pub async fn postpone(
        &self,
        tenant: &str,
        run_id: &str,
        due_at: Millis,
        later: Millis,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        let update = self
            .table
            .update(&keys::run(tenant, run_id))
            .update_expression("SET dueAt = :later")
            .condition_expression("dueAt = :due")
            .expression_attribute_values(":due", number(due_at.get()))
            .expression_attribute_values(":later", number(later.get()));
        conditionally(update).await
    }

    /// Wakes a run that has not ended, because an event may fit this wait.
    pub async fn notify_wait(
        &self,
        tenant: &str,
        run_id: &str,
        wait_id: &Name,
        now: Millis,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        let key = keys::run(tenant, run_id);
        let update = self
            .table
            .update(&key)
            // A runner of a version before 0.1.0 looks for all waits after this entry of the log.
            .update_expression(
                "SET wakes = wakes + :one, dueShard = :dueShard, dueAt = :now, lookedBack = :zero ADD calledWaits :wait",
            )
            .condition_expression("attribute_exists(PK) AND attribute_not_exists(endedAt)")
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
            .expression_attribute_values(":wait", AttributeValue::Ss(vec![wait_id.to_string()]));
        conditionally(update).await
    }

    /// Notes how far the log of `run` is emitted, unless the run was woken since it was read, or more is emitted.
    pub async fn note_emitted(
        &self,
        tenant: &str,
        run: &RunRecord,
        emitted: u64,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        self.note_progress(tenant, run, emitted, None).await
    }

    /// The same of a run for which nothing is left to do: its waits have looked as far as `looks` says, as JSON.
    pub async fn note_settled(
        &self,
        tenant: &str,
        run: &RunRecord,
        emitted: u64,
        looks: &str,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        self.note_progress(tenant, run, emitted, Some(looks)).await
    }

    async fn note_progress(
        &self,
        tenant: &str,
        run: &RunRecord,
        emitted: u64,
        looks: Option<&str>,
    ) -> Result<Conditional<RunRecord>, StoreError> {
        let also = match looks {
            Some(_) => {
                ", lookedBack = :emitted, looked = :emitted, looks = :looks REMOVE dueShard, dueAt, calledWaits"
            }
            None => "",
        };
        let mut update = self
            .table
            .update(&keys::run(tenant, &run.run_id))
            .update_expression(format!("SET emitted = :emitted {also}"))
            .condition_expression("wakes = :wakes AND emitted <= :emitted")
            .expression_attribute_values(":emitted", number(emitted))
            .expression_attribute_values(":wakes", number(run.wake_count));
        if let Some(looks) = looks {
            update = update.expression_attribute_values(":looks", text(looks));
        }
        conditionally(update).await
    }
}
