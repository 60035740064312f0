//! Every request to the events table: what is asked, on what condition, and what DynamoDB answered.

use std::collections::HashMap;

use aws_sdk_dynamodb::{
    Client,
    error::SdkError,
    operation::{
        put_item::PutItemError, query::builders::QueryFluentBuilder,
        transact_write_items::TransactWriteItemsError,
    },
    types::{
        AttributeValue, CancellationReason, Put, ReturnValuesOnConditionCheckFailure, Select,
        TransactWriteItem,
    },
};
use ledgerline_event::{
    Event,
    keys::{Index, Range, partition},
};
use ledgerline_store::{Fault, IdempotencyMarkers, Item, Marker, StoreError, build_error, item_of, text};
use serde::Serialize;

/// Sorts before every sort key (`TIMESTAMP#…`). DynamoDB refuses empty key values.
const BEFORE_FIRST: &str = "T";

/// The events table.
#[derive(Clone, Debug)]
pub(crate) struct EventsTable {
    dynamo: Client,
    name: String,
}

/// What became of putting an event.
#[derive(Debug)]
pub(crate) enum EventPut {
    /// It is in the table now.
    Applied,
    /// Its place is taken; the event that is there, if the answer has it.
    PlaceTaken(Option<Box<Event>>),
}

/// What became of putting an event together with the marker of its idempotency key.
#[derive(Debug)]
pub(crate) enum MarkedPut {
    /// Both are in their tables now.
    Applied,
    /// The event's place is taken; the event that is there, if the answer has it.
    PlaceTaken(Option<Box<Event>>),
    /// Another event has the key.
    KeyTaken(ExistingMarker),
    /// Neither is written, or the outcome is unknown. The same request may be repeated.
    Retryable(StoreError),
}

/// The marker that holds an idempotency key already.
#[derive(Debug)]
pub(crate) enum ExistingMarker {
    /// DynamoDB returned it.
    Known(Marker),
    /// DynamoDB did not return it: read it. If it is not in the table either, it expired between two requests, and the
    /// caller repeats the request as after this error.
    NotReturned(StoreError),
}

/// An event as it is stored.
pub(crate) struct EventRow(Item);

/// The key after which the next read of an index starts.
pub(crate) struct StartKey(HashMap<String, String>);

/// Some rows of an index.
pub(crate) struct IndexRows {
    pub(crate) rows: Vec<EventRow>,
    /// Where to read on; `None` at the end.
    pub(crate) next: Option<StartKey>,
}

/// What to read of an index.
pub(crate) struct IndexRead<'a> {
    pub(crate) range: &'a Range,
    /// Set where tenants share the index.
    pub(crate) only_tenant: Option<&'a str>,
    pub(crate) oldest_first: bool,
    pub(crate) limit: i32,
    pub(crate) start: Option<StartKey>,
}

/// What became of looking for an event by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its place.
    At(String),
    /// The tenant has no such event.
    Nowhere,
    /// The search was not over when it reached its limit. It read the events from this place on, and not the older
    /// ones.
    NotReached(String),
}

impl EventRow {
    /// The event.
    pub(crate) fn event(self) -> Result<Event, StoreError> {
        serde_dynamo::aws_sdk_dynamodb_1::from_item(self.0)
            .map_err(|error| StoreError::unreadable("reading an event", error.to_string()))
    }

    /// The sort key and the event.
    pub(crate) fn placed_event(mut self) -> Result<(String, Event), StoreError> {
        let sk = match self.0.remove("SK") {
            Some(AttributeValue::S(sk)) => sk,
            _ => return Err(StoreError::unreadable("reading an event", "it has no sort key")),
        };
        Ok((sk, self.event()?))
    }
}

impl StartKey {
    /// The key with these attributes.
    pub(crate) fn new(attributes: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Self(attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// One of its attributes.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn of(item: Item) -> Self {
        let text = |value| if let AttributeValue::S(text) = value { Some(text) } else { None };
        Self(item.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect())
    }

    fn into_item(self) -> Item {
        self.0.into_iter().map(|(name, value)| (name, AttributeValue::S(value))).collect()
    }
}

impl EventsTable {
    pub(crate) fn new(dynamo: Client, name: impl Into<String>) -> Self {
        Self { dynamo, name: name.into() }
    }

    /// Puts an event unless its place is taken.
    pub(crate) async fn put_new(&self, row: &impl Serialize) -> Result<EventPut, StoreError> {
        let put = self
            .dynamo
            .put_item()
            .table_name(&self.name)
            .set_item(Some(item_of(row)?))
            .condition_expression("attribute_not_exists(PK)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        match put {
            Ok(_) => Ok(EventPut::Applied),
            Err(SdkError::ServiceError(refused)) if refused.err().is_conditional_check_failed_exception() => {
                let PutItemError::ConditionalCheckFailedException(existing) = refused.into_err() else {
                    unreachable!("checked by the guard");
                };
                Ok(EventPut::PlaceTaken(stored(existing.item)?))
            }
            Err(error) => Err(StoreError::new("PutItem", error)),
        }
    }

    /// Puts an event and the marker of its idempotency key, both or neither. One attempt.
    pub(crate) async fn put_new_with_marker(
        &self,
        row: &impl Serialize,
        marker: Put,
    ) -> Result<MarkedPut, StoreError> {
        let put_event = Put::builder()
            .table_name(&self.name)
            .set_item(Some(item_of(row)?))
            .condition_expression("attribute_not_exists(PK)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(build_error)?;
        let answer = self
            .dynamo
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().put(put_event).build())
            .transact_items(TransactWriteItem::builder().put(marker).build())
            .send()
            .await;
        let error = match answer {
            Ok(_) => return Ok(MarkedPut::Applied),
            Err(error) => error,
        };
        let reasons = match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                cancelled.cancellation_reasons.clone().unwrap_or_default()
            }
            _ => return Ok(MarkedPut::Retryable(StoreError::new("TransactWriteItems", error))),
        };
        let failed = |position: usize| {
            reasons.get(position).filter(|reason| reason.code() == Some("ConditionalCheckFailed"))
        };
        // The event's own row decides first: its marker may have expired and be another's now.
        if let Some(reason) = failed(0) {
            return Ok(MarkedPut::PlaceTaken(stored(reason.item.clone())?));
        }
        let Some(reason) = failed(1) else { return Ok(MarkedPut::Retryable(cancelled(&reasons, error))) };
        Ok(MarkedPut::KeyTaken(match reason.item.clone() {
            Some(item) => ExistingMarker::Known(IdempotencyMarkers::read(item)?),
            None => ExistingMarker::NotReturned(cancelled(&reasons, error)),
        }))
    }

    /// One read of an index.
    pub(crate) async fn read_index(&self, read: IndexRead<'_>) -> Result<IndexRows, StoreError> {
        let IndexRead { range, only_tenant, oldest_first, limit, start } = read;
        let (pk, sk) = range.index.attributes();
        let mut request = self
            .dynamo
            .query()
            .table_name(&self.name)
            .set_index_name(range.index.name().map(str::to_owned))
            .key_condition_expression("#pk = :pk AND #sk BETWEEN :from AND :to")
            .expression_attribute_names("#pk", pk)
            .expression_attribute_names("#sk", sk)
            .expression_attribute_values(":pk", text(&range.pk))
            .expression_attribute_values(":from", text(&range.from))
            .expression_attribute_values(":to", text(&range.to))
            .scan_index_forward(oldest_first)
            .consistent_read(range.index == Index::Base)
            .limit(limit)
            .set_exclusive_start_key(start.map(StartKey::into_item));
        if let Some(tenant) = only_tenant {
            request = request
                .filter_expression("tenantId = :tenant")
                .expression_attribute_values(":tenant", text(tenant));
        }
        let answer = request.send().await.map_err(|error| StoreError::new("Query", error))?;
        Ok(IndexRows {
            rows: answer.items.unwrap_or_default().into_iter().map(EventRow).collect(),
            next: answer.last_evaluated_key.map(StartKey::of),
        })
    }

    /// Up to `limit` rows of a tenant after a place, and whether there may be more.
    pub(crate) async fn after(
        &self,
        tenant: &str,
        after: &str,
        limit: i32,
    ) -> Result<(Vec<EventRow>, bool), StoreError> {
        let answer = self
            .tenant_query(tenant)
            .key_condition_expression("PK = :pk AND SK > :after")
            .expression_attribute_values(":after", text(if after.is_empty() { BEFORE_FIRST } else { after }))
            .limit(limit)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        let rows = answer.items.unwrap_or_default().into_iter().map(EventRow).collect();
        Ok((rows, answer.last_evaluated_key.is_some()))
    }

    /// The place of a tenant's last event before `place`.
    pub(crate) async fn before(&self, tenant: &str, place: &str) -> Result<Option<String>, StoreError> {
        let answer = self
            .tenant_query(tenant)
            .key_condition_expression("PK = :pk AND SK < :place")
            .expression_attribute_values(":place", text(place))
            .projection_expression("SK")
            .scan_index_forward(false)
            .limit(1)
            .send()
            .await
            .map_err(|error| StoreError::new("Query", error))?;
        Ok(answer.items().first().and_then(sort_key))
    }

    /// How many events of a tenant lie from `from` to `to`, both inclusive. Reads them all.
    pub(crate) async fn count(&self, tenant: &str, from: &str, to: &str) -> Result<u64, StoreError> {
        let mut pages = self.between(tenant, from, to).select(Select::Count).into_paginator().send();
        let mut count = 0;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            count += u64::try_from(page.count).unwrap_or(0);
        }
        Ok(count)
    }

    /// The row at a place.
    pub(crate) async fn get(&self, tenant: &str, sk: &str) -> Result<Option<EventRow>, StoreError> {
        let answer = self
            .dynamo
            .get_item()
            .table_name(&self.name)
            .key("PK", text(&partition(tenant)))
            .key("SK", text(sk))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| StoreError::new("GetItem", error))?;
        Ok(answer.item.map(EventRow))
    }

    /// Looks for an event by its id, the newest first, in at most `max_pages` pages of 1 MB.
    pub(crate) async fn find(
        &self,
        tenant: &str,
        event_id: &str,
        (from, to): (&str, &str),
        max_pages: usize,
    ) -> Result<Found, StoreError> {
        let mut pages = self
            .between(tenant, from, to)
            .filter_expression("eventId = :id")
            .expression_attribute_values(":id", text(event_id))
            .projection_expression("SK")
            .scan_index_forward(false)
            .into_paginator()
            .send();
        let mut read = 0;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            if let Some(sk) = page.items().first().and_then(sort_key) {
                return Ok(Found::At(sk));
            }
            read += 1;
            if let Some(reached) = page.last_evaluated_key.as_ref().and_then(sort_key)
                && read == max_pages
            {
                return Ok(Found::NotReached(reached));
            }
        }
        Ok(Found::Nowhere)
    }

    fn between(&self, tenant: &str, from: &str, to: &str) -> QueryFluentBuilder {
        self.tenant_query(tenant)
            .key_condition_expression("PK = :pk AND SK BETWEEN :from AND :to")
            .expression_attribute_values(":from", text(from))
            .expression_attribute_values(":to", text(to))
    }

    fn tenant_query(&self, tenant: &str) -> QueryFluentBuilder {
        self.dynamo
            .query()
            .table_name(&self.name)
            .consistent_read(true)
            .expression_attribute_values(":pk", text(&partition(tenant)))
    }
}

fn sort_key(item: &Item) -> Option<String> {
    item.get("SK")?.as_s().ok().cloned()
}

fn stored(item: Option<Item>) -> Result<Option<Box<Event>>, StoreError> {
    item.map(|item| EventRow(item).event().map(Box::new)).transpose()
}

fn cancelled(
    reasons: &[CancellationReason],
    error: SdkError<TransactWriteItemsError, impl std::fmt::Debug + Send + Sync + 'static>,
) -> StoreError {
    let invalid = reasons.iter().find(|reason| reason.code() == Some("ValidationError"));
    let message = invalid.and_then(|reason| reason.message()).map(str::to_owned);
    let mut failure = StoreError::new("TransactWriteItems", error);
    if failure.fault == Fault::ConditionFailed {
        // The marker expired between two requests: its key is free.
        failure.fault = Fault::Conflict;
    }
    StoreError { message: message.unwrap_or(failure.message), ..failure }
}
