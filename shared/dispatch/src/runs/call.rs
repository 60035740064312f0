//! Calling a run because one of its waits may have what it waits for. The call says which wait; the run itself looks
//! for the event, and takes the oldest that fits.

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use ledgerline_event::{LogDraft, Name, RunEventType};
use ledgerline_ledger::{
    StoreError,
    control::keys::{self, ControlKey},
};
use serde_json::{Map, Value, json};

use super::{
    Appended, LogEntry, PastEvent, RunLease, RunLog, RunRecord,
    side_writes::{Owner, wait_key},
    wake::{FromOutside, Woken},
};
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number, text},
    transaction::built,
};

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

impl Dispatch {
    /// Marks a wait of a run as called, and sees to it that the run looks for the event.
    pub(super) async fn call_run(
        &self,
        tenant: &Name,
        owner: &Owner,
        waiter: &ControlKey,
    ) -> Result<(), DispatchError> {
        let key = keys::run(tenant, &owner.run_id);
        let update = self
            .control
            .update(&key)
            // A runner of the version before looks for all waits after this entry of the log.
            .update_expression(
                "SET wakes = wakes + :one, dueShard = :dueShard, dueAt = :now, lookedBack = :zero ADD calledWaits :wait",
            )
            .condition_expression("attribute_exists(PK) AND attribute_not_exists(endedAt)")
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":now", number(self.now().get()))
            .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
            .expression_attribute_values(":wait", AttributeValue::Ss(vec![owner.entity_id.to_string()]));
        if let Answer::Done(_) = conditionally::<RunRecord>(update).await? {
            return self.go_on(tenant, &owner.run_id, owner.external).await;
        }
        // The run has ended, and waits no more.
        let delete = self.control.delete(waiter).send().await;
        delete.map_err(|error| StoreError::new("DeleteItem", error))?;
        Ok(())
    }

    /// Completes a wait by an event that was found for it. The caller holds the run and has read its log to the end.
    pub async fn take_event(
        &self,
        log: &mut RunLog,
        past: &PastEvent,
        lease: &RunLease,
    ) -> Result<EventTaken, DispatchError> {
        let consumed = self.consumed_write(&log.tenant, &log.run_id, past)?;
        match self.append_with(log, &[completion(past)], Some(lease), vec![consumed]).await? {
            Appended::Done(entry) => Ok(EventTaken::Done(entry)),
            Appended::Lost => Ok(EventTaken::Lost),
            // A sender of the version before has given it to this run.
            Appended::Behind | Appended::GuardRefused | Appended::TokenTaken(_) => Ok(EventTaken::Behind),
        }
    }

    /// Completes a wait of an external run. Answers whether it did.
    pub(super) async fn take_event_externally(
        &self,
        log: &RunLog,
        past: &PastEvent,
    ) -> Result<bool, DispatchError> {
        let Some(wait) = log.history.waits().get(&past.wait_id) else { return Ok(false) };
        let waiter = wait_key(&log.tenant, &log.run_id, &past.wait_id, &wait.what);
        let woken = self
            .wake_run(FromOutside {
                tenant: &log.tenant,
                run_id: &log.run_id,
                draft: completion(past),
                guards: vec![
                    self.delete_owner(&waiter, true)?,
                    self.consumed_write(&log.tenant, &log.run_id, past)?,
                ],
                expected_wakes: None,
            })
            .await?;
        Ok(matches!(woken, Woken::Done(_)))
    }

    /// The event is consumed by the run, once.
    fn consumed_write(
        &self,
        tenant: &Name,
        run_id: &Name,
        past: &PastEvent,
    ) -> Result<TransactWriteItem, DispatchError> {
        let key = keys::consumed(tenant, &past.event.event_id, run_id);
        let put = self.control.put_for_transaction(&key, &json!({ "waitId": past.wait_id }))?;
        let put = put.condition_expression("attribute_not_exists(PK)").build().map_err(built)?;
        Ok(TransactWriteItem::builder().put(put).build())
    }
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
