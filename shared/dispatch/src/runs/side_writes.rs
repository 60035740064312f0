//! What events of a log bring about beside the log: timers, waits, hooks, the state of the run. All of it is written in
//! the transaction of the entry.

use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem};
use ledgerline_event::{LogEvent, Millis, Name, RunEventType, RunState, WaitFor, leaves::index_leaf};
use ledgerline_ledger::control::keys::{self, ControlKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{RunLease, RunLog, ending::Ending, hook::HookRow};
use crate::{
    Dispatch, DispatchError,
    conditional::{number, text},
    transaction::built,
};

/// The run and the entity that a timer or a wait belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Owner {
    pub(super) run_id: Name,
    /// The step or wait.
    pub(super) entity_id: Name,
    #[serde(default)]
    pub(super) external: bool,
    /// What an event must contain, as JSON; only of a wait for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) match_criteria: Option<String>,
    /// The wait ignores events that were sent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_shard: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) due_at: Option<Millis>,
}

/// A write of one record, and the hook whose token it needs, if it is about one.
pub(super) struct SideWrite {
    pub(super) key: ControlKey,
    pub(super) write: TransactWriteItem,
    pub(super) token_of: Option<Name>,
}

impl SideWrite {
    fn new(key: ControlKey, write: TransactWriteItem) -> Self {
        Self { key, write, token_of: None }
    }
}

/// What an entry of the log changes in the run's record, and on what conditions.
#[derive(Clone, Copy, Default)]
pub(super) struct RunWrite<'a> {
    pub(super) change: Option<&'a StateChange>,
    pub(super) external: bool,
    /// Of the runner that works on the run. Without one the write wakes the run.
    pub(super) lease: Option<&'a RunLease>,
    /// How often the run may have been woken: one more time refuses the write.
    pub(super) expected_wakes: Option<u64>,
}

/// How the state of a run changes with an entry.
#[derive(Clone, Debug)]
pub(super) struct StateChange {
    state: RunState,
    started: Option<(Millis, Option<String>)>,
    ended: Option<Millis>,
    /// How it ends with a later entry.
    ending: Option<Ending>,
}

impl StateChange {
    /// Whether it is the run's last.
    pub(super) fn ends(&self) -> bool {
        self.ended.is_some()
    }
}

/// The key under which a wait is found.
pub(super) fn wait_key(tenant: &str, run_id: &str, wait_id: &str, what: &WaitFor) -> ControlKey {
    match what {
        WaitFor::Sleep { .. } | WaitFor::Unknown => keys::run_timer(tenant, run_id, wait_id),
        WaitFor::Event { event_name, match_criteria, .. } => {
            keys::waiter(tenant, event_name, index_leaf(match_criteria), run_id, wait_id)
        }
        WaitFor::Task { task, .. } => keys::run_awaits(tenant, run_id, "TASK", task),
        WaitFor::Job { job, .. } => keys::run_awaits(tenant, run_id, "JOB", job),
    }
}

impl Dispatch {
    /// What `event` brings about, if anything. `log` has applied it already; `retry_was_set` says whether its
    /// step had a timer.
    pub(super) fn side_writes(
        &self,
        log: &RunLog,
        event: &LogEvent,
        retry_was_set: bool,
    ) -> Result<Option<SideWrite>, DispatchError> {
        let (tenant, run_id, id) = (&log.tenant, &log.run_id, &event.correlation_id);
        let owner = |key: &ControlKey, due: Option<Millis>| Owner {
            run_id: run_id.clone(),
            entity_id: id.clone(),
            external: log.external,
            match_criteria: None,
            since: None,
            due_shard: due.map(|_| keys::run_due_shard_of(key)),
            due_at: due,
        };
        let timer = || keys::run_timer(tenant, run_id, id);
        Ok(match event.event_type {
            RunEventType::StepRetrying => {
                let due = log.history.steps().get(id).and_then(|step| step.retry_after);
                // The program that drives an external run keeps the time of its steps itself.
                match due.filter(|_| !log.external) {
                    Some(due) => {
                        let key = timer();
                        let write = self.put_owner(&key, &owner(&key, Some(due)))?;
                        Some(SideWrite::new(key, write))
                    }
                    None => None,
                }
            }
            RunEventType::StepStarted | RunEventType::StepFailed if retry_was_set && !log.external => {
                let key = timer();
                let write = self.delete_owner(&key, false)?;
                Some(SideWrite::new(key, write))
            }
            RunEventType::WaitCreated => {
                let Some(wait) = log.history.waits().get(id) else { return Ok(None) };
                let key = wait_key(tenant, run_id, id, &wait.what);
                let mut owner = owner(&key, wait.what.due());
                if let WaitFor::Event { match_criteria, since, .. } = &wait.what {
                    owner.match_criteria = Some(match_criteria.to_string());
                    owner.since = *since;
                }
                let write = self.put_owner(&key, &owner)?;
                Some(SideWrite::new(key, write))
            }
            RunEventType::WaitCompleted => {
                let Some(wait) = log.history.waits().get(id) else { return Ok(None) };
                let key = wait_key(tenant, run_id, id, &wait.what);
                let write = self.delete_owner(&key, false)?;
                Some(SideWrite::new(key, write))
            }
            RunEventType::HookCreated => {
                let token = event.event_data.get("token").and_then(Value::as_str).unwrap_or_default();
                let row = HookRow::new(tenant, run_id, id, token, log.external);
                let put = self.control.put_for_transaction(&row.key(), &row)?;
                let put = put
                    .condition_expression("attribute_not_exists(PK) OR disposed = :true")
                    .expression_attribute_values(":true", AttributeValue::Bool(true));
                let write = as_put(put.build().map_err(built)?);
                Some(SideWrite { key: row.key(), write, token_of: Some(id.clone()) })
            }
            RunEventType::HookDisposed => {
                let Some(hook) = log.history.hooks().get(id) else { return Ok(None) };
                // A hook that never had the token is conflicted and cannot be disposed, so the row is this
                // hook's own.
                let row = HookRow::new(tenant, run_id, id, &hook.token, log.external);
                let write = self.dispose_write(&row)?;
                Some(SideWrite::new(row.key(), write))
            }
            RunEventType::RunCreated
            | RunEventType::RunStarted
            | RunEventType::RunCompleted
            | RunEventType::RunFailed
            | RunEventType::RunCancelled
            | RunEventType::StepCreated
            | RunEventType::StepStarted
            | RunEventType::StepCompleted
            | RunEventType::StepFailed
            | RunEventType::HookConflict
            | RunEventType::HookReceived => None,
        })
    }

    fn put_owner(&self, key: &ControlKey, owner: &Owner) -> Result<TransactWriteItem, DispatchError> {
        Ok(as_put(self.control.put_for_transaction(key, owner)?.build().map_err(built)?))
    }

    /// Deletes a wait or a timer; `if_there` refuses the whole transaction when it is gone.
    pub(super) fn delete_owner(
        &self,
        key: &ControlKey,
        if_there: bool,
    ) -> Result<TransactWriteItem, DispatchError> {
        let delete = self.control.delete_for_transaction(key);
        let delete = match if_there {
            true => delete.condition_expression("attribute_exists(PK)"),
            false => delete,
        };
        Ok(TransactWriteItem::builder().delete(delete.build().map_err(built)?).build())
    }

    /// The change of a run's record that goes with an entry. Its conditions: the lease is still held, and the run was
    /// not called since its record was read.
    pub(super) fn run_write(
        &self,
        tenant: &Name,
        run_id: &Name,
        write: RunWrite<'_>,
    ) -> Result<TransactWriteItem, DispatchError> {
        let RunWrite { change, external, lease, expected_wakes } = write;
        let key = keys::run(tenant, run_id);
        let mut conditions = vec![if lease.is_some() { "leaseOwner = :me" } else { "attribute_exists(PK)" }];
        if expected_wakes.is_some() {
            conditions.push("wakes = :wakes");
        }
        let condition = conditions.join(" AND ");
        let mut update = self.control.update_for_transaction(&key);
        let mut set = Vec::new();
        if let Some(lease) = lease {
            if change.is_none() {
                let mut mine = self
                    .control
                    .check_for_transaction(&key)
                    .condition_expression(condition)
                    .expression_attribute_values(":me", text(lease.owner()));
                if let Some(wakes) = expected_wakes {
                    mine = mine.expression_attribute_values(":wakes", number(wakes));
                }
                let mine = mine.build().map_err(built)?;
                return Ok(TransactWriteItem::builder().condition_check(mine).build());
            }
            update = update.expression_attribute_values(":me", text(lease.owner()));
        } else {
            set.push("wakes = wakes + :one, dueShard = :dueShard, dueAt = :now".to_owned());
            update = update
                .expression_attribute_values(":one", number(1))
                .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
                .expression_attribute_values(":now", number(self.now().get()));
        }
        update = update.condition_expression(condition);
        if let Some(wakes) = expected_wakes {
            update = update.expression_attribute_values(":wakes", number(wakes));
        }
        if let Some(change) = change {
            set.push("#state = :state, listIn = :list".to_owned());
            update = update
                .expression_attribute_names("#state", "state")
                .expression_attribute_values(":state", text(change.state.as_str()))
                .expression_attribute_values(":list", text(&keys::runs_in(tenant, change.state.as_str())));
            if let Some((at, version)) = &change.started {
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
                    Ending::Inline(json) => ("ending", json),
                    Ending::Stored(key) => ("endingKey", key),
                };
                set.push(format!("{field} = :ending"));
                update = update.expression_attribute_values(":ending", text(value));
            }
        }
        let over = change.is_some_and(StateChange::ends);
        let remove = if over { " REMOVE ending, endingKey" } else { "" };
        let update = update.update_expression(format!("SET {}{remove}", set.join(", ")));
        let update = update.build().map_err(built)?;
        Ok(TransactWriteItem::builder().update(update).build())
    }
}

/// How the state of a run has changed once this event is appended too.
pub(super) fn state_change(before: Option<StateChange>, event: &LogEvent) -> Option<StateChange> {
    let state = match event.event_type {
        RunEventType::RunStarted => RunState::Running,
        RunEventType::RunCompleted => RunState::Completed,
        RunEventType::RunFailed => RunState::Failed,
        RunEventType::RunCancelled => RunState::Cancelled,
        _ => return before,
    };
    let version = event.event_data.get("workflowVersion").and_then(Value::as_str).map(str::to_owned);
    let started = (state == RunState::Running).then_some((event.timestamp, version));
    Some(StateChange {
        state,
        started: started.or(before.and_then(|before| before.started)),
        ended: state.is_terminal().then_some(event.timestamp),
        ending: None,
    })
}

/// A change by which a run begins to end: it stays in `state` until a later entry ends it.
pub(super) fn ending_change(before: Option<StateChange>, state: RunState, ending: Ending) -> StateChange {
    let before = before.unwrap_or(StateChange { state, started: None, ended: None, ending: None });
    StateChange { ending: Some(ending), ..before }
}

fn as_put(put: Put) -> TransactWriteItem {
    TransactWriteItem::builder().put(put).build()
}
