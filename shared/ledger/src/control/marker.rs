//! The marker of an idempotency key: which event has it. Written in one transaction with the
//! event, so that there is never the one without the other.

use ledgerline_event::{Event, Millis, Name, Seconds, content_hash};
use serde::{Deserialize, Serialize};

use super::{ControlTable, keys};
use crate::StoreError;

/// How long a key collapses later events at the least.
pub const LIFETIME_SECONDS: u64 = 30 * 24 * 60 * 60;

/// Who was first with an idempotency key.
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
    /// The marker that `event` would leave.
    pub fn of(event: &Event, now: Millis) -> Self {
        Self {
            event_id: event.event_id.clone(),
            timestamp: event.timestamp,
            content_hash: content_hash(event),
            ttl: now.seconds().plus(LIFETIME_SECONDS),
        }
    }
}

impl ControlTable {
    /// The live marker of a tenant's key.
    pub async fn marker(
        &self,
        tenant: &str,
        idempotency_key: &str,
        now: Millis,
    ) -> Result<Option<Marker>, StoreError> {
        let marker: Option<Marker> = self.get(&keys::marker(tenant, idempotency_key)).await?;
        Ok(marker.filter(|marker| marker.ttl > now.seconds()))
    }
}
