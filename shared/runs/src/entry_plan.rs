//! What the next entry of a log holds: as many events as one transaction takes, and what they bring about.

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEventType, WaitFor, WaitOutcome};
use ledgerline_outbox::ComponentError;
use ledgerline_store::RunChange;

use super::{
    RunLog,
    derived_records::{DerivedRecord, RetryTimer, derived_record, state_change},
    hook::token_key,
    log::{ENTRY_BYTES, json_size, stored_size},
};

/// Writes of one transaction beside the entry and the run: it takes a hundred.
const DERIVED_RECORDS: usize = 90;
/// What these writes may hold: a transaction takes 4 MB, the entry included.
const DERIVED_BYTES: usize = 2_500_000;

/// The next entry of a log.
#[derive(Debug)]
pub(crate) struct EntryPlan {
    /// Its events. They may be fewer than were asked for: one entry holds only so much.
    pub(crate) events: Vec<LogEvent>,
    /// The records that the events bring about, each once.
    pub(crate) derived: Vec<DerivedRecord>,
    /// How the run's record changes.
    pub(crate) change: Option<RunChange>,
}

impl EntryPlan {
    /// An entry of the first of these drafts, which are applied to `log`. `stamp` gives each event its time and its id. After an
    /// error the log has diverged if some were applied.
    pub(crate) fn new(
        log: &mut RunLog,
        drafts: &[LogDraft],
        mut stamp: impl FnMut() -> (Millis, Name),
    ) -> Result<Self, ComponentError> {
        let mut plan = Self { events: Vec::new(), derived: Vec::new(), change: None };
        let (mut bytes, mut derived_bytes) = (0, 0);
        for draft in drafts {
            bytes += stored_size(draft);
            if draft.event_type == RunEventType::WaitCreated {
                // Its criteria stand in a record of their own too.
                derived_bytes += json_size(&draft.event_data);
            }
            let full =
                bytes > ENTRY_BYTES || derived_bytes > DERIVED_BYTES || plan.derived.len() >= DERIVED_RECORDS;
            if !plan.events.is_empty() && (full || plan.needs_own_entry(&log.tenant, draft)) {
                break;
            }
            let (now, event_id) = stamp();
            let at = now.max(log.last_time);
            let event = draft.clone().at(event_id, at);
            let retry_after =
                log.history.steps().get(&event.correlation_id).and_then(|step| step.retry_after);
            let retry = retry_after.map_or(RetryTimer::Unset, |_| RetryTimer::Set);
            log.history.apply(&event).inspect_err(|_| log.diverged |= !plan.events.is_empty())?;
            log.last_time = at;
            if let Some(derived) = derived_record(log, &event, retry) {
                plan.put(derived);
            }
            plan.change = state_change(plan.change, &event);
            plan.events.push(event);
        }
        Ok(plan)
    }

    /// The record of a token is written on a condition. A later event of the same hook, or a hook with the same token, may
    /// need that record again: it goes into the next entry.
    fn needs_own_entry(&self, tenant: &Name, draft: &LogDraft) -> bool {
        let token = token_key(tenant, draft);
        self.derived.iter().any(|derived| {
            let claims_token =
                matches!(derived, DerivedRecord::PutHook(hook) if hook.hook_id == draft.correlation_id);
            claims_token || token.as_ref().is_some_and(|token| derived.key() == *token)
        })
    }

    /// A transaction writes a record once: the last write is what remains.
    fn put(&mut self, derived: DerivedRecord) {
        let key = derived.key();
        match self.derived.iter_mut().find(|before| before.key() == key) {
            Some(before) => *before = derived,
            None => self.derived.push(derived),
        }
    }

    /// Whether one of the events ends a wait for a sent event by its timeout.
    pub(crate) fn ends_wait_without_event(&self, log: &RunLog) -> bool {
        self.events.iter().any(|event| {
            event.event_type == RunEventType::WaitCompleted
                && log.history.waits().get(&event.correlation_id).is_some_and(|wait| {
                    wait.outcome == Some(WaitOutcome::Timeout) && matches!(wait.target, WaitFor::Event { .. })
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::RunDriver;

    fn name(text: impl Into<String>) -> Name {
        Name::new("id", text.into()).unwrap()
    }

    fn draft(event_type: RunEventType, id: &str, data: Value) -> LogDraft {
        let Value::Object(event_data) = data else { unreachable!("an object") };
        LogDraft { event_type, correlation_id: name(id), event_data }
    }

    fn plan(drafts: &[LogDraft]) -> EntryPlan {
        let mut log = RunLog::new(name("t"), name("run-1"), RunDriver::Runner);
        let begin = [
            draft(RunEventType::RunCreated, "run-1", json!({"workflowName": "w"})),
            draft(RunEventType::RunStarted, "run-1", json!({})),
        ];
        let mut number = 0;
        let mut stamp = || {
            number += 1;
            (Millis::try_from(1_767_453_739_640_u64).unwrap(), name(format!("evnt_{number}")))
        };
        EntryPlan::new(&mut log, &begin, &mut stamp).unwrap();
        EntryPlan::new(&mut log, drafts, &mut stamp).unwrap()
    }

    fn sleep(id: &str) -> LogDraft {
        draft(RunEventType::WaitCreated, id, json!({"resumeAt": 1_767_453_739_999_u64}))
    }

    #[test]
    fn a_record_is_written_once_in_its_last_form() {
        let completed = draft(RunEventType::WaitCompleted, "wait-1", json!({"outcome": "elapsed"}));
        let plan = plan(&[sleep("wait-1"), completed]);
        assert_eq!(plan.events.len(), 2);
        assert!(matches!(plan.derived[..], [DerivedRecord::DeleteWait { .. }]), "{:?}", plan.derived);
    }

    #[test]
    fn an_entry_takes_as_many_events_as_a_transaction_holds() {
        let sleeps: Vec<LogDraft> = (0..200).map(|n| sleep(&format!("wait-{n}"))).collect();
        assert_eq!(plan(&sleeps).events.len(), DERIVED_RECORDS);
        let large = |n: usize| {
            draft(
                RunEventType::StepCreated,
                &format!("step-{n}"),
                json!({"stepName": "s", "input": "x".repeat(40_000)}),
            )
        };
        let steps: Vec<LogDraft> = (0..20).map(large).collect();
        assert_eq!(plan(&steps).events.len(), ENTRY_BYTES / 41_000);
    }

    #[test]
    fn a_token_is_claimed_and_released_in_different_entries() {
        let hook = |id: &str, token: &str| draft(RunEventType::HookCreated, id, json!({"token": token}));
        let disposed = draft(RunEventType::HookDisposed, "hook-1", json!({}));
        assert_eq!(plan(&[hook("hook-1", "a"), disposed]).events.len(), 1);
        assert_eq!(plan(&[hook("hook-1", "a"), hook("hook-2", "a")]).events.len(), 1);
        assert_eq!(plan(&[hook("hook-1", "a"), hook("hook-2", "b")]).events.len(), 2);
    }
}
