//! The saver's side of the handshake with the drainers.
//!
//! A drainer publishes a horizon and only then reads; a saver puts an event and only then
//! looks at the horizons. So either the saver saw a horizon below its event, and the pass
//! that will cross the event reads it later; or the event may have been passed over, and
//! gets a pointer in the tenant's late lane, which has a horizon of its own per drainer:
//! the stamp must lie above every lane horizon, seen *after* the pointer is in place.

use std::collections::{HashMap, HashSet};

use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::try_join_all;
use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize};

use crate::{
    Fault, StoreError,
    control::{ControlTable, keys},
};

/// More rounds than any drainer's pace explains; the record is then given back to the queue.
const MAX_ROUNDS: u32 = 20;

/// How far one drainer has published that it reads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Horizons {
    /// Events with a sort key up to this one may have been read past.
    #[serde(default)]
    horizon: Option<String>,
    /// Pointers with a stamp up to this one may have been read past.
    #[serde(default)]
    lane_horizon: Option<Millis>,
}

/// A pointer in the late lane.
#[derive(Debug, Serialize)]
struct Pointer {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<Seconds>,
}

/// An event that is surely in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmed<'a> {
    pub(crate) sk: &'a str,
    pub(crate) ttl: Option<Seconds>,
}

impl ControlTable {
    /// Notes that there is such a tenant, so that drainers and sweeps visit it.
    pub(crate) async fn register_tenant(&self, tenant: &Name, now: Millis) -> Result<(), StoreError> {
        self.put_new(&keys::tenant(tenant), &HashMap::from([("registeredAt", now)])).await.map(|_| ())
    }

    /// Gives every confirmed event that a horizon has reached a pointer that no lane horizon
    /// has. Returns the sort keys of those that were late. Call it only after the events are in the table.
    pub(crate) async fn settle(
        &self,
        tenant: &Name,
        events: &[Confirmed<'_>],
        now: Millis,
    ) -> Result<HashSet<String>, StoreError> {
        let partition = keys::drains(tenant);
        let mut horizons: Vec<Horizons> = self.all(&partition).await?;
        let late: Vec<_> =
            events.iter().filter(|event| horizons.iter().any(|seen| seen.has_reached(event.sk))).collect();
        if late.is_empty() {
            return Ok(HashSet::new());
        }
        for _ in 0..MAX_ROUNDS {
            let highest = horizons.iter().filter_map(|seen| seen.lane_horizon).max();
            let stamp = highest.map_or(now, |lane| now.max(lane.plus(1)));
            try_join_all(late.iter().map(|event| self.put_pointer(tenant, stamp, event))).await?;
            horizons = self.all(&partition).await?;
            if !horizons.iter().any(|seen| seen.lane_horizon.is_some_and(|lane| lane >= stamp)) {
                return Ok(late.iter().map(|event| event.sk.to_owned()).collect());
            }
        }
        Err(StoreError {
            fault: Fault::Conflict,
            ..StoreError::unreadable(
                "settling late events",
                format!("the late lane of {tenant} moves too fast"),
            )
        })
    }

    async fn put_pointer(
        &self,
        tenant: &Name,
        stamp: Millis,
        event: &Confirmed<'_>,
    ) -> Result<(), StoreError> {
        let key = keys::late_pointer(tenant, stamp, event.sk);
        self.dynamo
            .put_item()
            .table_name(&self.name)
            .set_item(serde_dynamo::aws_sdk_dynamodb_1::to_item(Pointer { ttl: event.ttl }).ok())
            .item("PK", AttributeValue::S(key.pk))
            .item("SK", AttributeValue::S(key.sk))
            .send()
            .await
            .map(|_| ())
            .map_err(|error| StoreError::new("PutItem", error))
    }
}

impl Horizons {
    fn has_reached(&self, sk: &str) -> bool {
        self.horizon.as_deref().is_some_and(|horizon| sk <= horizon)
    }
}
