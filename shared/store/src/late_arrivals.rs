//! Late arrivals: pointers to events that were saved behind a watermark, as the saver puts them and as drainers read them.
//!
//! A drainer publishes a watermark and only then reads; a saver puts an event and only then
//! reads the watermarks. So either the saver saw a watermark below its event, and the drainer
//! reads the event later; or the drainer may have passed the event, and the saver
//! puts a pointer among the tenant's late arrivals, which have a watermark of their own per drainer:
//! the pointer's stamp must lie above every late watermark, seen *after* the pointer is in place.

use std::collections::HashSet;

use futures::future::try_join_all;
use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize};

use crate::{AnnouncedWatermarks, ControlTable, Fault, StoreError, keys, read, text};

/// After so many pointers that a watermark overtook, the saver returns the record to the queue.
const MAX_ATTEMPTS: u32 = 20;

/// A pointer as it is stored.
#[derive(Debug, Serialize)]
struct Pointer {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<Seconds>,
}

/// The key of a pointer.
#[derive(Deserialize)]
struct PointerKey {
    #[serde(rename = "SK")]
    sk: String,
}

/// An event that the table is known to have.
#[derive(Clone, Copy, Debug)]
pub struct Confirmed<'a> {
    /// Its sort key.
    pub sk: &'a str,
    /// When it expires.
    pub ttl: Option<Seconds>,
}

/// A pointer to a late arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatePointer {
    /// Its place among the late arrivals: what a cursor holds.
    pub key: String,
    /// Above every watermark of late arrivals that the saver saw.
    pub stamp: Millis,
    /// The sort key of the event.
    pub event_sk: String,
}

/// Some pointers, in their order.
#[derive(Clone, Debug)]
pub struct LatePointerPage {
    /// The pointers.
    pub pointers: Vec<LatePointer>,
    /// Whether there may be more.
    pub more: bool,
}

/// The late arrivals of all tenants.
#[derive(Clone, Debug)]
pub struct LateArrivals {
    table: ControlTable,
}

impl LateArrivals {
    /// The late arrivals in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Puts a pointer, which no late watermark has reached, to every confirmed event that a watermark has
    /// reached. Returns the sort keys of those that were late. Call it only after the events are in the table.
    pub async fn point_to_late(
        &self,
        tenant: &Name,
        events: &[Confirmed<'_>],
        now: Millis,
    ) -> Result<HashSet<String>, StoreError> {
        let partition = keys::drains(tenant);
        let mut watermarks: Vec<AnnouncedWatermarks> = self.table.all(&partition).await?;
        let late: Vec<_> =
            events.iter().filter(|event| watermarks.iter().any(|seen| seen.has_reached(event.sk))).collect();
        if late.is_empty() {
            return Ok(HashSet::new());
        }
        for _ in 0..MAX_ATTEMPTS {
            let highest = watermarks.iter().filter_map(|seen| seen.late_arrivals).max();
            let stamp = highest.map_or(now, |highest| now.max(highest.plus(1)));
            try_join_all(late.iter().map(|event| self.put_pointer(tenant, stamp, event))).await?;
            watermarks = self.table.all(&partition).await?;
            if !watermarks.iter().any(|seen| seen.has_reached_pointer(stamp)) {
                return Ok(late.iter().map(|event| event.sk.to_owned()).collect());
            }
        }
        Err(StoreError {
            fault: Fault::Conflict,
            ..StoreError::unreadable(
                "pointing to late arrivals",
                format!("the late watermarks of {tenant} move too fast"),
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
        let put = self.table.put(&key, &Pointer { ttl: event.ttl })?.send().await;
        put.map(|_| ()).map_err(|error| StoreError::new("PutItem", error))
    }

    /// The sort keys of the events whose pointers come after `after`, in the order of the pointers.
    pub async fn events_after(&self, tenant: &str, after: &str) -> Result<Vec<String>, StoreError> {
        let mut pages = self
            .table
            .partition(&keys::late_arrivals(tenant))
            .key_condition_expression("PK = :pk AND SK > :after")
            .expression_attribute_values(":after", text(if after.is_empty() { "0" } else { after }))
            .into_paginator()
            .send();
        let mut late = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                let pointer: PointerKey = read(item)?;
                late.extend(keys::parse_late_pointer(&pointer.sk).map(|(_, sk)| sk.to_owned()));
            }
        }
        Ok(late)
    }

    /// A tenant's pointers after a cursor.
    pub async fn pointers_after(
        &self,
        tenant: &Name,
        cursor: &str,
        limit: i32,
    ) -> Result<LatePointerPage, StoreError> {
        let answer = self
            .table
            .partition(&keys::late_arrivals(tenant))
            .key_condition_expression("PK = :pk AND SK > :after")
            .expression_attribute_values(":after", text(if cursor.is_empty() { "0" } else { cursor }))
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        let pointer = |key: &String| {
            let (stamp, event_sk) = keys::parse_late_pointer(key)?;
            Some(LatePointer { key: key.clone(), stamp, event_sk: event_sk.to_owned() })
        };
        let pointers = answer.items().iter().map(|item| {
            let key = item.get("SK").and_then(|sk| sk.as_s().ok());
            key.and_then(pointer).ok_or_else(|| {
                StoreError::unreadable("Query", "a row among the late arrivals is not a pointer")
            })
        });
        let pointers = pointers.collect::<Result<_, _>>()?;
        Ok(LatePointerPage { pointers, more: answer.last_evaluated_key.is_some() })
    }
}
