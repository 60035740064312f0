//! Wakes a run for a process other than its runner: the process appends one event, on condition that the wait or hook is still open,
//! and then sends the run to the runners or, if it is external, settles it. For a sent event the process only notifies the wait
//! that the event may fit; the run itself looks for the event, and takes the oldest that fits.

use ledgerline_event::{Invalid, LogDraft, LogEvent, Name, RunEventType};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Appended, LogEntry, PastEvent, RunLease, RunLog, derived_records::wait_key, end_run::is_last};
use crate::{RunLogs, Runs};
use ledgerline_outbox::{ComponentError, Message, Queue, message_group};
use ledgerline_store::{
    Appender, Conditional, LogGuard, PutLogEntry, RequestRetry, RetryCause, RunWrite, Waiter, back_off, keys,
};

/// The run that a runner is asked to execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct RunMessage {
    pub tenant_id: Name,
    pub run_id: Name,
}

impl RunMessage {
    /// Reads the body of a message; the error names the field.
    pub fn parse(body: &str) -> Result<Self, Invalid> {
        serde_json::from_str(body).map_err(|error| Invalid::new("message", error.to_string()))
    }
}

/// An event that a process other than the runner appends.
pub struct ExternalAppend<'a> {
    pub tenant: &'a Name,
    pub run_id: &'a Name,
    pub draft: LogDraft,
    /// Conditions and writes that are part of the transaction.
    pub guards: Vec<LogGuard>,
    /// The run's wake count as the caller read it. If the run was woken since, the append is refused.
    pub expected_wake_count: Option<u64>,
}

/// What became of an [`ExternalAppend`].
pub enum Woken {
    Appended(LogEvent),
    /// The run has ended, or there is none.
    Ended,
    /// The guards, or `expected_wake_count`, did not hold.
    Refused,
}

/// Which program executes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunDriver {
    /// A runner of this ledger: the run is enqueued for it.
    Runner,
    /// A program that appends the events of its run over HTTP. The process that wakes the run does what follows: it gives
    /// its waits the events that were sent for them, and emits its log.
    ExternalProgram,
}

impl RunDriver {
    /// The driver of a run, by what its record says.
    pub fn of(external: bool) -> Self {
        if external { Self::ExternalProgram } else { Self::Runner }
    }

    /// Whether an external program executes the run, as records say it.
    pub fn is_external(self) -> bool {
        self == Self::ExternalProgram
    }
}

/// What became of taking an event.
#[derive(Debug)]
pub enum EventTaken {
    /// The wait is completed by this entry of the log.
    Done(LogEntry),
    /// The log has grown: catch up first.
    StaleLog,
    /// Another runner has the run.
    Lost,
}

impl RunLogs {
    /// Appends the event after the last one in the log.
    pub async fn wake_run(&self, append: ExternalAppend<'_>) -> Result<Woken, ComponentError> {
        self.wake_run_as(self.emitter.new_event_id(), append).await
    }

    /// The same with a given event id, which the guards may hold.
    pub async fn wake_run_as(
        &self,
        event_id: Name,
        append: ExternalAppend<'_>,
    ) -> Result<Woken, ComponentError> {
        let ExternalAppend { tenant, run_id, draft, guards, expected_wake_count } = append;
        let nonce = self.emitter.new_event_id();
        let mut retries = RequestRetry::default();
        loop {
            let Some(last) = self.last_entry(tenant, run_id).await? else { return Ok(Woken::Ended) };
            let Some(newest) = last.events.last() else { return Ok(Woken::Ended) };
            if is_last(newest.event_type) {
                return Ok(Woken::Ended);
            }
            let event = draft.clone().at(event_id.clone(), self.emitter.now().max(newest.timestamp));
            let row = self.entry_row(&nonce, std::slice::from_ref(&event)).await?;
            let mut write = self.entries.entry(tenant, run_id, last.sequence + 1, &row);
            write.change_run(RunWrite {
                appender: Appender::Waker(self.emitter.now()),
                change: None,
                external: false,
                expected_wake_count,
            })?;
            for guard in &guards {
                write.guard(guard)?;
            }
            match write.send().await? {
                PutLogEntry::Done => return Ok(Woken::Appended(event)),
                PutLogEntry::PlaceTaken => back_off(&mut retries, RetryCause::LostRace).await?,
                PutLogEntry::Refused(_) => return Ok(Woken::Refused),
            }
        }
    }
}

impl Runs {
    /// Continues a run that was woken. If this is not done, the sweep does it.
    pub async fn continue_run(
        &self,
        tenant: &Name,
        run_id: &Name,
        driver: RunDriver,
    ) -> Result<(), ComponentError> {
        match driver {
            RunDriver::Runner => self.enqueue_run(tenant, run_id, 0).await,
            RunDriver::ExternalProgram => self.settle_run(tenant, run_id).await,
        }
    }

    /// Sends a run to the runners.
    pub async fn enqueue_run(
        &self,
        tenant: &Name,
        run_id: &Name,
        delay_seconds: u64,
    ) -> Result<(), ComponentError> {
        let message = run_message(tenant, run_id, delay_seconds)?;
        self.queues.send_messages(vec![message]).await
    }

    /// Marks a wait of a run as notified, and continues the run, so that it looks for the event.
    pub async fn notify_run(&self, tenant: &Name, waiter: &Waiter) -> Result<(), ComponentError> {
        let wait = &waiter.wait;
        let now = self.emitter.now();
        match self.records.notify_wait(tenant, &wait.run_id, &wait.entity_id, now).await? {
            Conditional::Done(_) => {
                self.continue_run(tenant, &wait.run_id, RunDriver::of(wait.external)).await
            }
            // The run has ended, and waits no more.
            Conditional::Refused(_) => Ok(self.waits.delete(&waiter.key()).await?),
        }
    }

    /// Completes a wait by an event that was found for it. The caller holds the run and has read its log to the end.
    pub async fn take_event(
        &self,
        log: &mut RunLog,
        past: &PastEvent,
        lease: &RunLease,
    ) -> Result<EventTaken, ComponentError> {
        let guards = [not_consumed(past)];
        match self.logs.append_with(log, &[completion(past)], Some(lease), &guards).await? {
            Appended::Done(entry) => Ok(EventTaken::Done(entry)),
            Appended::Lost => Ok(EventTaken::Lost),
            // A sender of a version before 0.1.0 has given it to this run.
            Appended::StaleLog | Appended::GuardRefused | Appended::TokenTaken(_) => Ok(EventTaken::StaleLog),
        }
    }

    /// Completes a wait of an external run. Returns whether it did.
    pub async fn take_event_externally(
        &self,
        log: &RunLog,
        past: &PastEvent,
    ) -> Result<bool, ComponentError> {
        let Some(wait) = log.history.waits().get(&past.wait_id) else { return Ok(false) };
        let waiter = wait_key(&log.tenant, &log.run_id, &past.wait_id, &wait.target);
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

/// The message that sends a run to the runners.
pub(crate) fn run_message(tenant: &Name, run_id: &Name, delay_seconds: u64) -> Result<Message, Invalid> {
    let message = RunMessage { tenant_id: tenant.clone(), run_id: run_id.clone() };
    let body = serde_json::to_string(&message).map_err(|error| Invalid::new("message", error.to_string()))?;
    Ok(Message { queue: Queue::Runs, group: message_group(tenant), body, delay_seconds })
}

/// The condition that the run has not consumed the event yet; the append notes that it has.
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
        ("matchCriteria", sent.sent_match.clone()),
        ("sentAt", json!(keys::parse_sent_place(past.place()).unwrap_or(sent.timestamp))),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    LogDraft { event_type: RunEventType::WaitCompleted, correlation_id: past.wait_id.clone(), event_data }
}
