//! The record of one generation of a task: who may run it, how often it was tried, how it ended.
//!
//! It begins as the claim of its start and ends as the claim of its end: the events of both are
//! inside until they are sent. A task that a workflow type or another system started has no record
//! until a worker acquires it, or until the drainer `jobs` reads its end.

use ledgerline_event::{Millis, Name, Seconds, catalogue::ErrorCategory};
use serde::{Deserialize, Serialize};

use crate::{
    ClaimState, ControlTable, StoreError,
    keys::{self, ControlKey},
    read, text,
};

mod ends;
mod leases;
mod resends;

pub use ends::EndCondition;
pub use leases::AcquireRequest;

/// Where a generation stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No worker runs it.
    #[default]
    Waiting,
    /// A worker has acquired it.
    Running,
    /// It will not run again.
    Ended,
}

/// A generation of a task as it is stored, without the claim in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct TaskRecord {
    #[serde(default)]
    pub phase: Phase,
    /// How often it was acquired. Also the fence: a worker with another number changes nothing.
    #[serde(default)]
    pub attempt: u32,
    /// Attempts that count: one that was abandoned unharmed does not.
    #[serde(default)]
    pub counted: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Which request acquired it: a worker whose answer was lost recognises itself.
    #[serde(default, rename = "takenBy", skip_serializing_if = "Option::is_none")]
    pub acquired_by: Option<String>,
    /// The attempt that was last released.
    #[serde(default, rename = "letGo", skip_serializing_if = "Option::is_none")]
    pub released_attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_category: Option<ErrorCategory>,
    /// The terminal event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_event: Option<Name>,
    /// The attempt that ended it, if a worker did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_attempt: Option<u32>,
    /// When it was started, if that was here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Millis>,
    /// Whether its job counts it as active.
    #[serde(default)]
    pub in_job: bool,
    /// The run that started it, and may wait for its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_run_id: Option<Name>,
    /// What was asked for: a repeated submission must ask for the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    /// The message, to send it again if its worker is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The row that has the message, if the record itself has not. Records of versions before 0.1.0 name none:
    /// their message lies under the name that every submission of the id used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_key: Option<String>,
    /// The attempt whose message was sent again.
    #[serde(default, rename = "givenBack", skip_serializing_if = "Option::is_none")]
    pub resent_attempt: Option<u32>,
    /// When its message was last enqueued again because no worker had taken it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<Millis>,
    #[serde(default, skip_serializing)]
    pub ttl: Option<Seconds>,
    /// Whether what it last claimed was sent.
    #[serde(default, rename = "state", skip_serializing)]
    pub claim_state: Option<ClaimState>,
}

impl TaskRecord {
    /// Whether a worker may still be running it: its lease has not expired.
    pub fn is_held(&self, now: Millis) -> bool {
        self.phase == Phase::Running && self.lease_until.is_some_and(|until| until > now)
    }

    /// Whether the effects of a claim in it may not have been sent yet.
    pub fn has_pending_claim(&self) -> bool {
        self.claim_state == Some(ClaimState::Pending)
    }
}

/// The records of tasks, one for each generation.
#[derive(Clone, Debug)]
pub struct TaskRecords {
    table: ControlTable,
}

/// A record of many, with the task that it is about.
#[derive(Debug)]
pub struct FoundRecord {
    /// The partition of its task.
    pub pk: String,
    /// The record, unless it cannot be read.
    pub record: Result<TaskRecord, StoreError>,
}

impl TaskRecords {
    /// The records in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// One record.
    pub async fn get(&self, key: &ControlKey) -> Result<Option<TaskRecord>, StoreError> {
        self.table.get(key).await
    }

    /// Whether a generation has a record, whatever is in it.
    pub async fn exists(&self, key: &ControlKey) -> Result<bool, StoreError> {
        Ok(self.table.get_row(key).await?.is_some())
    }

    /// Several records, in no order; those that are not there are left out.
    pub async fn get_all(&self, keys: &[ControlKey]) -> Result<Vec<FoundRecord>, StoreError> {
        let rows = self.table.get_all(keys).await?.into_iter();
        let found = rows.filter_map(|row| {
            let pk = row.get("PK").and_then(|pk| pk.as_s().ok()).cloned()?;
            Some(FoundRecord { pk, record: read(row) })
        });
        Ok(found.collect())
    }

    /// The records of a task, by generation.
    pub async fn generations(
        &self,
        tenant: &str,
        request_id: &str,
    ) -> Result<Vec<(u32, TaskRecord)>, StoreError> {
        let mut pages = self
            .table
            .partition(&keys::task(tenant, request_id))
            .key_condition_expression("PK = :pk AND begins_with(SK, :generations)")
            .expression_attribute_values(":generations", text(keys::GENERATIONS))
            .into_paginator()
            .send();
        let mut records = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                let generation =
                    item.get("SK").and_then(|sk| sk.as_s().ok()).and_then(|sk| keys::parse_generation(sk));
                records.extend(generation.zip(Some(read(item)?)));
            }
        }
        Ok(records)
    }
}
