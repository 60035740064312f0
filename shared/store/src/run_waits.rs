//! What runs wait for: timers, sent events, and the ends of tasks and jobs.

use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{ControlKey, ControlTable, RecordStream, StoreError, keys};

/// A timer or a wait: the run and the entity that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitRecord {
    /// The run that waits.
    pub run_id: Name,
    /// The step or wait.
    pub entity_id: Name,
    /// Whether an external program drives the run over HTTP.
    #[serde(default)]
    pub external: bool,
    /// What an event must contain, as JSON; present only if it waits for an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_criteria: Option<String>,
    /// The wait ignores events that were sent before this time; `None`: it takes earlier ones too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Millis>,
    /// The shard of the due index that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_shard: Option<String>,
    /// When it is due; `None` without a timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Millis>,
}

/// A wait for an event, with the key under which it is found.
#[derive(Clone, Debug, Deserialize)]
pub struct Waiter {
    #[serde(rename = "PK")]
    pk: String,
    #[serde(rename = "SK")]
    sk: String,
    /// The wait itself.
    #[serde(flatten)]
    pub wait: WaitRecord,
}

impl Waiter {
    /// Its key.
    pub fn key(&self) -> ControlKey {
        ControlKey { pk: self.pk.clone(), sk: self.sk.clone() }
    }
}

/// Timers and waits of runs.
#[derive(Clone, Debug)]
pub struct WaitRecords {
    table: ControlTable,
}

impl WaitRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// One timer or wait.
    pub async fn get(&self, key: &ControlKey) -> Result<Option<WaitRecord>, StoreError> {
        self.table.get(key).await
    }

    /// Deletes a timer or wait. If it is not there, nothing happens.
    pub async fn delete(&self, key: &ControlKey) -> Result<(), StoreError> {
        let delete = self.table.delete(key).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }

    /// The waits for events of a name that are stored under `leaf`: the hash of one leaf of their criteria, or `None`
    /// for the waits whose criteria have no leaf.
    pub fn waiters(&self, tenant: &str, event_name: &str, leaf: Option<u64>) -> RecordStream<Waiter> {
        RecordStream::new(self.table.partition(&keys::waiters(tenant, event_name, leaf)))
    }
}
