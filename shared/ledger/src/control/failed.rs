//! Failed deliveries: what the bus, the queue or the saver could not bring into the table.
//! Each is kept before anybody is told, whole, until it is redriven or expires.

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    ControlTable, keys,
    table::{key_item, read},
};
use crate::{Fault, Payloads, StoreError};

/// A body over this many bytes is kept in S3: an item holds 400 KB.
const INLINE_BODY: usize = 300_000;
/// How long a redriven one is still listed.
const KEPT_AFTER_REDRIVE_SECONDS: u64 = 30 * 24 * 60 * 60;

/// Where a failed delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureState {
    /// No operator has redriven it yet.
    Failed,
    /// It was put back on the bus.
    Redriven,
}

/// One event that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedDelivery {
    /// Begins with the time at which it failed.
    pub id: String,
    /// Whose it is: the tenant that the event names, or the operators' if it names none.
    pub tenant_id: Name,
    /// The message in the dead-letter queue.
    pub message_id: String,
    /// When it was put there.
    pub failed_at: Millis,
    /// What it says of itself, as far as it can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// EventBridge's `detail-type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail_type: Option<String>,
    /// The entity, as in `GSI1PK`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// EventBridge's `time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// A code for machines.
    pub error_code: String,
    /// Why it failed, for people.
    pub reason: String,
    /// Where it stands.
    pub state: FailureState,
    /// When the alert about it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerted_at: Option<Millis>,
    /// When it was last put back on the bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redriven_at: Option<Millis>,
    /// The message as it was, unless it is in S3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The S3 key of a large one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_key: Option<String>,
    /// When it is forgotten, once redriven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// Why a failed delivery was not put back on the bus.
#[derive(Debug, thiserror::Error)]
pub enum RedriveError {
    /// There is none with that id.
    #[error("no failed delivery has the id {0}")]
    Unknown(String),
    /// It is not an EventBridge event, so no bus takes it.
    #[error("{id} cannot go back on the bus: {reason}")]
    NotAnEvent {
        /// Which one.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The bus did not take it.
    #[error("the bus refused {id}: {reason}")]
    Refused {
        /// Which one.
        id: String,
        /// The bus's own words.
        reason: String,
    },
    /// A service did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A failed delivery as it is kept.
#[derive(Debug)]
pub struct Kept {
    /// What is kept: of an earlier delivery of the same message, if there was one.
    pub failure: FailedDelivery,
    /// Whether it was not known before.
    pub is_new: bool,
}

/// One page of failed deliveries, newest first.
#[derive(Debug)]
pub struct FailurePage {
    /// The deliveries; their bodies are left out.
    pub items: Vec<FailedDelivery>,
    /// The id to go on after.
    pub cursor: Option<String>,
}

impl ControlTable {
    /// Keeps a failed delivery; the same one again changes nothing.
    pub async fn keep_failure(
        &self,
        mut failure: FailedDelivery,
        payloads: &Payloads,
    ) -> Result<Kept, StoreError> {
        if let Some(body) = failure.body.take_if(|body| body.len() > INLINE_BODY) {
            let key = format!("failed/{}.json", failure.id);
            payloads.put(&key, body.into_bytes()).await?;
            failure.body_key = Some(key);
        }
        let key = keys::failure(&failure.tenant_id, &failure.id);
        if self.put_new(&key, &failure).await? {
            return Ok(Kept { failure, is_new: true });
        }
        let kept = self.get(&key).await?;
        Ok(Kept { failure: kept.unwrap_or(failure), is_new: false })
    }

    /// Records that the alert about a failed delivery was sent.
    pub async fn failure_alerted(&self, failure: &FailedDelivery, now: Millis) -> Result<(), StoreError> {
        self.update_failure(failure, "SET alertedAt = if_not_exists(alertedAt, :now)", now, None).await
    }

    /// One failed delivery, body included.
    pub async fn failure(&self, tenant: &Name, id: &str) -> Result<Option<FailedDelivery>, StoreError> {
        self.get(&keys::failure(tenant, id)).await
    }

    /// A tenant's failed deliveries, newest first; those already redriven only on request.
    pub async fn failures(
        &self,
        tenant: &Name,
        with_redriven: bool,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<FailurePage, StoreError> {
        let mut items = Vec::new();
        let partition = keys::failures(tenant);
        let mut start = cursor.map(|id| key_item(&keys::failure(tenant, id)));
        loop {
            let mut query =
                self.partition(&partition).scan_index_forward(false).set_exclusive_start_key(start);
            if !with_redriven {
                query = query
                    .filter_expression("#state = :failed")
                    .expression_attribute_names("#state", "state")
                    .expression_attribute_values(":failed", AttributeValue::S("failed".into()));
            }
            let page = query.send().await.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                if items.len() == limit {
                    let cursor = items.last().map(|last: &FailedDelivery| last.id.clone());
                    return Ok(FailurePage { items, cursor });
                }
                items.push(FailedDelivery { body: None, ..read(item)? });
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(FailurePage { items, cursor: None });
            }
        }
    }

    /// Puts a failed delivery back on the bus, as it was. Saving is idempotent, so a repeat is harmless.
    pub async fn redrive(
        &self,
        tenant: &Name,
        id: &str,
        bus: (&aws_sdk_eventbridge::Client, &str),
        payloads: &Payloads,
        now: Millis,
    ) -> Result<(), RedriveError> {
        let known = match keys::is_failure_id(id) {
            true => self.failure(tenant, id).await?,
            false => None,
        };
        let failure = known.ok_or_else(|| RedriveError::Unknown(id.to_owned()))?;
        let body = failure.whole_body(payloads).await?;
        let entry = bus_entry(&body, bus.1)
            .map_err(|reason| RedriveError::NotAnEvent { id: id.to_owned(), reason })?;
        let answer = bus
            .0
            .put_events()
            .entries(entry)
            .send()
            .await
            .map_err(|error| StoreError::new("PutEvents", error))?;
        if let Some(refused) = answer.entries().iter().find(|entry| entry.error_code().is_some()) {
            let reason = refused.error_message().or(refused.error_code()).unwrap_or("no reason given");
            return Err(RedriveError::Refused { id: id.to_owned(), reason: reason.to_owned() });
        }
        let change = "SET #state = :redriven, redrivenAt = :now, #ttl = :ttl";
        Ok(self
            .update_failure(&failure, change, now, Some(now.seconds().plus(KEPT_AFTER_REDRIVE_SECONDS)))
            .await?)
    }

    async fn update_failure(
        &self,
        failure: &FailedDelivery,
        change: &str,
        now: Millis,
        redriven_until: Option<Seconds>,
    ) -> Result<(), StoreError> {
        let mut update = self
            .dynamo
            .update_item()
            .table_name(&self.name)
            .set_key(Some(key_item(&keys::failure(&failure.tenant_id, &failure.id))))
            .condition_expression("attribute_exists(PK)")
            .update_expression(change)
            .expression_attribute_values(":now", AttributeValue::N(now.to_string()));
        if let Some(until) = redriven_until {
            update = update
                .expression_attribute_names("#state", "state")
                .expression_attribute_names("#ttl", "ttl")
                .expression_attribute_values(":redriven", AttributeValue::S("redriven".into()))
                .expression_attribute_values(":ttl", AttributeValue::N(until.get().to_string()));
        }
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            // Expired in the meantime: there is nothing left to note it on.
            Err(error) if error.fault == Fault::Refused => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

impl FailedDelivery {
    /// The message as it was, from S3 if it is large.
    pub async fn whole_body(&self, payloads: &Payloads) -> Result<String, StoreError> {
        match (&self.body, &self.body_key) {
            (Some(body), _) => Ok(body.clone()),
            (None, Some(key)) => {
                let missing = || StoreError::unreadable("GetObject", format!("{key} is missing"));
                let body = payloads.get(key).await?.ok_or_else(missing)?;
                String::from_utf8(body)
                    .map_err(|_| StoreError::unreadable("GetObject", format!("{key} is not text")))
            }
            (None, None) => Err(StoreError::unreadable("GetItem", format!("{} has no body", self.id))),
        }
    }
}

/// The parts of an EventBridge event that are needed to send it again.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Delivered<'a> {
    source: String,
    detail_type: String,
    #[serde(borrow)]
    detail: &'a RawValue,
}

fn bus_entry(body: &str, bus: &str) -> Result<PutEventsRequestEntry, String> {
    let delivered: Delivered<'_> = serde_json::from_str(body).map_err(|error| error.to_string())?;
    Ok(PutEventsRequestEntry::builder()
        .event_bus_name(bus)
        .source(delivered.source)
        .detail_type(delivered.detail_type)
        .detail(delivered.detail.get())
        .build())
}
