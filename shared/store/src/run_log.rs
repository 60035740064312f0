//! The log of a run as it is stored: one row for each entry, which is put together with the records that it brings about.

use aws_sdk_dynamodb::{
    error::SdkError,
    types::{AttributeValue, TransactWriteItem},
};
use ledgerline_event::{Millis, Name, RunState};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Cancelled, ControlKey, ControlTable, HookRecord, RequestRetry, StoreError, WaitRecord, back_off,
    build_error, cancelled, keys, number, read, text,
};

/// One entry of a log as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub struct LogEntryRow {
    /// Tells the entries of processes apart that put one in the same place.
    pub nonce: Name,
    /// JSON.
    pub events: String,
    /// Its place in the log.
    #[serde(rename = "SK", skip_serializing, default)]
    pub sk: String,
}

impl LogEntryRow {
    /// A row to be put.
    pub fn new(nonce: Name, events: String) -> Self {
        Self { nonce, events, sk: String::new() }
    }
}

/// The logs of runs.
#[derive(Clone, Debug)]
pub struct RunLogRecords {
    table: ControlTable,
}

/// The last event of a run as its record has it, before it is in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnding {
    /// As JSON.
    Inline(String),
    /// As JSON in the payload bucket.
    Stored(String),
}

/// When a run was started, and by which version of its workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RunStart {
    pub at: Millis,
    pub version: Option<String>,
}

/// How the state of a run changes with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunChange {
    /// The state after the entry.
    pub state: RunState,
    /// If the entry starts the run.
    pub start: Option<RunStart>,
    /// If the entry ends the run.
    pub ended: Option<Millis>,
    /// How it ends with a later entry.
    pub ending: Option<RunEnding>,
}

impl RunChange {
    /// A change to `state`, and nothing else.
    pub fn to(state: RunState) -> Self {
        Self { state, start: None, ended: None, ending: None }
    }

    /// Whether it is the run's last.
    pub fn ends(&self) -> bool {
        self.ended.is_some()
    }
}

/// The process that appends.
#[derive(Clone, Copy, Debug)]
pub enum Appender<'a> {
    /// The runner that works on the run: it must still hold the lease.
    LeaseOwner(&'a Name),
    /// Any other process: the run is woken at this time.
    Waker(Millis),
}

/// What an entry of the log changes in the run's record, and on what conditions.
#[derive(Clone, Copy, Debug)]
pub struct RunWrite<'a> {
    /// The process that appends.
    pub appender: Appender<'a>,
    /// How the state of the run changes, if it does.
    pub change: Option<&'a RunChange>,
    /// Whether an external program executes the run from its start on.
    pub external: bool,
    /// How often the run may have been woken: one more time refuses the write.
    pub expected_wake_count: Option<u64>,
}

/// A condition of the caller on an entry, with what it changes.
#[derive(Clone, Debug)]
pub enum LogGuard {
    /// The wait or timer is there. It is deleted.
    WaitIsOpen(ControlKey),
    /// The end of a task or a job is awaited, by this wait. It is deleted.
    EndIsAwaited {
        /// The record.
        key: ControlKey,
        /// The wait.
        wait_id: Name,
    },
    /// The run has not consumed the event. It does so for this wait.
    EventIsNotConsumed {
        /// The event.
        event_id: Name,
        /// The wait.
        wait_id: Name,
    },
    /// The token belongs to this hook, which is not disposed.
    HookIsActive {
        /// The record of the token.
        key: ControlKey,
        /// The hook.
        hook_id: Name,
    },
    /// A write of another component.
    Write(TableWrite),
}

/// A write that another component adds to an entry.
#[derive(Clone, Debug)]
pub struct TableWrite(Box<TransactWriteItem>);

impl From<TransactWriteItem> for TableWrite {
    fn from(write: TransactWriteItem) -> Self {
        Self(Box::new(write))
    }
}

/// One entry of a log and everything that is written with it, all or nothing.
#[must_use]
pub struct RunLogWrite<'a> {
    table: &'a ControlTable,
    tenant: &'a Name,
    run_id: &'a Name,
    sequence: u64,
    entry: &'a LogEntryRow,
    writes: Vec<(Part, TransactWriteItem)>,
}

/// What a write of the transaction is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Unconditional,
    Hook(Name),
    Run,
    Guard,
}

/// What became of putting an entry.
#[derive(Debug, PartialEq, Eq)]
pub enum PutLogEntry {
    /// It is in the log, with everything that goes with it.
    Done,
    /// Another entry is in its place.
    PlaceTaken,
    /// Something that goes with it was refused.
    Refused(RefusedParts),
}

/// The parts of an entry that were refused by their conditions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RefusedParts {
    /// A guard of the caller does not hold.
    pub guard: bool,
    /// The run's record is not as it should be: the lease is lost, or the run was woken, or there is no run.
    pub run: bool,
    /// The first hook whose token is taken.
    pub hook: Option<Name>,
}

impl RefusedParts {
    fn of<'p>(parts: impl Iterator<Item = &'p Part>) -> Self {
        let mut refused = Self::default();
        for part in parts {
            match part {
                Part::Unconditional => {}
                Part::Hook(hook) if refused.hook.is_none() => refused.hook = Some(hook.clone()),
                Part::Hook(_) => {}
                Part::Run => refused.run = true,
                Part::Guard => refused.guard = true,
            }
        }
        refused
    }
}

impl RunLogRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The first `most` entries after `after`.
    pub async fn entries(
        &self,
        tenant: &str,
        run_id: &str,
        after: u64,
        most: usize,
    ) -> Result<Vec<LogEntryRow>, StoreError> {
        let mut pages = self
            .table
            .partition(&keys::run_partition(tenant, run_id))
            .key_condition_expression("PK = :pk AND SK BETWEEN :first AND :last")
            .expression_attribute_values(":first", text(&keys::run_entry(tenant, run_id, after + 1).sk))
            .expression_attribute_values(":last", text(&keys::run_entry(tenant, run_id, 9_999_999_999).sk))
            .set_limit(i32::try_from(most).ok())
            .into_paginator()
            .send();
        let mut rows: Vec<LogEntryRow> = Vec::new();
        while rows.len() < most
            && let Some(page) = pages.next().await
        {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                rows.push(read(item)?);
            }
        }
        rows.truncate(most);
        Ok(rows)
    }

    /// The last entry.
    pub async fn last(&self, tenant: &str, run_id: &str) -> Result<Option<LogEntryRow>, StoreError> {
        let answer = self
            .table
            .partition(&keys::run_partition(tenant, run_id))
            .key_condition_expression("PK = :pk AND begins_with(SK, :log)")
            .expression_attribute_values(":log", text(keys::LOG))
            .scan_index_forward(false)
            .limit(1)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        answer.items.unwrap_or_default().into_iter().next().map(read).transpose()
    }

    /// A write of the entry `sequence`, if it is absent.
    pub fn entry<'a>(
        &'a self,
        tenant: &'a Name,
        run_id: &'a Name,
        sequence: u64,
        entry: &'a LogEntryRow,
    ) -> RunLogWrite<'a> {
        RunLogWrite { table: &self.table, tenant, run_id, sequence, entry, writes: Vec::new() }
    }
}

impl RunLogWrite<'_> {
    /// Puts a wait or a timer.
    pub fn put_wait(&mut self, key: &ControlKey, wait: &WaitRecord) -> Result<(), StoreError> {
        let put = self.table.put_for_transaction(key, wait)?.build().map_err(build_error)?;
        self.push(Part::Unconditional, TransactWriteItem::builder().put(put));
        Ok(())
    }

    /// Deletes a wait or a timer, if it is there.
    pub fn delete_wait(&mut self, key: &ControlKey) -> Result<(), StoreError> {
        let delete = self.table.delete_for_transaction(key).build().map_err(build_error)?;
        self.push(Part::Unconditional, TransactWriteItem::builder().delete(delete));
        Ok(())
    }

    /// Puts a hook, if no other one has its token.
    pub fn put_hook(&mut self, hook: &HookRecord) -> Result<(), StoreError> {
        let put = self
            .table
            .put_for_transaction(&hook.key(), hook)?
            .condition_expression("attribute_not_exists(PK) OR disposed = :true")
            .expression_attribute_values(":true", AttributeValue::Bool(true))
            .build()
            .map_err(build_error)?;
        self.push(Part::Hook(hook.hook_id.clone()), TransactWriteItem::builder().put(put));
        Ok(())
    }

    /// Marks a hook as disposed. Its record stays, so that a sender that still has the token gets the answer `Gone`.
    pub fn dispose_hook(&mut self, hook: &HookRecord) -> Result<(), StoreError> {
        let hook = HookRecord { disposed: true, ..hook.clone() };
        let put = self.table.put_for_transaction(&hook.key(), &hook)?.build().map_err(build_error)?;
        self.push(Part::Unconditional, TransactWriteItem::builder().put(put));
        Ok(())
    }

    /// Changes the run's record. Its conditions: the lease is still held, and the run was not notified since its record
    /// was read.
    pub fn change_run(&mut self, write: RunWrite<'_>) -> Result<(), StoreError> {
        let RunWrite { appender, change, external, expected_wake_count } = write;
        let key = keys::run(self.tenant, self.run_id);
        let mut conditions = vec![match appender {
            Appender::LeaseOwner(_) => "leaseOwner = :me",
            Appender::Waker(_) => "attribute_exists(PK)",
        }];
        if expected_wake_count.is_some() {
            conditions.push("wakes = :wakes");
        }
        let condition = conditions.join(" AND ");
        let mut update = self.table.update_for_transaction(&key);
        let mut set = Vec::new();
        match appender {
            Appender::LeaseOwner(owner) if change.is_none() => {
                let mut mine = self
                    .table
                    .check_for_transaction(&key)
                    .condition_expression(condition)
                    .expression_attribute_values(":me", text(owner));
                if let Some(wakes) = expected_wake_count {
                    mine = mine.expression_attribute_values(":wakes", number(wakes));
                }
                let mine = mine.build().map_err(build_error)?;
                self.push(Part::Run, TransactWriteItem::builder().condition_check(mine));
                return Ok(());
            }
            Appender::LeaseOwner(owner) => {
                update = update.expression_attribute_values(":me", text(owner));
            }
            Appender::Waker(now) => {
                set.push("wakes = wakes + :one, dueShard = :dueShard, dueAt = :now".to_owned());
                update = update
                    .expression_attribute_values(":one", number(1))
                    .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
                    .expression_attribute_values(":now", number(now.get()));
            }
        }
        update = update.condition_expression(condition);
        if let Some(wakes) = expected_wake_count {
            update = update.expression_attribute_values(":wakes", number(wakes));
        }
        if let Some(change) = change {
            set.push("#state = :state, listIn = :list".to_owned());
            update = update
                .expression_attribute_names("#state", "state")
                .expression_attribute_values(":state", text(change.state.as_str()))
                .expression_attribute_values(
                    ":list",
                    text(&keys::runs_in(self.tenant, change.state.as_str())),
                );
            if let Some(RunStart { at, version }) = &change.start {
                // The runner or program that starts the run executes all of it.
                set.push("startedAt = :started, #external = :external".into());
                update = update
                    .expression_attribute_names("#external", "external")
                    .expression_attribute_values(":external", AttributeValue::Bool(external))
                    .expression_attribute_values(":started", number(at.get()));
                if let Some(version) = version {
                    set.push("workflowVersion = :version".into());
                    update = update.expression_attribute_values(":version", text(version));
                }
            }
            if let Some(at) = change.ended {
                set.push("endedAt = :ended".into());
                update = update.expression_attribute_values(":ended", number(at.get()));
            }
            if let Some(ending) = &change.ending {
                let (field, value) = match ending {
                    RunEnding::Inline(json) => ("ending", json),
                    RunEnding::Stored(key) => ("endingKey", key),
                };
                set.push(format!("{field} = :ending"));
                update = update.expression_attribute_values(":ending", text(value));
            }
        }
        let over = change.is_some_and(RunChange::ends);
        let remove = if over { " REMOVE ending, endingKey" } else { "" };
        let update = update.update_expression(format!("SET {}{remove}", set.join(", ")));
        let update = update.build().map_err(build_error)?;
        self.push(Part::Run, TransactWriteItem::builder().update(update));
        Ok(())
    }

    /// Makes the entry depend on a condition of the caller.
    pub fn guard(&mut self, guard: &LogGuard) -> Result<(), StoreError> {
        let write = TransactWriteItem::builder();
        let write = match guard {
            LogGuard::WaitIsOpen(key) => {
                let delete = self.table.delete_for_transaction(key);
                let delete = delete.condition_expression("attribute_exists(PK)");
                write.delete(delete.build().map_err(build_error)?)
            }
            LogGuard::EndIsAwaited { key, wait_id } => {
                let delete = self.table.delete_for_transaction(key);
                let delete = delete
                    .condition_expression("entityId = :wait")
                    .expression_attribute_values(":wait", text(wait_id));
                write.delete(delete.build().map_err(build_error)?)
            }
            LogGuard::EventIsNotConsumed { event_id, wait_id } => {
                let key = keys::consumed(self.tenant, event_id, self.run_id);
                let put = self.table.put_for_transaction(&key, &json!({ "waitId": wait_id }))?;
                let put = put.condition_expression("attribute_not_exists(PK)");
                write.put(put.build().map_err(build_error)?)
            }
            LogGuard::HookIsActive { key, hook_id } => {
                let check = self.table.check_for_transaction(key);
                let check = check
                    .condition_expression("disposed = :false AND hookId = :hook")
                    .expression_attribute_values(":false", AttributeValue::Bool(false))
                    .expression_attribute_values(":hook", text(hook_id));
                write.condition_check(check.build().map_err(build_error)?)
            }
            LogGuard::Write(other) => {
                self.writes.push((Part::Guard, (*other.0).clone()));
                return Ok(());
            }
        };
        self.push(Part::Guard, write);
        Ok(())
    }

    fn push(&mut self, part: Part, write: aws_sdk_dynamodb::types::builders::TransactWriteItemBuilder) {
        self.writes.push((part, write.build()));
    }

    /// Puts the entry if it is absent, together with everything else.
    pub async fn send(self) -> Result<PutLogEntry, StoreError> {
        let key = keys::run_entry(self.tenant, self.run_id, self.sequence);
        if self.writes.is_empty() {
            let put = self.table.put(&key, self.entry)?;
            return match put.condition_expression("attribute_not_exists(PK)").send().await {
                Ok(_) => Ok(PutLogEntry::Done),
                Err(SdkError::ServiceError(refused))
                    if refused.err().is_conditional_check_failed_exception() =>
                {
                    self.own_or_taken(&key).await
                }
                Err(error) => Err(StoreError::new("PutItem", error)),
            };
        }
        let mut retries = RequestRetry::default();
        loop {
            let put = self.table.put_for_transaction(&key, self.entry)?;
            let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(build_error)?;
            let entry = TransactWriteItem::builder().put(put).build();
            let writes = self.writes.iter().map(|(_, write)| write.clone());
            let all = std::iter::once(entry).chain(writes).collect();
            let answer = self.table.transaction().set_transact_items(Some(all)).send().await;
            match cancelled(answer)? {
                None => return Ok(PutLogEntry::Done),
                Some(Cancelled::Refused(positions)) if positions.contains(&0) => {
                    return self.own_or_taken(&key).await;
                }
                Some(Cancelled::Refused(positions)) => {
                    let parts = positions.iter().filter_map(|position| self.writes.get(position - 1));
                    return Ok(PutLogEntry::Refused(RefusedParts::of(parts.map(|(part, _)| part))));
                }
                Some(Cancelled::Busy(why)) => back_off(&mut retries, why).await?,
            }
        }
    }

    /// Tells an entry of another process from this one's own, whose answer was lost.
    async fn own_or_taken(&self, key: &ControlKey) -> Result<PutLogEntry, StoreError> {
        let there: Option<LogEntryRow> = self.table.get(key).await?;
        Ok(match there.is_some_and(|there| there.nonce == self.entry.nonce) {
            true => PutLogEntry::Done,
            false => PutLogEntry::PlaceTaken,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_first_hook_and_tells_guards_from_the_run() {
        let name = |text: &str| Name::new("id", text).unwrap();
        let refused = |parts: &[Part]| RefusedParts::of(parts.iter());
        assert_eq!(
            refused(&[Part::Hook(name("a")), Part::Hook(name("b")), Part::Run]),
            RefusedParts { guard: false, run: true, hook: Some(name("a")) }
        );
        assert_eq!(refused(&[Part::Guard]), RefusedParts { guard: true, run: false, hook: None });
        assert_eq!(refused(&[Part::Unconditional]), RefusedParts::default());
    }
}
