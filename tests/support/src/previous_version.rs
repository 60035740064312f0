//! What processes of versions before 0.1.0 do, request by request, for tests of both versions side by side.

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem};
use ledgerline_event::{
    LogEvent, Millis, RunEntity, RunEventType, containment::contains, match_index::event_leaves,
};
use ledgerline_ledger::{Clients, Names};
use ledgerline_store::{
    ControlTable, item,
    keys::{self, ControlKey},
    read,
};
use serde_json::{Value, json};

use crate::name;

/// An event that a sender of a version before 0.1.0 sends.
pub struct OldEvent {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub event_name: String,
    /// Its id.
    pub event_id: String,
    /// What it brings.
    pub data: Value,
    /// What waits compare with their criteria.
    pub matching: Value,
    /// When its sender says that it was sent.
    pub timestamp: Millis,
}

/// A sender of a version before 0.1.0: it writes the event at its own time, and completes every wait that it finds.
pub struct OldSender {
    control: ControlTable,
    clients: Clients,
    run_queue: String,
}

/// A service did not do its part.
#[derive(Debug)]
pub struct Trouble;

impl OldSender {
    /// A sender that calls runs by this queue.
    pub fn new(clients: &Clients, names: &Names, run_queue: &str) -> Self {
        Self {
            control: ControlTable::new(clients.dynamo.clone(), &names.control_table),
            clients: clients.clone(),
            run_queue: run_queue.to_owned(),
        }
    }

    /// Sends one event, as far as it comes.
    pub async fn send(&self, event: &OldEvent) -> Result<(), Trouble> {
        let OldEvent { tenant, event_name, event_id, data, matching, timestamp } = event;
        let leaves: Vec<Option<u64>> = event_leaves(matching).into_iter().map(Some).chain([None]).collect();
        let whole = json!({
            "tenantId": tenant, "eventId": event_id, "eventName": event_name, "data": data,
            "matchCriteria": matching, "sourceType": "external", "timestamp": timestamp,
        });
        let rows = leaves.iter().map(|leaf| {
            let key = keys::sent_event(tenant, event_name, *leaf, *timestamp, event_id);
            let mut row =
                json!({ "eventId": event_id, "timestamp": timestamp, "matchCriteria": matching.to_string() });
            if leaf.is_none() {
                row["event"] = json!(whole.to_string());
            }
            item(&key, &row).unwrap()
        });
        self.control.put_all(rows.collect()).await.map_err(|_| Trouble)?;
        for leaf in leaves {
            let waiters = self.control.partition(&keys::waiters(tenant, event_name, leaf)).send().await;
            for row in waiters.map_err(|_| Trouble)?.items.unwrap_or_default() {
                let key = ControlKey {
                    pk: row["PK"].as_s().unwrap().clone(),
                    sk: row["SK"].as_s().unwrap().clone(),
                };
                let waiter: Value = read(row).unwrap();
                let criteria: Value =
                    serde_json::from_str(waiter["matchCriteria"].as_str().unwrap()).unwrap();
                let in_time = waiter["since"].as_u64().is_none_or(|since| since <= timestamp.get());
                if in_time && contains(matching, &criteria) {
                    self.complete(event, &key, &waiter).await?;
                }
            }
        }
        Ok(())
    }

    async fn complete(&self, event: &OldEvent, waiter: &ControlKey, owner: &Value) -> Result<(), Trouble> {
        let tenant = event.tenant.as_str();
        let run_id = owner["runId"].as_str().unwrap();
        for _ in 0..30 {
            let Some((sequence, newest)) = self.last_entry(tenant, run_id).await? else { return Ok(()) };
            let event_type = newest.event_type;
            let begins = matches!(event_type, RunEventType::RunCreated | RunEventType::RunStarted);
            if event_type.entity() == RunEntity::Run && !begins {
                return Ok(());
            }
            let data = json!({
                "outcome": "event", "eventId": event.event_id, "eventName": event.event_name,
                "data": event.data, "matchCriteria": event.matching,
            });
            let completed = LogEvent {
                event_id: name(&format!("evnt-{}-{run_id}", event.event_id)),
                event_type: RunEventType::WaitCompleted,
                correlation_id: name(owner["entityId"].as_str().unwrap()),
                timestamp: newest.timestamp.max(event.timestamp),
                event_data: data.as_object().unwrap().clone(),
            };
            let answer = self.control.transaction();
            let answer =
                answer.set_transact_items(Some(self.writes(event, waiter, run_id, sequence, &completed)));
            let Err(error) = answer.send().await else {
                return self.send_on(tenant, run_id, owner["external"] == true).await;
            };
            let Some(error) = error.as_service_error() else { return Err(Trouble) };
            let aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError::TransactionCanceledException(why) =
                error
            else {
                return Err(Trouble);
            };
            let refused = |position: usize| {
                why.cancellation_reasons()[position].code() == Some("ConditionalCheckFailed")
            };
            // Gone, or had by the run before.
            if refused(1) || refused(2) {
                return Ok(());
            }
        }
        Err(Trouble)
    }

    fn writes(
        &self,
        event: &OldEvent,
        waiter: &ControlKey,
        run_id: &str,
        sequence: u64,
        completed: &LogEvent,
    ) -> Vec<TransactWriteItem> {
        let tenant = event.tenant.as_str();
        let entry = json!({ "nonce": completed.event_id, "events": json!([completed]).to_string() });
        let entry =
            self.control.put_for_transaction(&keys::run_entry(tenant, run_id, sequence + 1), &entry).unwrap();
        let entry = entry.condition_expression("attribute_not_exists(PK)").build().unwrap();
        let delete = self.control.delete_for_transaction(waiter).condition_expression("attribute_exists(PK)");
        let consumed = keys::consumed(tenant, &event.event_id, run_id);
        let consumed = self
            .control
            .put_for_transaction(&consumed, &json!({ "waitId": completed.correlation_id }))
            .unwrap()
            .condition_expression("attribute_not_exists(PK)");
        let key = keys::run(tenant, run_id);
        let number = |value: u64| AttributeValue::N(value.to_string());
        let run = self
            .control
            .update_for_transaction(&key)
            .update_expression("SET wakes = wakes + :one, dueShard = :dueShard, dueAt = :now")
            .condition_expression("attribute_exists(PK)")
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":dueShard", AttributeValue::S(keys::run_due_shard_of(&key)))
            .expression_attribute_values(":now", number(event.timestamp.get()));
        vec![
            TransactWriteItem::builder().put(entry).build(),
            TransactWriteItem::builder().delete(delete.build().unwrap()).build(),
            TransactWriteItem::builder().put(consumed.build().unwrap()).build(),
            TransactWriteItem::builder().update(run.build().unwrap()).build(),
        ]
    }

    async fn last_entry(&self, tenant: &str, run_id: &str) -> Result<Option<(u64, LogEvent)>, Trouble> {
        let query = self
            .control
            .partition(&keys::run_partition(tenant, run_id))
            .key_condition_expression("PK = :pk AND begins_with(SK, :log)")
            .expression_attribute_values(":log", AttributeValue::S(keys::LOG.into()))
            .scan_index_forward(false)
            .limit(1)
            .send();
        let rows = query.await.map_err(|_| Trouble)?.items.unwrap_or_default();
        Ok(rows.into_iter().next().map(|row| {
            let sequence = keys::parse_run_entry(row["SK"].as_s().unwrap()).unwrap();
            let entry: Value = read(row).unwrap();
            let events: Vec<LogEvent> = serde_json::from_str(entry["events"].as_str().unwrap()).unwrap();
            (sequence, events.last().unwrap().clone())
        }))
    }

    async fn send_on(&self, tenant: &str, run_id: &str, external: bool) -> Result<(), Trouble> {
        if external {
            // The sweep settles it.
            return Ok(());
        }
        let body = json!({ "tenantId": tenant, "runId": run_id }).to_string();
        let send = self.clients.sqs.send_message().queue_url(&self.run_queue).message_body(body);
        send.send().await.map(|_| ()).map_err(|_| Trouble)
    }
}
