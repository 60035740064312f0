//! Wakes a run for a process other than its runner: the process appends one event, on condition that what it answers is still open,
//! and then sends the run to the runners or, if it is external, settles it.

use ledgerline_event::{Invalid, LogDraft, LogEvent, Name};
use serde::{Deserialize, Serialize};

use super::ending::is_last;
use crate::{RunLogs, Runs};
use ledgerline_outbox::{DispatchError, Message, Queue, group};
use ledgerline_store::{Appender, Hindrance, LogGuard, Patience, PutLogEntry, RunWrite, wait_for_turn};

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
    /// How often the run may have been woken: one more time refuses the append.
    pub expected_wake_count: Option<u64>,
}

/// What became of it.
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
    /// A program that appends the events of its run over HTTP: the run is settled by the process that woke it.
    ExternalProgram,
}

impl RunDriver {
    /// The driver of a run, by what its record says.
    pub fn of(external: bool) -> Self {
        if external { Self::ExternalProgram } else { Self::Runner }
    }
}

impl RunLogs {
    /// Appends the event after the last one in the log.
    pub async fn wake_run(&self, append: ExternalAppend<'_>) -> Result<Woken, DispatchError> {
        self.wake_run_as(self.emitter.new_event_id(), append).await
    }

    /// The same with a given event id, which the guards may hold.
    pub async fn wake_run_as(
        &self,
        event_id: Name,
        append: ExternalAppend<'_>,
    ) -> Result<Woken, DispatchError> {
        let ExternalAppend { tenant, run_id, draft, guards, expected_wake_count } = append;
        let nonce = self.emitter.new_event_id();
        let mut patience = Patience::default();
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
                PutLogEntry::PlaceTaken => wait_for_turn(&mut patience, Hindrance::Behind).await?,
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
    ) -> Result<(), DispatchError> {
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
    ) -> Result<(), DispatchError> {
        let message = run_message(tenant, run_id, delay_seconds)?;
        self.queues.send_messages(vec![message]).await
    }
}

/// The message that sends a run to the runners.
pub(crate) fn run_message(tenant: &Name, run_id: &Name, delay_seconds: u64) -> Result<Message, Invalid> {
    let message = RunMessage { tenant_id: tenant.clone(), run_id: run_id.clone() };
    let body = serde_json::to_string(&message).map_err(|error| Invalid::new("message", error.to_string()))?;
    Ok(Message { queue: Queue::Runs, group: group(tenant), body, delay_seconds })
}
