//! Saving: every event that is acknowledged is in the table once, with a pointer among the late
//! arrivals if a drainer may have passed its place. Every redelivery goes through all of it again.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Mutex,
};

use aws_sdk_dynamodb::Client;
use futures::future::join_all;
use ledgerline_event::{Event, Keyed, Millis, Name, Seconds, ValidEvent, content_hash};
use serde::Serialize;

use ledgerline_store::{
    Confirmed, ControlTable, Fault, IdempotencyMarkers, LateArrivals, Marker, RequestRetry, StoreError,
    Tenants,
};

use crate::events_table::{EventPut, EventsTable, ExistingMarker, MarkedPut};

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// What became of an event. All of these are successes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the table now.
    Saved {
        /// Whether a drainer may have passed its place.
        late: bool,
    },
    /// It was there before; the first row stays as it is.
    Duplicate {
        /// Whether a drainer may have passed its place.
        late: bool,
    },
    /// Another event has its idempotency key.
    Collapsed {
        /// The first event with the key.
        first: Name,
        /// Whether both say the same.
        same_content: bool,
    },
}

/// Why an event is not in the table.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// Another event with the same tenant, time and id is there, and says something else.
    #[error("eventId: {0} is taken by another event of the same tenant and time with other content")]
    IdTaken(Name),
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SaveError {
    /// Whether a redelivery may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::IdTaken(_) => false,
            Self::Store(error) => !matches!(error.fault, Fault::Rejected),
        }
    }
}

/// Writes events into the table.
#[derive(Debug)]
pub struct Saver {
    events: EventsTable,
    markers: IdempotencyMarkers,
    late_arrivals: LateArrivals,
    tenants: Tenants,
    retention_days: u64,
    /// Tenants that this process has seen in the registry; they never leave it.
    registered: Mutex<HashSet<Name>>,
}

impl Saver {
    /// `retention_days` 0 keeps events for ever.
    pub fn new(
        dynamo: Client,
        events_table: impl Into<String>,
        control: ControlTable,
        retention_days: u64,
    ) -> Self {
        Self {
            events: EventsTable::new(dynamo, events_table),
            markers: IdempotencyMarkers::new(control.clone()),
            late_arrivals: LateArrivals::new(control.clone()),
            tenants: Tenants::new(control),
            retention_days,
            registered: Mutex::default(),
        }
    }

    /// Saves a batch concurrently; the answers are in the order of the events.
    pub async fn save(&self, batch: &[ValidEvent], now: Millis) -> Vec<Result<Outcome, SaveError>> {
        let mut tenants: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for (position, admitted) in batch.iter().enumerate() {
            tenants.entry(&admitted.event.tenant_id).or_default().push(position);
        }
        let by_tenant = tenants.into_iter().map(|(tenant, positions)| async move {
            let events: Vec<&ValidEvent> = positions.iter().map(|position| &batch[*position]).collect();
            positions.into_iter().zip(self.save_for_tenant(tenant, &events, now).await).collect::<Vec<_>>()
        });
        let mut answers: Vec<_> = join_all(by_tenant).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(position, _)| *position);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn save_for_tenant(
        &self,
        tenant: &Name,
        events: &[&ValidEvent],
        now: Millis,
    ) -> Vec<Result<Outcome, SaveError>> {
        if let Err(error) = self.register(tenant, now).await {
            return all_failed(events.len(), &error);
        }
        let puts = join_all(events.iter().map(|admitted| self.put(admitted, now))).await;
        // Only now: the watermarks count as they are after the events are in the table.
        let confirmed: Vec<_> = events
            .iter()
            .zip(&puts)
            .filter(|(_, put)| matches!(put, Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. })))
            .map(|(admitted, _)| Confirmed { sk: admitted.keys.sk(), ttl: self.ttl(&admitted.event, now) })
            .collect();
        if confirmed.is_empty() {
            return puts;
        }
        let late = match self.late_arrivals.point_to_late(tenant, &confirmed, now).await {
            Ok(late) => late,
            Err(error) => {
                return puts
                    .into_iter()
                    .map(|put| match put {
                        Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. }) => Err(copy_of(&error).into()),
                        other => other,
                    })
                    .collect();
            }
        };
        puts.into_iter()
            .zip(events)
            .map(|(put, admitted)| put.map(|outcome| mark_late(outcome, admitted, &late)))
            .collect()
    }

    async fn register(&self, tenant: &Name, now: Millis) -> Result<(), StoreError> {
        let known = |set: &Mutex<HashSet<Name>>| set.lock().is_ok_and(|set| set.contains(tenant));
        if known(&self.registered) {
            return Ok(());
        }
        self.tenants.register(tenant, now).await?;
        if let Ok(mut registered) = self.registered.lock() {
            registered.insert(tenant.clone());
        }
        Ok(())
    }

    fn ttl(&self, event: &Event, now: Millis) -> Option<Seconds> {
        let retention = (self.retention_days > 0)
            .then(|| now.seconds().plus(self.retention_days.saturating_mul(SECONDS_PER_DAY)));
        event.ttl.or(retention)
    }

    async fn put(&self, admitted: &ValidEvent, now: Millis) -> Result<Outcome, SaveError> {
        let mut event = admitted.event.clone();
        event.received_at = Some(now);
        event.ttl = self.ttl(&event, now);
        let row = Keyed { keys: &admitted.keys, event: &event };
        match &admitted.event.idempotency_key {
            None => match self.events.put_new(&row).await? {
                EventPut::Applied => Ok(Outcome::Saved { late: false }),
                EventPut::PlaceTaken(existing) => duplicate(existing.as_deref(), &admitted.event),
            },
            Some(key) => self.put_with_marker(&row, &admitted.event, key, now).await,
        }
    }

    async fn put_with_marker(
        &self,
        row: &impl Serialize,
        event: &Event,
        key: &str,
        now: Millis,
    ) -> Result<Outcome, SaveError> {
        let marker = Marker::of(event, now);
        let put_marker = self.markers.put_new(&event.tenant_id, key, &marker, now)?;
        // The queue brings the event again; the other events of its batch wait for this one.
        let mut retries = RequestRetry::brief();
        loop {
            let existing_marker = match self.events.put_new_with_marker(row, put_marker.clone()).await? {
                MarkedPut::Applied => return Ok(Outcome::Saved { late: false }),
                MarkedPut::PlaceTaken(existing) => return duplicate(existing.as_deref(), event),
                MarkedPut::KeyTaken(existing_marker) => existing_marker,
                MarkedPut::Retryable(error) => {
                    retries.wait_after(error).await?;
                    continue;
                }
            };
            match existing_marker {
                ExistingMarker::Known(first) => return Ok(collapsed(first, &marker)),
                ExistingMarker::NotReturned(expired) => {
                    match self.markers.get(&event.tenant_id, key, now).await? {
                        Some(first) => return Ok(collapsed(first, &marker)),
                        None => retries.wait_after(expired).await?,
                    }
                }
            }
        }
    }
}

/// Another event has the key already.
fn collapsed(first: Marker, marker: &Marker) -> Outcome {
    Outcome::Collapsed { same_content: first.content_hash == marker.content_hash, first: first.event_id }
}

/// The row is there already: this very event, or another that has taken its id.
fn duplicate(existing: Option<&Event>, event: &Event) -> Result<Outcome, SaveError> {
    match existing.is_none_or(|existing| content_hash(existing) == content_hash(event)) {
        true => Ok(Outcome::Duplicate { late: false }),
        false => Err(SaveError::IdTaken(event.event_id.clone())),
    }
}

fn mark_late(outcome: Outcome, admitted: &ValidEvent, late: &HashSet<String>) -> Outcome {
    let is_late = late.contains(admitted.keys.sk());
    match outcome {
        Outcome::Saved { .. } => Outcome::Saved { late: is_late },
        Outcome::Duplicate { .. } => Outcome::Duplicate { late: is_late },
        collapsed @ Outcome::Collapsed { .. } => collapsed,
    }
}

fn all_failed(count: usize, error: &StoreError) -> Vec<Result<Outcome, SaveError>> {
    (0..count).map(|_| Err(copy_of(error).into())).collect()
}

/// One failure, for each event that it concerns.
fn copy_of(error: &StoreError) -> StoreError {
    StoreError {
        fault: error.fault,
        code: error.code.clone(),
        ..StoreError::unreadable(error.operation, error.message.clone())
    }
}
