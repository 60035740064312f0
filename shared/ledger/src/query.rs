//! Reading events back: one typed query for the tenant's own time line and for each of the
//! seven indexes, in both directions, over all pages, with overflow restored. A query always
//! knows its tenant, and it never returns an event of another.

use aws_sdk_dynamodb::Client;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::future::try_join_all;
use ledgerline_event::{
    Event, Millis, Name,
    keys::{Index, KeyFields, Range, Scope},
};
use serde::{Deserialize, Serialize};

use ledgerline_store::{Payloads, StoreError};

use crate::events_table::{EventsTable, IndexRead, IndexRows, StartKey};

/// A query that has read this many pages returns what it has found and a cursor, even if it is fewer than `limit`.
const MAX_PAGES: usize = 10;
/// Rows of one read where many may be passed over.
const ROWS_PER_READ: i32 = 1_000;
/// An answer of a Lambda function has 6 MB; one chunk of restored events may come on top.
const MAX_PAGE_BYTES: usize = 3_000_000;
/// Payloads that are fetched at the same time.
const RESTORED_AT_ONCE: usize = 4;

/// The order of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order in which they happened.
    OldestFirst,
    /// The newest first.
    NewestFirst,
}

/// Which events to read, and in which order.
#[derive(Clone, Copy)]
pub struct EventQuery<'a> {
    /// The tenant whose events they are.
    pub tenant: &'a Name,
    /// Which of them, and through which index.
    pub scope: Scope<'a>,
    /// From this moment on.
    pub since: Millis,
    /// Up to this moment, inclusive.
    pub until: Millis,
    /// In which direction.
    pub order: Order,
    /// Keeps an event if it returns `true`: for conditions that no index answers.
    pub keep: Option<&'a (dyn Fn(&Event) -> bool + Sync)>,
}

impl<'a> EventQuery<'a> {
    /// Everything in `scope`, oldest first.
    pub fn new(tenant: &'a Name, scope: Scope<'a>) -> Self {
        Self { tenant, scope, since: Millis::MIN, until: Millis::MAX, order: Order::OldestFirst, keep: None }
    }
}

/// One page of the events that a query finds.
#[derive(Debug)]
pub struct Page {
    /// Whole events.
    pub items: Vec<Event>,
    /// Where the next page begins; `None` at the end.
    pub cursor: Option<String>,
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The caller gave a cursor that is not from this query.
    #[error("cursor: {0}")]
    Cursor(&'static str),
    /// A request to the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads the events table.
#[derive(Clone, Debug)]
pub struct Reader {
    events: EventsTable,
    payloads: Payloads,
    rows_per_read: i32,
}

impl Reader {
    /// A reader of `table`.
    pub fn new(dynamo: Client, table: impl Into<String>, payloads: Payloads) -> Self {
        Self { events: EventsTable::new(dynamo, table), payloads, rows_per_read: ROWS_PER_READ }
    }

    /// The same with smaller reads, so that a test needs many of them, as a large table does.
    pub fn reading_at_most(self, rows_per_read: i32) -> Self {
        Self { rows_per_read, ..self }
    }

    /// Up to `limit` events after `cursor`; fewer where they are large or far between.
    pub async fn page(
        &self,
        query: &EventQuery<'_>,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page, QueryError> {
        let resumed = cursor.map(Position::decode).transpose()?;
        let began_at = resumed.as_ref().map(Position::moment);
        let (range, mut start) = match resumed {
            None => (Range::new(query.tenant, query.scope, query.since, query.until), None),
            Some(position) => position.resume(query)?,
        };
        let mut items: Vec<Event> = Vec::new();
        let mut last_own = None;
        let mut pages = 0;
        loop {
            let found = self.read(query, &range, start, limit).await?;
            pages += 1;
            for row in found.rows {
                let event = row.event()?;
                if event.tenant_id != *query.tenant {
                    continue;
                }
                if items.len() == limit {
                    let last = items.last().map(|last| Position::of(last, range.index));
                    return self.whole(items, range.index, last).await;
                }
                last_own = Some(Position::of(&event, range.index));
                if query.keep.is_none_or(|keep| keep(&event)) {
                    items.push(event);
                }
            }
            start = found.next;
            let Some(reached) = &start else { return self.whole(items, range.index, None).await };
            if pages < MAX_PAGES {
                continue;
            }
            if !range.shared {
                return self.whole(items, range.index, last_own).await;
            }
            // In an index that tenants share, the place reached may be another's event, and a cursor
            // must not tell of it: it only says at which moment to go on, and what was found of that
            // moment is left for then. One moment that fills all the pages is read to its end instead.
            let moment = reached_moment(reached, range.index)?;
            if began_at != Some(moment) {
                items.retain(|event| event.timestamp != moment);
                let next = Position::Moment(number(range.index), moment);
                return self.whole(items, range.index, Some(next)).await;
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
        start: Option<StartKey>,
        limit: usize,
    ) -> Result<IndexRows, StoreError> {
        let read = IndexRead {
            range,
            only_tenant: range.shared.then_some(query.tenant.as_str()),
            oldest_first: query.order == Order::OldestFirst,
            limit: self.rows_to_read(query, range, limit),
            start,
        };
        self.events.read_index(read).await
    }

    /// Where some rows are passed over, a small answer must not mean many small reads. Elsewhere one
    /// row more than asked for tells whether there is a next page.
    fn rows_to_read(&self, query: &EventQuery<'_>, range: &Range, limit: usize) -> i32 {
        match range.shared || query.keep.is_some() {
            true => self.rows_per_read,
            false => i32::try_from(limit + 1).unwrap_or(i32::MAX).min(self.rows_per_read),
        }
    }

    /// Restores overflow, as far as an answer may be large; the rest is for the next page.
    async fn whole(
        &self,
        events: Vec<Event>,
        index: Index,
        next: Option<Position>,
    ) -> Result<Page, QueryError> {
        let mut items: Vec<Event> = Vec::with_capacity(events.len());
        let mut bytes = 0;
        let mut rest = events.into_iter().peekable();
        while rest.peek().is_some() {
            if let Some(last) = items.last()
                && bytes > MAX_PAGE_BYTES
            {
                let cursor = Some(Position::of(last, index).encode());
                return Ok(Page { items, cursor });
            }
            let some: Vec<Event> = rest.by_ref().take(RESTORED_AT_ONCE).collect();
            let restored = try_join_all(some.into_iter().map(|mut event| async move {
                self.payloads.restore(&mut event).await?;
                Ok::<_, StoreError>(event)
            }));
            for event in restored.await? {
                bytes += serde_json::to_vec(&event.properties).map_or(0, |json| json.len());
                items.push(event);
            }
        }
        Ok(Page { items, cursor: next.map(|position| position.encode()) })
    }
}

/// A place in an index. It holds no tenant: that is always the asker's own.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Position {
    /// After an event: index, time, event id, entity type, entity id, app, event type.
    Event(u8, Millis, Name, Name, Name, Name, Name),
    /// At a moment, all of it still to come.
    Moment(u8, Millis),
}

impl Position {
    fn of(event: &Event, index: Index) -> Self {
        Self::Event(
            number(index),
            event.timestamp,
            event.event_id.clone(),
            event.entity_type.clone(),
            event.entity_id.clone(),
            event.app_name.clone(),
            event.event_type.clone(),
        )
    }

    const fn moment(&self) -> Millis {
        match self {
            Self::Event(_, moment, ..) | Self::Moment(_, moment) => *moment,
        }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self, QueryError> {
        let bytes =
            URL_SAFE_NO_PAD.decode(text).map_err(|_| QueryError::Cursor("is not one that a list gave"))?;
        serde_json::from_slice(&bytes).map_err(|_| QueryError::Cursor("is not one that a list gave"))
    }

    /// The rest of the range, and the key to start after.
    fn resume(self, query: &EventQuery<'_>) -> Result<(Range, Option<StartKey>), QueryError> {
        let (mut since, mut until) = (query.since, query.until);
        if let Self::Moment(_, moment) = self {
            match query.order {
                Order::NewestFirst => until = until.min(moment),
                Order::OldestFirst => since = since.max(moment),
            }
        }
        let range = Range::new(query.tenant, query.scope, since, until);
        let of_another_list = QueryError::Cursor("belongs to a list with other filters");
        match self {
            Self::Moment(index, _) if index == number(range.index) => Ok((range, None)),
            Self::Event(index, timestamp, event_id, entity_type, entity_id, app_name, event_type)
                if index == number(range.index) =>
            {
                let fields = KeyFields {
                    tenant_id: query.tenant,
                    timestamp,
                    event_id: &event_id,
                    entity_type: &entity_type,
                    entity_id: &entity_id,
                    app_name: &app_name,
                    event_type: &event_type,
                };
                let key = range.index.start_key(&fields);
                let (pk, sk) = range.index.attributes();
                let inside = key.iter().all(|(name, value)| {
                    (*name != pk || *value == range.pk)
                        && (*name != sk || (*value >= range.from && *value <= range.to))
                });
                if !inside {
                    return Err(of_another_list);
                }
                Ok((range, Some(StartKey::new(key))))
            }
            Self::Moment(..) | Self::Event(..) => Err(of_another_list),
        }
    }
}

/// The time at the end of the sort key of the last row that was read.
fn reached_moment(key: &StartKey, index: Index) -> Result<Millis, StoreError> {
    let sort_key = key.get(index.attributes().1);
    sort_key
        .and_then(|sort_key| sort_key.rsplit('#').next()?.parse::<u64>().ok())
        .and_then(|ms| Millis::try_from(ms).ok())
        .ok_or_else(|| StoreError::unreadable("Query", "the last key that was read has no time in it"))
}

const fn number(index: Index) -> u8 {
    match index {
        Index::Base => 0,
        Index::Gsi(number) => number,
    }
}
