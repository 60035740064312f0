//! Reading events back: one typed query for the tenant's own time line and for each of the
//! seven indexes, in both directions, over all pages, with overflow restored. A query always
//! knows its tenant, and what belongs to another is never answered.

use std::collections::HashMap;

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::future::try_join_all;
use ledgerline_event::{
    Event, Millis, Name,
    keys::{Index, KeyFields, Range, Scope},
};
use serde::{Deserialize, Serialize};

use crate::{Payloads, StoreError};

/// So many pages without a full answer, and the caller gets a cursor instead of more waiting.
const MAX_PAGES: usize = 10;

/// In which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As it happened.
    OldestFirst,
    /// The newest first.
    NewestFirst,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct EventQuery<'a> {
    /// Whose events.
    pub tenant: &'a Name,
    /// Which of them, and through which index.
    pub scope: Scope<'a>,
    /// From this moment on.
    pub since: Millis,
    /// Up to this moment, inclusive.
    pub until: Millis,
    /// In which direction.
    pub order: Order,
    /// What no index answers is looked at event by event.
    pub keep: &'a (dyn Fn(&Event) -> bool + Sync),
}

impl<'a> EventQuery<'a> {
    /// Everything in `scope`, oldest first.
    pub fn new(tenant: &'a Name, scope: Scope<'a>) -> Self {
        Self {
            tenant,
            scope,
            since: Millis::MIN,
            until: Millis::MAX,
            order: Order::OldestFirst,
            keep: &|_| true,
        }
    }
}

/// Some of the answer.
#[derive(Debug)]
pub struct Page {
    /// Whole events.
    pub items: Vec<Event>,
    /// Where to go on; `None` at the end.
    pub cursor: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// Not a cursor that this query gave.
    #[error("cursor: {0}")]
    Cursor(&'static str),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads the events table.
#[derive(Clone, Debug)]
pub struct Reader {
    dynamo: Client,
    table: String,
    payloads: Payloads,
}

impl Reader {
    /// A reader of `table`.
    pub fn new(dynamo: Client, table: impl Into<String>, payloads: Payloads) -> Self {
        Self { dynamo, table: table.into(), payloads }
    }

    /// Up to `limit` events after `cursor`.
    pub async fn page(
        &self,
        query: &EventQuery<'_>,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page, QueryError> {
        let range = Range::new(query.tenant, query.scope, query.since, query.until);
        let mut start =
            cursor.map(|text| Position::decode(text)?.start_key(query.tenant, range.index)).transpose()?;
        let mut items: Vec<Event> = Vec::new();
        let mut pages = 0;
        loop {
            let found = self.read(query, &range, start, limit).await?;
            pages += 1;
            let mut last_read = None;
            for item in found.items {
                let event: Event = serde_dynamo::aws_sdk_dynamodb_1::from_item(item)
                    .map_err(|error| StoreError::unreadable("reading an event", error.to_string()))?;
                if event.tenant_id != *query.tenant || !(query.keep)(&event) {
                    last_read = (event.tenant_id == *query.tenant).then(|| Position::of(&event, range.index));
                    continue;
                }
                if items.len() == limit {
                    let cursor = items.last().map(|last| Position::of(last, range.index).encode());
                    return Ok(Page { items: self.whole(items).await?, cursor });
                }
                last_read = Some(Position::of(&event, range.index));
                items.push(event);
            }
            start = found.next;
            if start.is_none() {
                return Ok(Page { items: self.whole(items).await?, cursor: None });
            }
            // In an index that tenants share, the place reached may be another's event, and a
            // cursor must not tell of it: there the search goes on.
            if pages >= MAX_PAGES
                && !range.shared
                && let Some(position) = last_read
            {
                return Ok(Page { items: self.whole(items).await?, cursor: Some(position.encode()) });
            }
        }
    }

    /// Every event that the query finds.
    pub async fn all(&self, query: &EventQuery<'_>) -> Result<Vec<Event>, QueryError> {
        let mut events = Vec::new();
        let mut cursor = None;
        loop {
            let page = self.page(query, 1_000, cursor.as_deref()).await?;
            events.extend(page.items);
            match page.cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(events),
            }
        }
    }

    async fn read(
        &self,
        query: &EventQuery<'_>,
        range: &Range,
        start: Option<Item>,
        limit: usize,
    ) -> Result<Found, StoreError> {
        let (pk, sk) = range.index.attributes();
        let text = |value: &str| AttributeValue::S(value.to_owned());
        let mut request = self
            .dynamo
            .query()
            .table_name(&self.table)
            .set_index_name(range.index.name().map(str::to_owned))
            .key_condition_expression("#pk = :pk AND #sk BETWEEN :from AND :to")
            .expression_attribute_names("#pk", pk)
            .expression_attribute_names("#sk", sk)
            .expression_attribute_values(":pk", text(&range.pk))
            .expression_attribute_values(":from", text(&range.from))
            .expression_attribute_values(":to", text(&range.to))
            .scan_index_forward(query.order == Order::OldestFirst)
            .consistent_read(range.index == Index::Base)
            // One more than asked for tells whether there is a next page.
            .limit(i32::try_from(limit + 1).unwrap_or(i32::MAX).min(1_000))
            .set_exclusive_start_key(start);
        if range.shared {
            request = request
                .filter_expression("tenantId = :tenant")
                .expression_attribute_values(":tenant", text(query.tenant));
        }
        let answer = request.send().await.map_err(|error| StoreError::new("Query", error))?;
        Ok(Found { items: answer.items.unwrap_or_default(), next: answer.last_evaluated_key })
    }

    async fn whole(&self, events: Vec<Event>) -> Result<Vec<Event>, StoreError> {
        try_join_all(events.into_iter().map(|mut event| async move {
            self.payloads.restore(&mut event).await?;
            Ok(event)
        }))
        .await
    }
}

type Item = HashMap<String, AttributeValue>;

struct Found {
    items: Vec<Item>,
    next: Option<Item>,
}

/// A place in an index: the fields that its keys are made of, without the tenant, which is
/// always the asker's own.
#[derive(Serialize, Deserialize)]
struct Position(u8, Millis, Name, Name, Name, Name, Name);

impl Position {
    fn of(event: &Event, index: Index) -> Self {
        Self(
            number(index),
            event.timestamp,
            event.event_id.clone(),
            event.entity_type.clone(),
            event.entity_id.clone(),
            event.app_name.clone(),
            event.event_type.clone(),
        )
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self, QueryError> {
        let bytes =
            URL_SAFE_NO_PAD.decode(text).map_err(|_| QueryError::Cursor("is not one that a list gave"))?;
        serde_json::from_slice(&bytes).map_err(|_| QueryError::Cursor("is not one that a list gave"))
    }

    fn start_key(&self, tenant: &Name, index: Index) -> Result<Item, QueryError> {
        if self.0 != number(index) {
            return Err(QueryError::Cursor("belongs to a list with other filters"));
        }
        let fields = KeyFields {
            tenant_id: tenant,
            timestamp: self.1,
            event_id: &self.2,
            entity_type: &self.3,
            entity_id: &self.4,
            app_name: &self.5,
            event_type: &self.6,
        };
        let key = index.start_key(&fields);
        Ok(key.into_iter().map(|(name, value)| (name.to_owned(), AttributeValue::S(value))).collect())
    }
}

const fn number(index: Index) -> u8 {
    match index {
        Index::Base => 0,
        Index::Gsi(number) => number,
    }
}
