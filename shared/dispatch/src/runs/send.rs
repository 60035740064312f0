//! Sending events to runs. An event is first written under every leaf of its match, and only then looks for those who
//! wait; a wait is first registered, and only then looks back. So one of the two sees the other.

use aws_sdk_dynamodb::types::TransactWriteItem;
use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{
    Invalid, LogDraft, Millis, Name, RunEventType,
    contain::{check_match, contains},
    leaves::event_leaves,
};
use ledgerline_ledger::{
    Emitter, Fault, StoreError, check_storable,
    control::{
        Item, item,
        keys::{self, ControlKey},
        read,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    RunLease,
    side_writes::Owner,
    wake::{FromOutside, Woken},
};
use crate::{
    Dispatch, DispatchError,
    claim::{Effects, Intent},
    idempotency::{Keyed, Made, check_idempotency_key},
    transaction::built,
};

/// A match is stored under each of its leaves: it should be short.
const MATCH_BYTES: usize = 8_000;
/// Larger data lies in the payload bucket.
const INLINE_BYTES: usize = 50_000;
/// Leaves that are looked at side by side.
const SIDE_BY_SIDE: usize = 16;

/// What somebody wants runs to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct EventSubmission {
    pub event: String,
    #[serde(default)]
    pub data: Value,
    #[serde(default = "nothing")]
    pub r#match: Value,
    /// Sent once more under this key, the event is not sent again.
    #[serde(default)]
    pub idempotency_key: Option<String>,
}

/// An event that is on its way to runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SubmittedEvent {
    pub event_id: Name,
    /// Whether it was sent before.
    pub collapsed: bool,
}

fn nothing() -> Value {
    Value::Object(Map::new())
}

/// An event that was sent, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SentEvent {
    pub tenant_id: Name,
    pub event_id: Name,
    pub event_name: Name,
    pub data: Value,
    pub match_criteria: Value,
    /// `workflow` or `external`.
    pub source_type: String,
    /// The run that sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_instance_id: Option<Name>,
    pub timestamp: Millis,
}

/// A sent event under one of its leaves; under none it is kept whole.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SentRow {
    pub(super) event_id: Name,
    pub(super) timestamp: Millis,
    /// JSON.
    pub(super) match_criteria: String,
    /// The event as JSON, unless it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event_key: Option<String>,
}

impl SentRow {
    pub(super) fn matches(&self, criteria: &Value) -> bool {
        serde_json::from_str(&self.match_criteria).is_ok_and(|sent: Value| contains(&sent, criteria))
    }
}

/// What stands in the row of a wait.
#[derive(Deserialize)]
struct WaiterRow {
    #[serde(rename = "PK")]
    pk: String,
    #[serde(rename = "SK")]
    sk: String,
    #[serde(flatten)]
    owner: Owner,
}

/// What a sent event is written under: its leaves, and once whole.
fn leaves_of(sent: &SentEvent) -> Vec<Option<u64>> {
    event_leaves(&sent.match_criteria).into_iter().map(Some).chain([None]).collect()
}

impl EventSubmission {
    /// The request under the key of the event, if it has one.
    fn keyed(&self, tenant: &str) -> Result<Option<Keyed>, Invalid> {
        let Some(key) = &self.idempotency_key else { return Ok(None) };
        check_idempotency_key("idempotencyKey", key)?;
        let asked = json!({ "event": self.event, "data": self.data, "match": self.r#match });
        let content_hash = crate::parked::digest(&[&asked.to_string()]);
        Ok(Some(Keyed { row: keys::send_request(tenant, key), content_hash, any_content: false }))
    }
}

impl SentEvent {
    pub(super) fn contains(&self, criteria: &str) -> bool {
        serde_json::from_str(criteria).is_ok_and(|criteria: Value| contains(&self.match_criteria, &criteria))
    }
}

impl Dispatch {
    /// Sends an event to whichever runs wait for it, or will. `from` is the run that sends it, and the id that the event
    /// is to have then: sent again it changes nothing.
    pub async fn send_event(
        &self,
        emitter: &Emitter,
        submission: EventSubmission,
        from: Option<(&Name, Name)>,
    ) -> Result<SubmittedEvent, DispatchError> {
        let event_name = Name::new("event", submission.event.as_str())?;
        if let Some(beginning) = ledgerline_subscription::reserved_beginning(&event_name) {
            let reason = format!("`{event_name}` cannot be sent: `{beginning}…` are the system's own events");
            return Err(Invalid::new("event", reason).into());
        }
        let keyed = submission.keyed(&emitter.origin().tenant)?;
        if let Some(keyed) = &keyed
            && let Some(event_id) = self.repeated(keyed).await?.and_then(|first| first.made)
        {
            return Ok(SubmittedEvent { event_id, collapsed: true });
        }
        let (run_id, event_id) = from.unzip();
        let sent = SentEvent {
            tenant_id: emitter.origin().tenant.clone(),
            event_id: event_id.unwrap_or_else(|| self.new_event_id()),
            event_name,
            data: submission.data,
            match_criteria: submission.r#match,
            source_type: if run_id.is_some() { "workflow" } else { "external" }.to_owned(),
            source_instance_id: run_id.cloned(),
            timestamp: emitter.now(),
        };
        let event_id = sent.event_id.clone();
        let key = keys::send_claim(&sent.tenant_id, &event_id);
        let effects = self.sent_effects(emitter, sent.clone()).await?;
        let intent = Intent { key, effects, started: Some(event_id.clone()), ttl: None };
        match self.carry_out_once(intent, keyed.as_ref()).await {
            Ok(Made::Before(Some(event_id))) => Ok(SubmittedEvent { event_id, collapsed: true }),
            Ok(Made::Before(None) | Made::Now) => Ok(SubmittedEvent { event_id, collapsed: false }),
            // So many want one of those who wait that it was not woken. The event is written down, and the sweep goes on
            // with it: whoever heard of an error would send it twice.
            Err(DispatchError::Store(error))
                if error.fault == Fault::Conflict && self.is_written(&sent).await? =>
            {
                tracing::warn!(%event_id, %error, "an event did not come to all who wait for it; the sweep goes on with it");
                Ok(SubmittedEvent { event_id, collapsed: false })
            }
            Err(error) => Err(error),
        }
    }

    /// What sending an event takes: it is also an ordinary event of the ledger.
    pub(crate) async fn sent_effects(
        &self,
        emitter: &Emitter,
        sent: SentEvent,
    ) -> Result<Effects, DispatchError> {
        check_match("match", &sent.match_criteria)?;
        let size = sent.match_criteria.to_string().len();
        if size > MATCH_BYTES {
            let reason =
                format!("has {size} bytes; at most {MATCH_BYTES} are allowed: put the rest into data");
            return Err(Invalid::new("match", reason).into());
        }
        check_storable(&sent.data.to_string()).map_err(|reason| Invalid::new("data", reason))?;
        check_storable(&sent.match_criteria.to_string()).map_err(|reason| Invalid::new("match", reason))?;
        let properties = json!({
            "eventName": sent.event_name,
            "data": sent.data,
            "matchCriteria": sent.match_criteria,
            "sourceType": sent.source_type,
            "sourceInstanceId": sent.source_instance_id,
        });
        let event = emitter
            .event(sent.event_name.as_str())
            .entity("EVENT", sent.event_id.as_str())
            .event_id(sent.event_id.clone())
            .at(sent.timestamp)
            .properties(properties)
            .build_plain()?;
        let events = vec![emitter.seal(event).await?];
        Ok(Effects { events, sends: vec![sent], ..Effects::default() })
    }

    /// Whether a sent event is written down under all of its leaves.
    async fn is_written(&self, sent: &SentEvent) -> Result<bool, DispatchError> {
        let key =
            |leaf| keys::sent_event(&sent.tenant_id, &sent.event_name, leaf, sent.timestamp, &sent.event_id);
        let keys: Vec<ControlKey> = leaves_of(sent).into_iter().map(key).collect();
        Ok(self.control.get_all(&keys).await?.len() == keys.len())
    }

    /// Writes a sent event down and wakes whoever waits for it. The same again changes nothing.
    pub(crate) async fn deliver_sent(&self, sent: &SentEvent) -> Result<(), DispatchError> {
        let leaves = leaves_of(sent);
        let mut rows: Vec<Item> = Vec::with_capacity(leaves.len());
        for leaf in &leaves {
            let key =
                keys::sent_event(&sent.tenant_id, &sent.event_name, *leaf, sent.timestamp, &sent.event_id);
            rows.push(item(&key, &self.sent_row(sent, leaf.is_none()).await?)?);
        }
        self.control.put_all(rows).await?;
        let lookups: Vec<_> = leaves.into_iter().map(|leaf| self.wake_waiters(sent, leaf).boxed()).collect();
        let looked: Vec<_> = stream::iter(lookups).buffer_unordered(SIDE_BY_SIDE).collect().await;
        looked.into_iter().collect()
    }

    async fn sent_row(&self, sent: &SentEvent, whole: bool) -> Result<SentRow, DispatchError> {
        let mut row = SentRow {
            event_id: sent.event_id.clone(),
            timestamp: sent.timestamp,
            match_criteria: sent.match_criteria.to_string(),
            event: None,
            event_key: None,
        };
        if whole {
            let json = serde_json::to_string(sent)
                .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
            if json.len() <= INLINE_BYTES {
                row.event = Some(json);
            } else {
                let key = format!("sent/{}.json", sent.event_id);
                self.payloads.put(&key, json.into_bytes()).await?;
                row.event_key = Some(key);
            }
        }
        Ok(row)
    }

    /// A sent event, whole.
    pub(super) async fn sent_event(
        &self,
        tenant: &Name,
        event_name: &str,
        row: &SentRow,
    ) -> Result<Option<SentEvent>, DispatchError> {
        let key = keys::sent_event(tenant, event_name, None, row.timestamp, &row.event_id);
        let Some(row) = self.control.get::<SentRow>(&key).await? else { return Ok(None) };
        let json = match (row.event, row.event_key) {
            (Some(json), _) => Some(json.into_bytes()),
            (None, Some(key)) => self.payloads.get(&key).await?,
            (None, None) => None,
        };
        let Some(json) = json else { return Ok(None) };
        let event = serde_json::from_slice(&json);
        Ok(Some(event.map_err(|error| StoreError::unreadable("reading a sent event", error.to_string()))?))
    }

    async fn wake_waiters(&self, sent: &SentEvent, leaf: Option<u64>) -> Result<(), DispatchError> {
        let partition = keys::waiters(&sent.tenant_id, &sent.event_name, leaf);
        let mut pages = self.control.partition(&partition).into_paginator().send();
        let mut trouble = None;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for row in page.items.unwrap_or_default() {
                let row: WaiterRow = read(row)?;
                let owner = row.owner;
                let in_time = owner.since.is_none_or(|since| since <= sent.timestamp);
                if !in_time
                    || !owner.match_criteria.as_deref().is_some_and(|criteria| sent.contains(criteria))
                {
                    continue;
                }
                let key = ControlKey { pk: row.pk, sk: row.sk };
                // One that cannot be woken must not keep the others waiting.
                if let Err(error) = self.wake_one(sent, &key, &owner).await {
                    tracing::error!(run_id = %owner.run_id, event_id = %sent.event_id, %error, "a run was not woken; the sweep tries again");
                    trouble = Some(error);
                }
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    async fn wake_one(&self, sent: &SentEvent, key: &ControlKey, owner: &Owner) -> Result<(), DispatchError> {
        if self.wake_by_event(sent, key, owner, None).await? {
            self.go_on(&sent.tenant_id, &owner.run_id, owner.external).await?;
        }
        Ok(())
    }

    /// Completes a wait by an event: the wait goes, and the event is consumed by the run, once. Answers whether it did.
    pub(super) async fn wake_by_event(
        &self,
        sent: &SentEvent,
        waiter: &ControlKey,
        owner: &Owner,
        lease: Option<&RunLease>,
    ) -> Result<bool, DispatchError> {
        let consumed = keys::consumed(&sent.tenant_id, &sent.event_id, &owner.run_id);
        let consumed = self
            .control
            .put_for_transaction(&consumed, &json!({ "waitId": owner.entity_id }))?
            .condition_expression("attribute_not_exists(PK)")
            .build()
            .map_err(built)?;
        let data = json!({
            "outcome": "event",
            "eventId": sent.event_id,
            "eventName": sent.event_name,
            "data": sent.data,
            "matchCriteria": sent.match_criteria,
        });
        let Value::Object(event_data) = data else { return Ok(false) };
        let woken = self
            .wake_run(FromOutside {
                tenant: &sent.tenant_id,
                run_id: &owner.run_id,
                draft: LogDraft {
                    event_type: RunEventType::WaitCompleted,
                    correlation_id: owner.entity_id.clone(),
                    event_data,
                },
                guards: vec![
                    self.delete_owner(waiter, true)?,
                    TransactWriteItem::builder().put(consumed).build(),
                ],
                lease,
            })
            .await?;
        match woken {
            Woken::Done(_) => Ok(true),
            Woken::Refused => Ok(false),
            Woken::Ended => {
                // Nobody waits any more.
                let delete = self.control.delete(waiter).send().await;
                delete.map_err(|error| StoreError::new("DeleteItem", error))?;
                Ok(false)
            }
        }
    }

    /// How many runs have consumed an event.
    pub(super) async fn consumed_count(&self, tenant: &Name, event_id: &str) -> Result<u64, DispatchError> {
        let mut pages = self
            .control
            .partition(&keys::consumed_by(tenant, event_id))
            .select(aws_sdk_dynamodb::types::Select::Count)
            .into_paginator()
            .send();
        let mut count = 0;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            count += u64::try_from(page.count).unwrap_or(0);
        }
        Ok(count)
    }
}
