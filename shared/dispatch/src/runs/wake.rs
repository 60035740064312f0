//! Waking a run from outside: a process appends one event, on condition that what it answers is still open,
//! and then sends the run to the runners or, if it is external, settles it.

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{Invalid, LogDraft, LogEvent, Name, RunEntity, RunEventType};
use serde::{Deserialize, Serialize};

use super::{append::PutEntry, side_writes::RunWrite};
use crate::{
    Dispatch, DispatchError, Queue,
    claim::Message,
    tasks::group,
    transaction::{Hindrance, Patience, busy},
};

/// What a runner is asked to look after.
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

/// An event that comes to a run from outside.
pub(super) struct FromOutside<'a> {
    pub(super) tenant: &'a Name,
    pub(super) run_id: &'a Name,
    pub(super) draft: LogDraft,
    /// Conditions and writes that are part of the transaction.
    pub(super) guards: Vec<TransactWriteItem>,
    /// How often the run may have been woken: one more time refuses the append.
    pub(super) expected_wakes: Option<u64>,
}

/// What became of it.
pub(super) enum Woken {
    Done(LogEvent),
    /// The run has ended, or there is none.
    Ended,
    /// The guards, or `expected_wakes`, did not hold.
    Refused,
}

/// Whether nothing can follow.
pub(super) fn ends_run(event: &LogEvent) -> bool {
    event.event_type.entity() == RunEntity::Run
        && !matches!(event.event_type, RunEventType::RunCreated | RunEventType::RunStarted)
}

impl Dispatch {
    /// Appends the event after whatever is last in the log.
    pub(super) async fn wake_run(&self, outside: FromOutside<'_>) -> Result<Woken, DispatchError> {
        self.wake_run_as(self.new_event_id(), outside).await
    }

    /// The same with a given event id, which the guards may hold.
    pub(super) async fn wake_run_as(
        &self,
        event_id: Name,
        outside: FromOutside<'_>,
    ) -> Result<Woken, DispatchError> {
        let FromOutside { tenant, run_id, draft, guards, expected_wakes } = outside;
        let nonce = self.new_event_id();
        let mut patience = Patience::default();
        loop {
            let Some(last) = self.last_entry(tenant, run_id).await? else { return Ok(Woken::Ended) };
            let Some(newest) = last.events.last() else { return Ok(Woken::Ended) };
            if ends_run(newest) {
                return Ok(Woken::Ended);
            }
            let event = draft.clone().at(event_id.clone(), self.now().max(newest.timestamp));
            let run = RunWrite { expected_wakes, ..RunWrite::default() };
            let run = self.run_write(tenant, run_id, run)?;
            let writes = guards.iter().cloned().chain([run]).collect();
            let events = std::slice::from_ref(&event);
            match self.put_entry(tenant, run_id, last.sequence + 1, &nonce, events, writes).await? {
                PutEntry::Done => return Ok(Woken::Done(event)),
                PutEntry::Taken => busy(&mut patience, Hindrance::Behind).await?,
                PutEntry::Refused(_) => return Ok(Woken::Refused),
            }
        }
    }

    /// Goes on with a run that was woken: settles it here if it is external, and otherwise sends it to the
    /// runners. If this is not done, the sweep does it.
    pub(super) async fn go_on(
        &self,
        tenant: &Name,
        run_id: &Name,
        external: bool,
    ) -> Result<(), DispatchError> {
        match external {
            true => self.settle_run(tenant, run_id).await,
            false => self.send_run(tenant, run_id, 0).await,
        }
    }

    /// Sends a run to the runners.
    pub async fn send_run(
        &self,
        tenant: &Name,
        run_id: &Name,
        delay_seconds: u64,
    ) -> Result<(), DispatchError> {
        let message = run_message(tenant, run_id, delay_seconds)?;
        self.send_messages(vec![message]).await
    }
}

/// The message that sends a run to the runners.
pub(super) fn run_message(tenant: &Name, run_id: &Name, delay_seconds: u64) -> Result<Message, Invalid> {
    let message = RunMessage { tenant_id: tenant.clone(), run_id: run_id.clone() };
    let body = serde_json::to_string(&message).map_err(|error| Invalid::new("message", error.to_string()))?;
    Ok(Message { queue: Queue::Runs, group: group(tenant), body, delay_seconds })
}
