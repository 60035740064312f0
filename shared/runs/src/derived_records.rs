//! The records that events of a log bring about beside the log: timers, waits, hooks, the state of the run. All of it is written in
//! the transaction of the entry.

use ledgerline_event::{LogEvent, Millis, RunEventType, RunState, WaitFor, match_index::index_leaf};
use ledgerline_store::{
    ControlKey, HookRecord, RunChange, RunEnding, RunLogWrite, RunStart, StoreError, WaitRecord, keys,
};
use serde_json::Value;

use super::{RunLog, hook::hook_record};
use crate::RunDriver;

/// A record that an event brings about, and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DerivedRecord {
    /// A timer or a wait begins.
    PutWait { key: ControlKey, wait: WaitRecord },
    /// A timer or a wait is over.
    DeleteWait { key: ControlKey },
    /// A hook claims its token.
    PutHook(HookRecord),
    /// A hook releases its token.
    DisposeHook(HookRecord),
}

impl DerivedRecord {
    /// The key of the record. A transaction writes each record once.
    pub(crate) fn key(&self) -> ControlKey {
        match self {
            Self::PutWait { key, .. } | Self::DeleteWait { key } => key.clone(),
            Self::PutHook(hook) | Self::DisposeHook(hook) => hook.key(),
        }
    }

    /// Adds the write of the record to that of an entry.
    pub(crate) fn add_to(&self, write: &mut RunLogWrite<'_>) -> Result<(), StoreError> {
        match self {
            Self::PutWait { key, wait } => write.put_wait(key, wait),
            Self::DeleteWait { key } => write.delete_wait(key),
            Self::PutHook(hook) => write.put_hook(hook),
            Self::DisposeHook(hook) => write.dispose_hook(hook),
        }
    }
}

/// The key under which a wait is found.
pub(crate) fn wait_key(tenant: &str, run_id: &str, wait_id: &str, target: &WaitFor) -> ControlKey {
    match target {
        WaitFor::Sleep { .. } | WaitFor::Unknown => keys::run_timer(tenant, run_id, wait_id),
        WaitFor::Event { event_name, match_criteria, .. } => {
            keys::waiter(tenant, event_name, index_leaf(match_criteria), run_id, wait_id)
        }
        WaitFor::Task { task, .. } => keys::run_awaits(tenant, run_id, "TASK", task),
        WaitFor::Job { job, .. } => keys::run_awaits(tenant, run_id, "JOB", job),
    }
}

/// Whether the step of an event had a retry timer before the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryTimer {
    Set,
    Unset,
}

/// The record that `event` brings about, if any. `log` has applied the event already; `retry` is from before it.
pub(crate) fn derived_record(log: &RunLog, event: &LogEvent, retry: RetryTimer) -> Option<DerivedRecord> {
    let (tenant, run_id, id) = (&log.tenant, &log.run_id, &event.correlation_id);
    let wait_record = |key: &ControlKey, due: Option<Millis>| WaitRecord {
        run_id: run_id.clone(),
        entity_id: id.clone(),
        external: log.driver.is_external(),
        match_criteria: None,
        since: None,
        due_shard: due.map(|_| keys::run_due_shard_of(key)),
        due_at: due,
    };
    match event.event_type {
        RunEventType::StepRetrying => {
            let due = log.history.steps().get(id).and_then(|step| step.retry_after);
            // The program that drives an external run keeps the time of its steps itself.
            let due = due.filter(|_| log.driver == RunDriver::Runner)?;
            let key = keys::run_timer(tenant, run_id, id);
            let wait = wait_record(&key, Some(due));
            Some(DerivedRecord::PutWait { key, wait })
        }
        RunEventType::StepStarted | RunEventType::StepFailed
            if retry == RetryTimer::Set && log.driver == RunDriver::Runner =>
        {
            Some(DerivedRecord::DeleteWait { key: keys::run_timer(tenant, run_id, id) })
        }
        RunEventType::WaitCreated => {
            let target = &log.history.waits().get(id)?.target;
            let key = wait_key(tenant, run_id, id, target);
            let mut wait = wait_record(&key, target.due());
            if let WaitFor::Event { match_criteria, since, .. } = target {
                wait.match_criteria = Some(match_criteria.to_string());
                wait.since = *since;
            }
            Some(DerivedRecord::PutWait { key, wait })
        }
        RunEventType::WaitCompleted => {
            let target = &log.history.waits().get(id)?.target;
            Some(DerivedRecord::DeleteWait { key: wait_key(tenant, run_id, id, target) })
        }
        RunEventType::HookCreated => {
            let token = event.event_data.get("token").and_then(Value::as_str).unwrap_or_default();
            Some(DerivedRecord::PutHook(hook_record(tenant, run_id, id, token, log.driver)))
        }
        RunEventType::HookDisposed => {
            // A hook that never had the token is conflicted and cannot be disposed, so the record is this hook's own.
            let token = &log.history.hooks().get(id)?.token;
            Some(DerivedRecord::DisposeHook(hook_record(tenant, run_id, id, token, log.driver)))
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
    }
}

/// How the state of a run has changed once this event is appended too.
pub(crate) fn state_change(before: Option<RunChange>, event: &LogEvent) -> Option<RunChange> {
    let state = match event.event_type {
        RunEventType::RunStarted => RunState::Running,
        RunEventType::RunCompleted => RunState::Completed,
        RunEventType::RunFailed => RunState::Failed,
        RunEventType::RunCancelled => RunState::Cancelled,
        _ => return before,
    };
    let version = event.event_data.get("workflowVersion").and_then(Value::as_str).map(str::to_owned);
    let start = (state == RunState::Running).then_some(RunStart { at: event.timestamp, version });
    Some(RunChange {
        state,
        start: start.or(before.and_then(|before| before.start)),
        ended: state.is_terminal().then_some(event.timestamp),
        ending: None,
    })
}

/// A change by which a run begins to end: it stays in `state` until a later entry ends it.
pub(crate) fn ending_change(before: Option<RunChange>, state: RunState, ending: RunEnding) -> RunChange {
    RunChange { ending: Some(ending), ..before.unwrap_or(RunChange::to(state)) }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::{LogDraft, Name};
    use serde_json::{Value, json};

    use super::*;

    const AT: u64 = 1_767_453_739_640;

    fn at(ms: u64) -> Millis {
        Millis::try_from(ms).unwrap()
    }

    fn name(text: &str) -> Name {
        Name::new("id", text).unwrap()
    }

    fn event(event_type: RunEventType, id: &str, data: Value) -> LogEvent {
        let Value::Object(event_data) = data else { unreachable!("an object") };
        LogDraft { event_type, correlation_id: name(id), event_data }.at(name("evnt_1"), at(AT))
    }

    fn log_of(events: &[LogEvent], driver: RunDriver) -> RunLog {
        let mut log = RunLog::new(name("t"), name("run-1"), driver);
        log.history.apply(&event(RunEventType::RunCreated, "run-1", json!({"workflowName": "w"}))).unwrap();
        log.history.apply(&event(RunEventType::RunStarted, "run-1", json!({}))).unwrap();
        for event in events {
            log.history.apply(event).unwrap();
        }
        log
    }

    fn derived(events: &[LogEvent], retry: RetryTimer, driver: RunDriver) -> Option<DerivedRecord> {
        derived_record(&log_of(events, driver), events.last().unwrap(), retry)
    }

    #[test]
    fn a_wait_for_an_event_is_found_by_its_name_and_due_at_its_timeout() {
        let data = json!({"eventName": "paid", "matchCriteria": {"order": 7}, "timeoutAt": AT + 5});
        let created = event(RunEventType::WaitCreated, "wait-1", data);
        let Some(DerivedRecord::PutWait { key, wait }) =
            derived(std::slice::from_ref(&created), RetryTimer::Unset, RunDriver::Runner)
        else {
            panic!("a wait is put");
        };
        assert!(key.pk.starts_with("WAITERS#t#paid#") && key.sk == "run-1#wait-1");
        assert_eq!((wait.match_criteria.as_deref(), wait.due_at), (Some(r#"{"order":7}"#), Some(at(AT + 5))));
        assert_eq!(wait.due_shard, Some(keys::run_due_shard_of(&key)));

        let completed = event(RunEventType::WaitCompleted, "wait-1", json!({"outcome": "timeout"}));
        assert_eq!(
            derived(&[created, completed], RetryTimer::Unset, RunDriver::Runner),
            Some(DerivedRecord::DeleteWait { key })
        );
    }

    #[test]
    fn the_time_of_a_retry_is_kept_for_runs_of_runners_only() {
        let retrying = [
            event(RunEventType::StepCreated, "step-1", json!({"stepName": "s"})),
            event(RunEventType::StepStarted, "step-1", json!({})),
            event(RunEventType::StepRetrying, "step-1", json!({"error": "busy", "retryAfter": AT + 9})),
        ];
        let Some(DerivedRecord::PutWait { key, wait }) =
            derived(&retrying, RetryTimer::Unset, RunDriver::Runner)
        else {
            panic!("a timer is put");
        };
        assert_eq!((key.sk.as_str(), wait.due_at), ("TIMER#step-1", Some(at(AT + 9))));
        assert_eq!(derived(&retrying, RetryTimer::Unset, RunDriver::ExternalProgram), None);

        let started = [&retrying[..], &[event(RunEventType::StepStarted, "step-1", json!({}))]].concat();
        assert_eq!(
            derived(&started, RetryTimer::Set, RunDriver::Runner),
            Some(DerivedRecord::DeleteWait { key })
        );
        assert_eq!(derived(&started, RetryTimer::Unset, RunDriver::Runner), None);
    }

    #[test]
    fn a_hook_claims_its_token_and_releases_it() {
        let created = event(RunEventType::HookCreated, "hook-1", json!({"token": "mine"}));
        let Some(DerivedRecord::PutHook(hook)) =
            derived(std::slice::from_ref(&created), RetryTimer::Unset, RunDriver::Runner)
        else {
            panic!("a hook is put");
        };
        assert_eq!(hook.key(), keys::named_hook("t", "mine"));
        let disposed = event(RunEventType::HookDisposed, "hook-1", json!({}));
        assert_eq!(
            derived(&[created, disposed], RetryTimer::Unset, RunDriver::Runner),
            Some(DerivedRecord::DisposeHook(hook))
        );
    }

    #[test]
    fn a_run_that_starts_and_ends_in_one_entry_keeps_its_start() {
        let started = event(RunEventType::RunStarted, "run-1", json!({"workflowVersion": "2"}));
        let completed = event(RunEventType::RunCompleted, "run-1", json!({}));
        let change = state_change(state_change(None, &started), &completed).unwrap();
        assert_eq!(change.start, Some(RunStart { at: at(AT), version: Some("2".into()) }));
        assert!(change.ends() && change.state == RunState::Completed);

        let step = event(RunEventType::StepCreated, "step-1", json!({"stepName": "s"}));
        assert_eq!(state_change(None, &step), None);

        let ending = ending_change(None, RunState::Running, RunEnding::Inline("{}".into()));
        assert!(!ending.ends() && ending.state == RunState::Running);
    }
}
