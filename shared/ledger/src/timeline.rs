//! A tenant's own time line, as drainers read it: the base table by sort key, strongly consistent.
//! Events come as they are stored; what overflowed is fetched only for those who need it.

use std::collections::HashMap;

use aws_sdk_dynamodb::{Client, operation::query::builders::QueryFluentBuilder, types::AttributeValue};
use ledgerline_event::{Event, Kind, Millis, keys};

use crate::{Payloads, StoreError};

/// An event and its place.
#[derive(Clone, Debug)]
pub struct Place {
    /// The sort key.
    pub sk: String,
    /// What is there.
    pub event: Event,
}

/// Reads the base table in the order of its sort keys.
#[derive(Clone, Debug)]
pub struct Timeline {
    dynamo: Client,
    table: String,
    payloads: Payloads,
    pages_to_find: usize,
}

/// What became of looking for an event by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its place.
    At(String),
    /// The tenant has no such event.
    Nowhere,
    /// It is not among the newest events, down to this place; what lies before was not read.
    NotSince(String),
}

impl Timeline {
    /// The time lines in `table`.
    pub fn new(dynamo: Client, table: impl Into<String>, payloads: Payloads) -> Self {
        Self { dynamo, table: table.into(), payloads, pages_to_find: PAGES_TO_FIND }
    }

    /// The same, with less patience when an event is looked for by its id.
    pub fn finding_within(self, pages: usize) -> Self {
        Self { pages_to_find: pages, ..self }
    }

    /// Up to `limit` events after the place `after`, and whether there may be more.
    pub async fn after(
        &self,
        tenant: &str,
        after: &str,
        limit: i32,
    ) -> Result<(Vec<Place>, bool), StoreError> {
        let answer = self
            .query(tenant)
            .key_condition_expression("PK = :pk AND SK > :after")
            .expression_attribute_values(":after", text(if after.is_empty() { BEGINNING } else { after }))
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        let places = answer.items.unwrap_or_default().into_iter().map(place).collect::<Result<_, _>>()?;
        Ok((places, answer.last_evaluated_key.is_some()))
    }

    /// The last event before `place`.
    pub async fn before(&self, tenant: &str, place: &str) -> Result<Option<String>, StoreError> {
        let answer = self
            .query(tenant)
            .key_condition_expression("PK = :pk AND SK < :place")
            .expression_attribute_values(":place", text(place))
            .projection_expression("SK")
            .scan_index_forward(false)
            .limit(1)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        Ok(answer.items().first().and_then(|item| item.get("SK")?.as_s().ok().cloned()))
    }

    /// How many events lie from `from` to `to`, both inclusive. Reads them all.
    pub async fn count(&self, tenant: &str, from: &str, to: &str) -> Result<u64, StoreError> {
        let mut pages = self
            .query(tenant)
            .key_condition_expression("PK = :pk AND SK BETWEEN :from AND :to")
            .expression_attribute_values(":from", text(from))
            .expression_attribute_values(":to", text(to))
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

    /// The event at a place, whole.
    pub async fn at(&self, tenant: &str, sk: &str) -> Result<Option<Event>, StoreError> {
        let Some(mut event) = self.stored_at(tenant, sk).await? else { return Ok(None) };
        self.restore(&mut event).await?;
        Ok(Some(event))
    }

    /// The event at a place, as it is stored.
    pub async fn stored_at(&self, tenant: &str, sk: &str) -> Result<Option<Event>, StoreError> {
        let answer = self
            .dynamo
            .get_item()
            .table_name(&self.table)
            .key("PK", text(&keys::partition(tenant)))
            .key("SK", text(sk))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| StoreError::new("GetItem", error))?;
        answer.item.map(|item| place(item).map(|place| place.event)).transpose()
    }

    /// The place of the event with this id. There is no index for it: the time in an id of ours says
    /// where to look first, and then the newest events are read, up to a limit: an id may be anything.
    pub async fn find(&self, tenant: &str, event_id: &str) -> Result<Found, StoreError> {
        let nearby = Kind::time_of(event_id);
        let ranges = [
            nearby.map(|time| (time.minus(NEARBY_MS), time.plus(NEARBY_MS))),
            Some((Millis::MIN, Millis::MAX)),
        ];
        for (since, until) in ranges.into_iter().flatten() {
            let mut read = 0;
            let mut pages = self
                .query(tenant)
                .key_condition_expression("PK = :pk AND SK BETWEEN :from AND :to")
                .expression_attribute_values(":from", text(&keys::moment(since)))
                .expression_attribute_values(":to", text(&keys::moment(until)))
                .filter_expression("eventId = :id")
                .expression_attribute_values(":id", text(event_id))
                .projection_expression("SK")
                .scan_index_forward(false)
                .into_paginator()
                .send();
            while let Some(page) = pages.next().await {
                let page = page.map_err(|error| StoreError::new("Query", error))?;
                let sk = |item: &HashMap<String, AttributeValue>| item.get("SK")?.as_s().ok().cloned();
                if let Some(sk) = page.items().first().and_then(sk) {
                    return Ok(Found::At(sk));
                }
                read += 1;
                if let Some(reached) = page.last_evaluated_key.as_ref().and_then(sk)
                    && read == self.pages_to_find
                {
                    return Ok(Found::NotSince(reached));
                }
            }
        }
        Ok(Found::Nowhere)
    }

    /// Makes an event whole.
    pub async fn restore(&self, event: &mut Event) -> Result<(), StoreError> {
        self.payloads.restore(event).await
    }

    fn query(&self, tenant: &str) -> QueryFluentBuilder {
        self.dynamo
            .query()
            .table_name(&self.table)
            .consistent_read(true)
            .expression_attribute_values(":pk", text(&keys::partition(tenant)))
    }
}

/// Before every sort key; DynamoDB compares with no empty text.
const BEGINNING: &str = "T";
/// Pages of 1 MB that are read at most to find an event by its id: some ten thousand events, within the half minute that
/// API Gateway waits for an answer.
const PAGES_TO_FIND: usize = 64;
/// How far an event's time may lie from the time in its id before everything has to be read.
const NEARBY_MS: u64 = 60_000;

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn place(mut item: HashMap<String, AttributeValue>) -> Result<Place, StoreError> {
    let sk = match item.remove("SK") {
        Some(AttributeValue::S(sk)) => sk,
        _ => return Err(StoreError::unreadable("reading an event", "it has no sort key")),
    };
    let event = serde_dynamo::aws_sdk_dynamodb_1::from_item(item)
        .map_err(|error| StoreError::unreadable("reading an event", error.to_string()))?;
    Ok(Place { sk, event })
}
