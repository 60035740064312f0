//! A tenant's own time line, as drainers read it: the base table by sort key, strongly consistent.
//! Events come as they are stored; a caller that needs what overflowed restores it.

use aws_sdk_dynamodb::Client;
use ledgerline_event::{Event, Kind, Millis, keys};

use ledgerline_store::{Payloads, StoreError};

use crate::events_table::{EventRow, EventsTable, Found};

/// An event and where it lies in the time line.
#[derive(Clone, Debug)]
pub struct TimelineEvent {
    /// The sort key.
    pub sk: String,
    /// What is there.
    pub event: Event,
}

/// Reads the base table in the order of its sort keys.
#[derive(Clone, Debug)]
pub struct Timeline {
    events: EventsTable,
    payloads: Payloads,
    pages_to_find: usize,
}

impl Timeline {
    /// The time lines in `table`.
    pub fn new(dynamo: Client, table: impl Into<String>, payloads: Payloads) -> Self {
        Self { events: EventsTable::new(dynamo, table), payloads, pages_to_find: PAGES_TO_FIND }
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
    ) -> Result<(Vec<TimelineEvent>, bool), StoreError> {
        let (rows, more) = self.events.after(tenant, after, limit).await?;
        let place = |row: EventRow| row.placed_event().map(|(sk, event)| TimelineEvent { sk, event });
        Ok((rows.into_iter().map(place).collect::<Result<_, _>>()?, more))
    }

    /// The place of the last event before `place`.
    pub async fn before(&self, tenant: &str, place: &str) -> Result<Option<String>, StoreError> {
        self.events.before(tenant, place).await
    }

    /// How many events lie from `from` to `to`, both inclusive. Reads them all.
    pub async fn count(&self, tenant: &str, from: &str, to: &str) -> Result<u64, StoreError> {
        self.events.count(tenant, from, to).await
    }

    /// The event at a place, whole.
    pub async fn at(&self, tenant: &str, sk: &str) -> Result<Option<Event>, StoreError> {
        let Some(mut event) = self.stored_at(tenant, sk).await? else { return Ok(None) };
        self.restore(&mut event).await?;
        Ok(Some(event))
    }

    /// The event at a place, as it is stored.
    pub async fn stored_at(&self, tenant: &str, sk: &str) -> Result<Option<Event>, StoreError> {
        let row = self.events.get(tenant, sk).await?;
        row.map(|row| row.placed_event().map(|(_, event)| event)).transpose()
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
            let range = (&*keys::moment(since), &*keys::moment(until));
            match self.events.find(tenant, event_id, range, self.pages_to_find).await? {
                Found::Nowhere => {}
                found @ (Found::At(_) | Found::NotReached(_)) => return Ok(found),
            }
        }
        Ok(Found::Nowhere)
    }

    /// Makes an event whole.
    pub async fn restore(&self, event: &mut Event) -> Result<(), StoreError> {
        self.payloads.restore(event).await
    }
}

/// Pages of 1 MB that are read at most to find an event by its id: some ten thousand events, within the half minute that
/// API Gateway waits for an answer.
const PAGES_TO_FIND: usize = 64;
/// How far an event's time may lie from the time in its id before everything has to be read.
const NEARBY_MS: u64 = 60_000;
