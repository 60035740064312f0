//! The marker of an idempotency key: which event has it. Written in one transaction with the
//! event, so that there is never the one without the other.

use aws_sdk_dynamodb::types::{Put, ReturnValuesOnConditionCheckFailure};
use ledgerline_event::{Event, Millis, Name, Seconds, content_hash};
use serde::{Deserialize, Serialize};

use crate::{ControlTable, Item, StoreError, build_error, keys, number, read};

/// How long a key collapses later events, at least.
pub const IDEMPOTENCY_TTL_SECONDS: u64 = 30 * 24 * 60 * 60;

/// The first event with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    /// The first event with the key.
    pub event_id: Name,
    /// Its time.
    pub timestamp: Millis,
    /// What it said.
    pub content_hash: String,
    /// When the key is free again. DynamoDB may delete later than that, so compare.
    pub ttl: Seconds,
}

impl Marker {
    /// The marker that the saver puts together with `event`.
    pub fn of(event: &Event, now: Millis) -> Self {
        Self {
            event_id: event.event_id.clone(),
            timestamp: event.timestamp,
            content_hash: content_hash(event),
            ttl: now.seconds().plus(IDEMPOTENCY_TTL_SECONDS),
        }
    }
}

/// The markers of all tenants' idempotency keys.
#[derive(Clone, Debug)]
pub struct IdempotencyMarkers {
    table: ControlTable,
}

impl IdempotencyMarkers {
    /// The markers in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The live marker of a tenant's key.
    pub async fn get(
        &self,
        tenant: &str,
        idempotency_key: &str,
        now: Millis,
    ) -> Result<Option<Marker>, StoreError> {
        let marker: Option<Marker> = self.table.get(&keys::marker(tenant, idempotency_key)).await?;
        Ok(marker.filter(|marker| marker.ttl > now.seconds()))
    }

    /// The marker's part of the transaction that also puts its event: refused while another event has the key.
    pub fn put_new(
        &self,
        tenant: &str,
        idempotency_key: &str,
        marker: &Marker,
        now: Millis,
    ) -> Result<Put, StoreError> {
        self.table
            .put_for_transaction(&keys::marker(tenant, idempotency_key), marker)?
            // DynamoDB may delete an expired marker days later: the key is free all the same.
            .condition_expression("attribute_not_exists(PK) OR #ttl <= :now")
            .expression_attribute_names("#ttl", "ttl")
            .expression_attribute_values(":now", number(now.seconds().get()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(build_error)
    }

    /// The marker that was in the way of another, from the answer to the refused transaction.
    pub fn read(item: Item) -> Result<Marker, StoreError> {
        read(item).map_err(|error: StoreError| StoreError::unreadable("reading a marker", error.message))
    }
}
