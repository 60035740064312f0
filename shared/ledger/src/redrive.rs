//! Putting failed deliveries back on the bus.

use aws_sdk_eventbridge::{Client, types::PutEventsRequestEntry};
use futures::{Stream, StreamExt, stream};
use ledgerline_event::Name;
use ledgerline_store::{ControlTable, FailedDeliveries, FailureFilter, Payloads, StoreError, keys};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Clients, Clock, Names};

/// Failed deliveries of one read.
const PAGE: usize = 100;

/// Why a failed delivery was not put back on the bus.
#[derive(Debug, thiserror::Error)]
pub enum RedriveError {
    /// There is none with that id.
    #[error("no failed delivery has the id {0}")]
    Unknown(String),
    /// It is not an EventBridge event, so no bus takes it.
    #[error("{id} cannot go back on the bus: {reason}")]
    NotAnEvent {
        /// Which one.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The bus did not take it.
    #[error("the bus refused {id}: {reason}")]
    Refused {
        /// Which one.
        id: String,
        /// The bus's own words.
        reason: String,
    },
    /// A service did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Which failed deliveries to redrive.
#[derive(Clone, Debug)]
pub enum Deliveries {
    /// These.
    Ids(Vec<String>),
    /// So many of those that are not redriven yet, the newest first.
    NewestOpen(usize),
    /// All that are not redriven yet.
    AllOpen,
}

/// What became of one failed delivery.
#[derive(Debug)]
pub enum RedriveOutcome {
    /// It is back on the bus.
    Redriven {
        /// Which one.
        id: String,
    },
    /// It is not.
    Refused {
        /// Which one.
        id: String,
        /// Why.
        error: RedriveError,
    },
}

/// Puts failed deliveries back on the bus. Saving is idempotent, so a repeat is harmless.
#[derive(Clone)]
pub struct Redrive {
    deliveries: FailedDeliveries,
    payloads: Payloads,
    events: Client,
    bus: String,
    clock: Clock,
}

impl Redrive {
    /// Redrives the deliveries of a stage onto its bus.
    pub fn new(clients: &Clients, names: &Names, clock: Clock) -> Self {
        let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
        Self {
            deliveries: FailedDeliveries::new(control),
            payloads: Payloads::new(clients.s3.clone(), &names.payload_bucket),
            events: clients.events.clone(),
            bus: names.bus.clone(),
            clock,
        }
    }

    /// Redrives them one after the other; the outcomes come in their order, each as soon as it is known.
    pub async fn redrive<'a>(
        &'a self,
        tenant: &'a Name,
        deliveries: Deliveries,
    ) -> Result<impl Stream<Item = RedriveOutcome> + use<'a>, StoreError> {
        let ids = match deliveries {
            Deliveries::Ids(ids) => ids,
            Deliveries::NewestOpen(limit) => self.open(tenant, limit, None).await?.0,
            Deliveries::AllOpen => {
                let (mut ids, mut cursor) = self.open(tenant, PAGE, None).await?;
                while let Some(after) = cursor {
                    let (more, next) = self.open(tenant, PAGE, Some(&after)).await?;
                    ids.extend(more);
                    cursor = next;
                }
                ids
            }
        };
        Ok(stream::iter(ids).then(move |id| async move {
            match self.redrive_one(tenant, &id).await {
                Ok(()) => RedriveOutcome::Redriven { id },
                Err(error) => RedriveOutcome::Refused { id, error },
            }
        }))
    }

    /// Some ids of those that are not redriven yet, and where there are more.
    async fn open(
        &self,
        tenant: &Name,
        limit: usize,
        after: Option<&str>,
    ) -> Result<(Vec<String>, Option<String>), StoreError> {
        let page = self.deliveries.list(tenant, FailureFilter::Failed, limit, after).await?;
        Ok((page.items.into_iter().map(|failure| failure.id).collect(), page.cursor))
    }

    /// Sends one event to the bus again, unchanged.
    async fn redrive_one(&self, tenant: &Name, id: &str) -> Result<(), RedriveError> {
        let known = match keys::is_failure_id(id) {
            true => self.deliveries.get(tenant, id).await?,
            false => None,
        };
        let failure = known.ok_or_else(|| RedriveError::Unknown(id.to_owned()))?;
        let now = (self.clock)();
        let body = failure.whole_body(&self.payloads).await?;
        let entry = bus_entry(&body, &self.bus)
            .map_err(|reason| RedriveError::NotAnEvent { id: id.to_owned(), reason })?;
        let answer = self.events.put_events().entries(entry).send().await;
        let answer = answer.map_err(|error| StoreError::new("PutEvents", error))?;
        if let Some(refused) = answer.entries().iter().find(|entry| entry.error_code().is_some()) {
            let reason = refused.error_message().or(refused.error_code()).unwrap_or("no reason given");
            return Err(RedriveError::Refused { id: id.to_owned(), reason: reason.to_owned() });
        }
        Ok(self.deliveries.note_redrive(&failure, now).await?)
    }
}

/// The parts of an EventBridge event that are needed to send it again.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Delivered<'a> {
    source: String,
    detail_type: String,
    #[serde(borrow)]
    detail: &'a RawValue,
}

fn bus_entry(body: &str, bus: &str) -> Result<PutEventsRequestEntry, String> {
    let delivered: Delivered<'_> = serde_json::from_str(body).map_err(|error| error.to_string())?;
    Ok(PutEventsRequestEntry::builder()
        .event_bus_name(bus)
        .source(delivered.source)
        .detail_type(delivered.detail_type)
        .detail(delivered.detail.get())
        .build())
}
