//! Starts that did not work: those that wait in a block or at which the drain is halted, and those that are parked, so
//! that an operator can see why, mend the cause, and start them after all.
//!
//! One record per start and epoch, while there is something to do about it.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{Put, builders::PutBuilder};
use ledgerline_event::{Millis, Name, Seconds};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    ControlKey, ControlTable, Fault, Item, StoreError, build_error, key_item, keys, number, read, text,
};

/// The row of a start is not there, or nothing has counted an attempt or parked it since it was read.
const UNCOUNTED: &str = "attribute_not_exists(PK) OR (#state = :retrying AND attempts = :seen)";

/// Why a start is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParkedBecause {
    /// It fails each time, or failed too often.
    Failed,
    /// More subscriptions matched than may start.
    FanoutCap,
    /// Too many subscriptions led to it.
    Loop,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParkedState {
    /// It is tried again: it waits in a block, or the drain is halted at its event.
    Retrying,
    /// The drain has gone on without it.
    Parked,
}

/// A start that did not work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct ParkedStart {
    pub id: String,
    pub state: ParkedState,
    pub because: ParkedBecause,
    /// What went wrong last.
    pub reason: String,
    pub attempts: u32,
    pub drainer_id: Name,
    pub epoch: u64,
    pub subscription_id: Name,
    pub workflow_type: Name,
    pub event_id: Name,
    pub event_type: Name,
    pub entity_type: Name,
    pub entity_id: Name,
    /// The event's place in the tenant's time line.
    pub event_place: String,
    pub first_failed_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_at: Option<Millis>,
    /// The event whose start it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Name>,
    /// The block that it waits in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place_in_block: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// Some of a tenant's parked starts.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct ParkedPage {
    pub items: Vec<ParkedStart>,
    pub cursor: Option<String>,
}

/// Which parked starts are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedFilter {
    /// Those that are parked.
    Parked,
    /// These and those that are tried again.
    All,
}

/// What became of a write of a parked start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedWrite {
    /// It is written.
    Done,
    /// Another process has written the row since; what it wrote stays.
    Changed,
}

/// The keys of a start: of its row among the parked starts, and of its claim.
#[derive(Clone, Debug)]
pub struct StartKeys {
    /// Its id among the parked starts.
    pub start_id: String,
    /// Its claim.
    pub claim: ControlKey,
}

/// What the table holds of a start.
#[derive(Debug)]
pub struct StoredStart<C> {
    /// Its row among the parked starts.
    pub parked: Option<ParkedStart>,
    /// Its claim.
    pub claim: Option<C>,
}

/// Reads and changes parked starts.
#[derive(Clone, Debug)]
pub struct ParkedStartRecords {
    table: ControlTable,
}

impl ParkedStartRecords {
    /// The parked starts of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// One parked start.
    pub async fn get(&self, tenant: &Name, id: &str) -> Result<Option<ParkedStart>, StoreError> {
        self.table.get(&keys::parked_start(tenant, id)).await
    }

    /// Rows and claims of some starts, in their order.
    pub async fn get_with_claims<C: DeserializeOwned>(
        &self,
        tenant: &Name,
        starts: &[StartKeys],
    ) -> Result<Vec<StoredStart<C>>, StoreError> {
        let parked = |start: &StartKeys| keys::parked_start(tenant, &start.start_id);
        let wanted: Vec<ControlKey> =
            starts.iter().flat_map(|start| [parked(start), start.claim.clone()]).collect();
        let mut rows: HashMap<(String, String), Item> = HashMap::new();
        for row in self.table.get_all(&wanted).await? {
            let text = |name: &str| row.get(name).and_then(|value| value.as_s().ok()).cloned();
            rows.insert((text("PK").unwrap_or_default(), text("SK").unwrap_or_default()), row);
        }
        let mut row_of = |key: ControlKey| rows.remove(&(key.pk, key.sk));
        starts
            .iter()
            .map(|start| {
                let parked = row_of(parked(start)).map(read).transpose()?;
                // A row without a state is no claim.
                let claim = row_of(start.claim.clone()).filter(|row| row.contains_key("state"));
                Ok(StoredStart { parked, claim: claim.map(read).transpose()? })
            })
            .collect()
    }

    /// Puts the row of a start unless it is parked or has been tried since `seen` attempts were counted.
    pub async fn put_if_uncounted(
        &self,
        tenant: &Name,
        start: &ParkedStart,
        seen: u32,
    ) -> Result<ParkedWrite, StoreError> {
        let put = self
            .table
            .put(&keys::parked_start(tenant, &start.id), start)?
            .condition_expression(UNCOUNTED)
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"))
            .expression_attribute_values(":seen", number(u64::from(seen)));
        written(put.send().await.map(drop).map_err(|error| StoreError::new("PutItem", error)))
    }

    /// Puts the row of a parked start, also over that of a start at which the drain was halted: nothing would retry that one any
    /// more. A row that is parked or waits in a block stays.
    pub async fn put_parked(&self, tenant: &Name, start: &ParkedStart) -> Result<ParkedWrite, StoreError> {
        let put = self
            .table
            .put(&keys::parked_start(tenant, &start.id), start)?
            .condition_expression(
                "attribute_not_exists(PK) OR (#state = :retrying AND attribute_not_exists(#block))",
            )
            .expression_attribute_names("#block", "block")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"));
        written(put.send().await.map(drop).map_err(|error| StoreError::new("PutItem", error)))
    }

    /// Stores a failed attempt, which `start` counts already, unless the drain has written the row since.
    pub async fn note_attempt(&self, tenant: &Name, start: &ParkedStart) -> Result<(), StoreError> {
        let put = self
            .table
            .put(&keys::parked_start(tenant, &start.id), start)?
            .condition_expression("#state = :state AND attempts = :attempts")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(
                ":state",
                text(match start.state {
                    ParkedState::Retrying => "retrying",
                    ParkedState::Parked => "parked",
                }),
            )
            .expression_attribute_values(":attempts", number(u64::from(start.attempts - 1)));
        put.send().await.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// Deletes the row of a start.
    pub async fn delete(&self, tenant: &Name, id: &str) -> Result<(), StoreError> {
        let delete = self.table.delete(&keys::parked_start(tenant, id)).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }

    /// Deletes the row of a start at which the drain was halted: neither a parked one nor one in a block.
    pub async fn delete_if_halted(&self, tenant: &Name, id: &str) -> Result<ParkedWrite, StoreError> {
        let delete = self
            .table
            .delete(&keys::parked_start(tenant, id))
            .condition_expression("#state = :retrying AND attribute_not_exists(#block)")
            .expression_attribute_names("#block", "block")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"));
        written(delete.send().await.map(drop).map_err(|error| StoreError::new("DeleteItem", error)))
    }

    /// A tenant's parked starts, by the time of their events, newest first, after the start with the id `cursor`.
    pub async fn page(
        &self,
        tenant: &Name,
        filter: ParkedFilter,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<ParkedPage, StoreError> {
        let partition = keys::parked(tenant);
        let mut start: Option<Item> = cursor.map(|id| key_item(&keys::parked_start(tenant, id)));
        let mut items: Vec<ParkedStart> = Vec::new();
        loop {
            let mut query =
                self.table.partition(&partition).scan_index_forward(false).set_exclusive_start_key(start);
            if filter == ParkedFilter::Parked {
                query = query
                    .filter_expression("#state = :parked")
                    .expression_attribute_names("#state", "state")
                    .expression_attribute_values(":parked", text("parked"));
            }
            let page = query.send().await.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                if items.len() == limit {
                    let cursor = items.last().map(|last| last.id.clone());
                    return Ok(ParkedPage { items, cursor });
                }
                items.push(read(item)?);
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(ParkedPage { items, cursor: None });
            }
        }
    }

    /// The starts of events of this time.
    pub async fn of_time(&self, tenant: &Name, time: Millis) -> Result<Vec<ParkedStart>, StoreError> {
        let mut pages = self
            .table
            .partition(&keys::parked(tenant))
            .key_condition_expression("PK = :pk AND begins_with(SK, :time)")
            .expression_attribute_values(":time", text(&format!("{time}-")))
            .into_paginator()
            .send();
        let mut starts = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                starts.push(read(item)?);
            }
        }
        Ok(starts)
    }
}

/// The row, as it was read, of a start that begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowBefore {
    /// No row.
    Missing,
    /// A row of a start that is tried again.
    Retrying,
}

/// Puts the row of a start that waits, or is parked instead.
pub(crate) fn put_over(
    table: &ControlTable,
    tenant: &Name,
    start: &ParkedStart,
    before: RowBefore,
) -> Result<Put, StoreError> {
    let put = put(table, tenant, start)?;
    let put = match before {
        RowBefore::Missing => put.condition_expression("attribute_not_exists(PK)"),
        RowBefore::Retrying => put
            .condition_expression("#state = :retrying")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying")),
    };
    put.build().map_err(build_error)
}

/// Puts the row of a start unless it is parked or has been tried since `seen` attempts were counted.
pub(crate) fn put_uncounted(
    table: &ControlTable,
    tenant: &Name,
    start: &ParkedStart,
    seen: u32,
) -> Result<Put, StoreError> {
    let put = put(table, tenant, start)?
        .condition_expression(UNCOUNTED)
        .expression_attribute_names("#state", "state")
        .expression_attribute_values(":retrying", text("retrying"))
        .expression_attribute_values(":seen", number(u64::from(seen)));
    put.build().map_err(build_error)
}

/// Puts the row of a start whatever is there.
pub(crate) fn put(
    table: &ControlTable,
    tenant: &Name,
    start: &ParkedStart,
) -> Result<PutBuilder, StoreError> {
    table.put_for_transaction(&keys::parked_start(tenant, &start.id), start)
}

fn written(answer: Result<(), StoreError>) -> Result<ParkedWrite, StoreError> {
    match answer {
        Ok(()) => Ok(ParkedWrite::Done),
        Err(error) if error.fault == Fault::ConditionFailed => Ok(ParkedWrite::Changed),
        Err(error) => Err(error),
    }
}
