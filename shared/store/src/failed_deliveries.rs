//! Failed deliveries: what the bus, the queue or the saver could not bring into the table.
//! Each is stored whole before its alert is sent, and stays until it is redriven or expires.

use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize};

use crate::{ControlTable, Fault, Payloads, StoreError, key_item, keys, number, read, text};

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
    /// The event type that the message names, as far as it can be read.
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
    /// When DynamoDB deletes it, once it is redriven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// A failed delivery as it is stored.
#[derive(Debug)]
pub struct Kept {
    /// The stored record; if the same message had failed before, that of the earlier time.
    pub failure: FailedDelivery,
    /// Whether the message had not failed before.
    pub is_new: bool,
}

/// Which failed deliveries are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureFilter {
    /// Those that no operator has redriven.
    Failed,
    /// These and those that were redriven.
    All,
}

/// One page of failed deliveries, newest first.
#[derive(Debug)]
pub struct FailurePage {
    /// The deliveries; their bodies are left out.
    pub items: Vec<FailedDelivery>,
    /// The id after which the next page begins; `None` on the last page.
    pub cursor: Option<String>,
}

/// The failed deliveries of all tenants.
#[derive(Clone, Debug)]
pub struct FailedDeliveries {
    table: ControlTable,
}

impl FailedDeliveries {
    /// The failed deliveries in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Keeps a failed delivery; the same one again changes nothing.
    pub async fn keep(&self, mut failure: FailedDelivery, payloads: &Payloads) -> Result<Kept, StoreError> {
        if let Some(body) = failure.body.take_if(|body| body.len() > INLINE_BODY) {
            let key = format!("failed/{}.json", failure.id);
            payloads.put(&key, body.into_bytes()).await?;
            failure.body_key = Some(key);
        }
        let key = keys::failure(&failure.tenant_id, &failure.id);
        if self.table.put_new(&key, &failure).await? {
            return Ok(Kept { failure, is_new: true });
        }
        let kept = self.table.get(&key).await?;
        Ok(Kept { failure: kept.unwrap_or(failure), is_new: false })
    }

    /// Records that the alert about a failed delivery was sent.
    pub async fn note_alert(&self, failure: &FailedDelivery, now: Millis) -> Result<(), StoreError> {
        self.update(failure, "SET alertedAt = if_not_exists(alertedAt, :now)", now, None).await
    }

    /// One failed delivery, body included.
    pub async fn get(&self, tenant: &Name, id: &str) -> Result<Option<FailedDelivery>, StoreError> {
        self.table.get(&keys::failure(tenant, id)).await
    }

    /// A tenant's failed deliveries, newest first.
    pub async fn list(
        &self,
        tenant: &Name,
        filter: FailureFilter,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<FailurePage, StoreError> {
        let mut items = Vec::new();
        let partition = keys::failures(tenant);
        let mut start = cursor.map(|id| key_item(&keys::failure(tenant, id)));
        loop {
            let mut query =
                self.table.partition(&partition).scan_index_forward(false).set_exclusive_start_key(start);
            if filter == FailureFilter::Failed {
                query = query
                    .filter_expression("#state = :failed")
                    .expression_attribute_names("#state", "state")
                    .expression_attribute_values(":failed", text("failed"));
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

    /// Notes that a failed delivery is back on the bus.
    pub async fn note_redrive(&self, failure: &FailedDelivery, now: Millis) -> Result<(), StoreError> {
        let change = "SET #state = :redriven, redrivenAt = :now, #ttl = :ttl";
        let until = now.seconds().plus(KEPT_AFTER_REDRIVE_SECONDS);
        self.update(failure, change, now, Some(until)).await
    }

    async fn update(
        &self,
        failure: &FailedDelivery,
        change: &str,
        now: Millis,
        redriven_until: Option<Seconds>,
    ) -> Result<(), StoreError> {
        let mut update = self
            .table
            .update(&keys::failure(&failure.tenant_id, &failure.id))
            .condition_expression("attribute_exists(PK)")
            .update_expression(change)
            .expression_attribute_values(":now", number(now.get()));
        if let Some(until) = redriven_until {
            update = update
                .expression_attribute_names("#state", "state")
                .expression_attribute_names("#ttl", "ttl")
                .expression_attribute_values(":redriven", text("redriven"))
                .expression_attribute_values(":ttl", number(until.get()));
        }
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            // The record has expired: there is nothing left to update.
            Err(error) if error.fault == Fault::ConditionFailed => Ok(()),
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
