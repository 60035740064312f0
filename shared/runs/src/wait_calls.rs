//! Calling a run because one of its waits may have what it waits for. The call says which wait; the run itself looks
//! for the event, and takes the oldest that fits.

use ledgerline_event::{LogDraft, Name, RunEventType};
use ledgerline_store::{Answer, LogGuard, Waiter, keys};
use serde_json::{Map, Value, json};

use super::{
    Appended, LogEntry, PastEvent, RunLease, RunLog,
    derived_records::wait_key,
    wake::{ExternalAppend, Woken},
};
use crate::{RunDriver, Runs};
use ledgerline_outbox::DispatchError;

/// What became of taking an event.
#[derive(Debug)]
pub enum EventTaken {
    /// The wait is completed by this entry of the log.
    Done(LogEntry),
    /// The log has grown: catch up first.
    Behind,
    /// Another runner has the run.
    Lost,
}

impl Runs {
    /// Marks a wait of a run as called, and sees to it that the run looks for the event.
    pub async fn call_run(&self, tenant: &Name, waiter: &Waiter) -> Result<(), DispatchError> {
        let wait = &waiter.wait;
        let now = self.emitter.now();
        match self.records.call_wait(tenant, &wait.run_id, &wait.entity_id, now).await? {
            Answer::Done(_) => self.continue_run(tenant, &wait.run_id, RunDriver::of(wait.external)).await,
            // The run has ended, and waits no more.
            Answer::Refused(_) => Ok(self.waits.delete(&waiter.key()).await?),
        }
    }

    /// Completes a wait by an event that was found for it. The caller holds the run and has read its log to the end.
    pub async fn take_event(
        &self,
        log: &mut RunLog,
        past: &PastEvent,
        lease: &RunLease,
    ) -> Result<EventTaken, DispatchError> {
        let guards = [not_consumed(past)];
        match self.logs.append_with(log, &[completion(past)], Some(lease), &guards).await? {
            Appended::Done(entry) => Ok(EventTaken::Done(entry)),
            Appended::Lost => Ok(EventTaken::Lost),
            // A sender of the version before has given it to this run.
            Appended::Behind | Appended::GuardRefused | Appended::TokenTaken(_) => Ok(EventTaken::Behind),
        }
    }

    /// Completes a wait of an external run. Answers whether it did.
    pub async fn take_event_externally(&self, log: &RunLog, past: &PastEvent) -> Result<bool, DispatchError> {
        let Some(wait) = log.history.waits().get(&past.wait_id) else { return Ok(false) };
        let waiter = wait_key(&log.tenant, &log.run_id, &past.wait_id, &wait.what);
        let woken = self
            .logs
            .wake_run(ExternalAppend {
                tenant: &log.tenant,
                run_id: &log.run_id,
                draft: completion(past),
                guards: vec![LogGuard::WaitIsOpen(waiter), not_consumed(past)],
                expected_wake_count: None,
            })
            .await?;
        Ok(matches!(woken, Woken::Appended(_)))
    }
}

/// The event is consumed by the run, once.
fn not_consumed(past: &PastEvent) -> LogGuard {
    LogGuard::EventIsNotConsumed { event_id: past.event.event_id.clone(), wait_id: past.wait_id.clone() }
}

fn completion(past: &PastEvent) -> LogDraft {
    let sent = &past.event;
    let event_data: Map<String, Value> = [
        ("outcome", json!("event")),
        ("eventId", json!(sent.event_id)),
        ("eventName", json!(sent.event_name)),
        ("data", sent.data.clone()),
        ("matchCriteria", sent.match_criteria.clone()),
        ("sentAt", json!(keys::parse_sent_place(past.place()).unwrap_or(sent.timestamp))),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    LogDraft { event_type: RunEventType::WaitCompleted, correlation_id: past.wait_id.clone(), event_data }
}
