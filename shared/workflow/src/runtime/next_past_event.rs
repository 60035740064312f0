//! Matches the waits of a run with past events: events that were sent before the wait was registered, or that no runner has
//! taken yet. Only the runner that holds the run does this, and one event at a time: after each the code runs until it
//! waits. So a wait that the code drops because of one event does not take the next one.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{LogDraft, Name, RunEventType, WaitFor, WaitOutcome};
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{EventTaken, PastEvent, RunLease, RunLog};
use ledgerline_stage::Stage;

/// The waits of a run for which past events may have been sent.
#[derive(Default)]
pub(super) struct WaitMatching {
    waits: BTreeSet<Name>,
    /// Events that were found for them and not taken.
    found: BTreeMap<Name, PastEvent>,
}

impl WaitMatching {
    /// Past events may match these waits.
    pub(super) fn add(&mut self, waits: impl IntoIterator<Item = Name>) {
        self.waits.extend(waits);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Takes the oldest event that matches one of the waits; `None` if there is none.
    pub(super) async fn take_oldest(
        &mut self,
        stage: &Stage,
        log: &mut RunLog,
        lease: &mut RunLease,
    ) -> Result<Option<EventTaken>, ComponentError> {
        // Another wait may have taken an event that was found, or the wait is over.
        let history = &log.history;
        self.found.retain(|wait_id, past| {
            let is_open = history.waits().get(wait_id).is_some_and(|wait| !wait.state.is_terminal());
            is_open && !history.has_had(&past.event.event_id)
        });
        for wait_id in self.waits.clone() {
            if self.found.contains_key(&wait_id) {
                continue;
            }
            let tenant = lease.tenant.clone();
            match stage
                .runs
                .sent
                .find_past_event(&tenant, &log.history, &wait_id, &mut lease.positions)
                .await?
            {
                Some(past) => drop(self.found.insert(wait_id, past)),
                None => drop(self.waits.remove(&wait_id)),
            }
        }
        let Some(oldest) = self.found.values().min_by_key(|past| past.place().to_owned()).cloned() else {
            return Ok(None);
        };
        let taken = stage.runs.take_event(log, &oldest, lease).await?;
        self.found.remove(&oldest.wait_id);
        if let EventTaken::Done(_) = &taken {
            lease.positions.taken(&oldest);
            self.waits.remove(&oldest.wait_id);
        }
        Ok(Some(taken))
    }
}

/// The waits for events whose timeouts these drafts record.
pub(super) fn timed_out_waits(log: &RunLog, drafts: &[LogDraft]) -> Vec<Name> {
    let times_out = |draft: &&LogDraft| {
        draft.event_type == RunEventType::WaitCompleted
            && draft.event_data.get("outcome").is_some_and(|outcome| outcome == WaitOutcome::Timeout.as_str())
            && log
                .history
                .waits()
                .get(&draft.correlation_id)
                .is_some_and(|wait| matches!(wait.target, WaitFor::Event { .. }))
    };
    drafts.iter().filter(times_out).map(|draft| draft.correlation_id.clone()).collect()
}
