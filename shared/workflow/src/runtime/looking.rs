//! Giving the waits of a run the events that were sent for them. Only the runner that holds the run does it, and one event at a
//! time: after each the code runs until it is quiet. So a wait that the code drops because of one event does not swallow
//! the next.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_dispatch::{Dispatch, DispatchError, EventTaken, PastEvent, RunLease, RunLog};
use ledgerline_event::{LogDraft, Name, RunEventType, WaitFor, WaitOutcome};

/// The waits of a run that may have what they wait for.
#[derive(Default)]
pub(super) struct Looking {
    waits: BTreeSet<Name>,
    /// What was found for them and is not taken yet.
    found: BTreeMap<Name, PastEvent>,
}

impl Looking {
    /// These waits are to look.
    pub(super) fn add(&mut self, waits: impl IntoIterator<Item = Name>) {
        self.waits.extend(waits);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Takes the oldest event that one of the waits can have; `None` if there is none.
    pub(super) async fn take(
        &mut self,
        dispatch: &Dispatch,
        log: &mut RunLog,
        lease: &mut RunLease,
    ) -> Result<Option<EventTaken>, DispatchError> {
        // Another wait may have taken what was found, or the wait is over.
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
            match dispatch.find_past_event(&tenant, &log.history, &wait_id, &mut lease.positions).await? {
                Some(past) => drop(self.found.insert(wait_id, past)),
                None => drop(self.waits.remove(&wait_id)),
            }
        }
        let Some(oldest) = self.found.values().min_by_key(|past| past.place().to_owned()).cloned() else {
            return Ok(None);
        };
        let taken = dispatch.take_event(log, &oldest, lease).await?;
        self.found.remove(&oldest.wait_id);
        if let EventTaken::Done(_) = &taken {
            lease.positions.taken(&oldest);
            self.waits.remove(&oldest.wait_id);
        }
        Ok(Some(taken))
    }
}

/// The waits for events whose time these drafts say is over.
pub(super) fn timing_out(log: &RunLog, drafts: &[LogDraft]) -> Vec<Name> {
    let times_out = |draft: &&LogDraft| {
        draft.event_type == RunEventType::WaitCompleted
            && draft.event_data.get("outcome").is_some_and(|outcome| outcome == WaitOutcome::Timeout.as_str())
            && log
                .history
                .waits()
                .get(&draft.correlation_id)
                .is_some_and(|wait| matches!(wait.what, WaitFor::Event { .. }))
    };
    drafts.iter().filter(times_out).map(|draft| draft.correlation_id.clone()).collect()
}
