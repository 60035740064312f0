//! Events that were sent to runs: under each leaf of their match, in the order in which they were accepted, and the runs
//! that have consumed them.

use aws_sdk_dynamodb::types::Select;
use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{
    Conditional, ControlKey, ControlTable, Item, RecordStream, StoreError, conditionally, item, keys, number,
    read, text,
};

/// Rows of the first page of a look: what a loop of waits takes next is near, and what lies behind it is not read now.
const FIRST_PAGE: i32 = 4;
const LARGEST_PAGE: i32 = 1_000;

/// A sent event as it is stored under one of its leaves. The row without a leaf also holds the event itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SentEventRecord {
    /// The event.
    pub event_id: Name,
    /// The time in its place, which may be later than that of the event.
    pub timestamp: Millis,
    /// The match with which the event was sent, as JSON.
    #[serde(rename = "matchCriteria")]
    pub sent_match: String,
    /// The event as JSON, unless it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Its key in the payload bucket, if it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_key: Option<String>,
}

/// How far the events of one name are accepted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SentOrder {
    /// The place of the last accepted event.
    pub watermark: Option<String>,
}

/// The time before which no event of a tenant is accepted any more.
#[derive(Clone, Copy, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct SentFloor {
    pub floor: Millis,
}

/// The limits below which no event of one name is accepted any more.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct SentLimits {
    pub order: SentOrder,
    pub floor: Option<SentFloor>,
}

/// When the first process came that accepts events in order.
#[derive(Serialize, Deserialize)]
struct Began {
    at: Millis,
}

/// Events of a name that were sent, the newest first.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct NewestSent {
    pub events: Vec<SentEventRecord>,
    /// Whether there may be older ones.
    pub more: bool,
}

/// The events that were sent to runs.
#[derive(Clone, Debug)]
pub struct SentEventRecords {
    table: ControlTable,
}

impl SentEventRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Puts an event under these leaves; `None` is the row that holds the event itself. A second put changes nothing.
    pub async fn put_all(
        &self,
        tenant: &str,
        event_name: &str,
        records: &[(Option<u64>, SentEventRecord)],
    ) -> Result<(), StoreError> {
        let row = |(leaf, record): &(Option<u64>, SentEventRecord)| {
            item(&keys::sent_event(tenant, event_name, *leaf, record.timestamp, &record.event_id), record)
        };
        self.table.put_all(records.iter().map(row).collect::<Result<_, _>>()?).await
    }

    /// The record that holds the event itself, for one that is at the same place under a leaf.
    pub async fn whole(
        &self,
        tenant: &str,
        event_name: &str,
        at_leaf: &SentEventRecord,
    ) -> Result<Option<SentEventRecord>, StoreError> {
        let key = keys::sent_event(tenant, event_name, None, at_leaf.timestamp, &at_leaf.event_id);
        self.table.get(&key).await
    }

    /// The events of a name that are stored under `leaf` (`None`: every event) after a place, the oldest first.
    pub fn after(
        &self,
        tenant: &str,
        event_name: &str,
        leaf: Option<u64>,
        place: &str,
    ) -> RecordStream<SentEventRecord> {
        let query = self
            .table
            .partition(&keys::sent_events(tenant, event_name, leaf))
            // Beyond the watermark there may be events that senders of versions before 0.1.0 wrote.
            .key_condition_expression("PK = :pk AND SK > :from")
            .expression_attribute_values(":from", text(place));
        RecordStream::growing(query, FIRST_PAGE, LARGEST_PAGE)
    }

    /// Some events of a name before a place, the newest first.
    pub async fn newest(
        &self,
        tenant: &str,
        event_name: &str,
        before: Option<&str>,
        limit: usize,
    ) -> Result<NewestSent, StoreError> {
        let answer = self
            .table
            .partition(&keys::sent_events(tenant, event_name, None))
            .key_condition_expression("PK = :pk AND SK < :before")
            .expression_attribute_values(":before", text(before.unwrap_or("A")))
            .scan_index_forward(false)
            .limit(i32::try_from(limit).unwrap_or(i32::MAX))
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        let more = answer.last_evaluated_key.is_some();
        let events = answer.items.unwrap_or_default().into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(NewestSent { events, more })
    }

    /// How many runs have consumed an event.
    pub async fn consumed_count(&self, tenant: &str, event_id: &str) -> Result<u64, StoreError> {
        let mut pages = self
            .table
            .partition(&keys::consumed_by(tenant, event_id))
            .select(Select::Count)
            .into_paginator()
            .send();
        let mut count = 0;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            count += u64::try_from(page.count).unwrap_or(0);
        }
        Ok(count)
    }

    /// How far the events of a name are accepted.
    pub async fn order(&self, tenant: &str, event_name: &str) -> Result<SentOrder, StoreError> {
        Ok(self.table.get(&keys::sent_order(tenant, event_name)).await?.unwrap_or_default())
    }

    /// How far the events of a name are accepted, and the floor of the tenant.
    pub async fn limits(&self, tenant: &str, event_name: &str) -> Result<SentLimits, StoreError> {
        let (order, floor) = (keys::sent_order(tenant, event_name), keys::sent_floor(tenant));
        let mut found = SentLimits::default();
        for row in self.table.get_all(&[order.clone(), floor]).await? {
            match is_at(&row, &order) {
                true => found.order = read(row)?,
                false => found.floor = Some(read(row)?),
            }
        }
        Ok(found)
    }

    /// Raises the watermark of a name to a place, unless it is there already or beyond.
    pub async fn raise_watermark(
        &self,
        tenant: &str,
        event_name: &str,
        place: &str,
    ) -> Result<Conditional<SentOrder>, StoreError> {
        let update = self
            .table
            .update(&keys::sent_order(tenant, event_name))
            .update_expression("SET watermark = :place")
            .condition_expression("attribute_not_exists(watermark) OR watermark < :place")
            .expression_attribute_values(":place", text(place));
        conditionally(update).await
    }

    /// Raises the floor of a tenant, unless it is as high already.
    pub async fn raise_floor(
        &self,
        tenant: &str,
        floor: Millis,
    ) -> Result<Conditional<SentFloor>, StoreError> {
        let update = self
            .table
            .update(&keys::sent_floor(tenant))
            .update_expression("SET #floor = :floor")
            .condition_expression("attribute_not_exists(#floor) OR #floor < :floor")
            .expression_attribute_names("#floor", "floor")
            .expression_attribute_values(":floor", number(floor.get()));
        conditionally(update).await
    }

    /// When the first process came that accepts events in order, if one has said so.
    pub async fn ordered_since(&self) -> Result<Option<Millis>, StoreError> {
        Ok(self.table.get::<Began>(&keys::sent_order_began()).await?.map(|began| began.at))
    }

    /// Says that this process accepts events in order, unless an earlier one has said so.
    pub async fn note_ordered(&self, now: Millis) -> Result<(), StoreError> {
        self.table.put_new(&keys::sent_order_began(), &Began { at: now }).await.map(drop)
    }
}

fn is_at(row: &Item, key: &ControlKey) -> bool {
    row.get("PK").and_then(|pk| pk.as_s().ok()) == Some(&key.pk)
}
