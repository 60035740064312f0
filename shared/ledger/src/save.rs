//! Saving: every event that is acknowledged is in the table once, with a pointer in the late
//! lane if a drainer may have passed its place. Every redelivery goes through all of it again.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Mutex,
};

use aws_sdk_dynamodb::{
    Client,
    error::SdkError,
    operation::{put_item::PutItemError, transact_write_items::TransactWriteItemsError},
    types::{AttributeValue, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem},
};
use futures::future::join_all;
use ledgerline_event::{Admitted, Event, Keyed, Millis, Name, Seconds, content_hash};

use crate::{
    Fault, Patience, StoreError,
    control::{ControlTable, keys, marker::Marker},
    late::Confirmed,
};

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
    dynamo: Client,
    events_table: String,
    control: ControlTable,
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
            dynamo,
            events_table: events_table.into(),
            control,
            retention_days,
            registered: Mutex::default(),
        }
    }

    /// Saves a batch concurrently; the answers are in the order of the events.
    pub async fn save(&self, batch: &[Admitted], now: Millis) -> Vec<Result<Outcome, SaveError>> {
        let mut tenants: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for (position, admitted) in batch.iter().enumerate() {
            tenants.entry(&admitted.event.tenant_id).or_default().push(position);
        }
        let by_tenant = tenants.into_iter().map(|(tenant, positions)| async move {
            let events: Vec<&Admitted> = positions.iter().map(|position| &batch[*position]).collect();
            positions.into_iter().zip(self.save_for_tenant(tenant, &events, now).await).collect::<Vec<_>>()
        });
        let mut answers: Vec<_> = join_all(by_tenant).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(position, _)| *position);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn save_for_tenant(
        &self,
        tenant: &Name,
        events: &[&Admitted],
        now: Millis,
    ) -> Vec<Result<Outcome, SaveError>> {
        if let Err(error) = self.register(tenant, now).await {
            return all_failed(events.len(), &error);
        }
        let puts = join_all(events.iter().map(|admitted| self.put(admitted, now))).await;
        // Only now: the horizons count as they are after the events are in the table.
        let confirmed: Vec<_> = events
            .iter()
            .zip(&puts)
            .filter(|(_, put)| matches!(put, Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. })))
            .map(|(admitted, _)| Confirmed { sk: admitted.keys.sk(), ttl: self.ttl(&admitted.event, now) })
            .collect();
        if confirmed.is_empty() {
            return puts;
        }
        let late = match self.control.settle(tenant, &confirmed, now).await {
            Ok(late) => late,
            Err(error) => {
                return puts
                    .into_iter()
                    .map(|put| match put {
                        Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. }) => Err(repeat(&error).into()),
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
        self.control.register_tenant(tenant, now).await?;
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

    async fn put(&self, admitted: &Admitted, now: Millis) -> Result<Outcome, SaveError> {
        let mut event = admitted.event.clone();
        event.received_at = Some(now);
        event.ttl = self.ttl(&event, now);
        let item = serde_dynamo::aws_sdk_dynamodb_1::to_item(Keyed { keys: &admitted.keys, event: &event })
            .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
        match &admitted.event.idempotency_key {
            None => self.put_plain(item, &admitted.event).await,
            Some(key) => self.put_with_marker(item, &admitted.event, key, now).await,
        }
    }

    async fn put_plain(&self, item: Item, event: &Event) -> Result<Outcome, SaveError> {
        let put = self
            .dynamo
            .put_item()
            .table_name(&self.events_table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(PK)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        match put {
            Ok(_) => Ok(Outcome::Saved { late: false }),
            Err(SdkError::ServiceError(refused)) if is_condition(refused.err()) => {
                let PutItemError::ConditionalCheckFailedException(existing) = refused.into_err() else {
                    unreachable!("checked by the guard");
                };
                duplicate(existing.item, event)
            }
            Err(error) => Err(StoreError::new("PutItem", error).into()),
        }
    }

    async fn put_with_marker(
        &self,
        item: Item,
        event: &Event,
        key: &str,
        now: Millis,
    ) -> Result<Outcome, SaveError> {
        let marker = Marker::of(event, now);
        let put_event = Put::builder()
            .table_name(&self.events_table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(PK)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(|error| StoreError::unreadable("TransactWriteItems", error.to_string()))?;
        let put_marker = self
            .control
            .put_for_transaction(&keys::marker(&event.tenant_id, key), &marker)?
            // DynamoDB may delete an expired marker days later: the key is free all the same.
            .condition_expression("attribute_not_exists(PK) OR #ttl <= :now")
            .expression_attribute_names("#ttl", "ttl")
            .expression_attribute_values(":now", AttributeValue::N(now.seconds().get().to_string()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(|error| StoreError::unreadable("TransactWriteItems", error.to_string()))?;
        // The queue brings the event again; the other events of its batch wait for this one.
        let mut patience = Patience::brief();
        loop {
            let answer = self
                .dynamo
                .transact_write_items()
                .transact_items(TransactWriteItem::builder().put(put_event.clone()).build())
                .transact_items(TransactWriteItem::builder().put(put_marker.clone()).build())
                .send()
                .await;
            let error = match answer {
                Ok(_) => return Ok(Outcome::Saved { late: false }),
                Err(error) => error,
            };
            let reasons = match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    cancelled.cancellation_reasons.clone().unwrap_or_default()
                }
                _ => {
                    patience.wait_after(StoreError::new("TransactWriteItems", error)).await?;
                    continue;
                }
            };
            let failed = |position: usize| {
                reasons.get(position).filter(|reason| reason.code() == Some("ConditionalCheckFailed"))
            };
            // The event's own row decides first: its marker may have expired and be another's now.
            if let Some(reason) = failed(0) {
                return duplicate(reason.item.clone(), event);
            }
            if let Some(reason) = failed(1) {
                let first = match reason.item.clone() {
                    Some(item) => Some(
                        serde_dynamo::aws_sdk_dynamodb_1::from_item::<Marker>(item)
                            .map_err(|error| StoreError::unreadable("reading a marker", error.to_string()))?,
                    ),
                    None => self.control.marker(&event.tenant_id, key, now).await?,
                };
                if let Some(first) = first {
                    let same_content = first.content_hash == marker.content_hash;
                    return Ok(Outcome::Collapsed { first: first.event_id, same_content });
                }
            }
            let mut error = cancelled(&reasons, error);
            if error.fault == Fault::Refused {
                // The marker expired between two requests: its key is free.
                error.fault = Fault::Conflict;
            }
            patience.wait_after(error).await?;
        }
    }
}

type Item = std::collections::HashMap<String, AttributeValue>;

fn is_condition(error: &PutItemError) -> bool {
    matches!(error, PutItemError::ConditionalCheckFailedException(_))
}

/// The row is there already: this very event, or another that has taken its id.
fn duplicate(existing: Option<Item>, event: &Event) -> Result<Outcome, SaveError> {
    let Some(existing) = existing else { return Ok(Outcome::Duplicate { late: false }) };
    let existing: Event = serde_dynamo::aws_sdk_dynamodb_1::from_item(existing)
        .map_err(|error| StoreError::unreadable("reading an event", error.to_string()))?;
    if content_hash(&existing) == content_hash(event) {
        Ok(Outcome::Duplicate { late: false })
    } else {
        Err(SaveError::IdTaken(event.event_id.clone()))
    }
}

fn cancelled(
    reasons: &[aws_sdk_dynamodb::types::CancellationReason],
    error: SdkError<TransactWriteItemsError, impl std::fmt::Debug + Send + Sync + 'static>,
) -> StoreError {
    let invalid = reasons.iter().find(|reason| reason.code() == Some("ValidationError"));
    let message = invalid.and_then(|reason| reason.message()).map(str::to_owned);
    let failure = StoreError::new("TransactWriteItems", error);
    StoreError { message: message.unwrap_or(failure.message), ..failure }
}

fn mark_late(outcome: Outcome, admitted: &Admitted, late: &HashSet<String>) -> Outcome {
    let is_late = late.contains(admitted.keys.sk());
    match outcome {
        Outcome::Saved { .. } => Outcome::Saved { late: is_late },
        Outcome::Duplicate { .. } => Outcome::Duplicate { late: is_late },
        collapsed @ Outcome::Collapsed { .. } => collapsed,
    }
}

fn all_failed(count: usize, error: &StoreError) -> Vec<Result<Outcome, SaveError>> {
    (0..count).map(|_| Err(repeat(error).into())).collect()
}

/// One failure, told to every event that it concerns.
fn repeat(error: &StoreError) -> StoreError {
    StoreError {
        fault: error.fault,
        code: error.code.clone(),
        ..StoreError::unreadable(error.operation, error.message.clone())
    }
}
