//! Messages of tasks that are kept beside their records, to send them again.

use ledgerline_event::Seconds;
use serde::{Deserialize, Serialize};

use crate::{ControlTable, StoreError, keys::ControlKey};

/// A message that the task's record does not keep: it is large, or the task has no record yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct KeptMessage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Where it lies if it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_key: Option<String>,
    pub ttl: Seconds,
}

/// The messages that are kept.
#[derive(Clone, Debug)]
pub struct KeptMessages {
    table: ControlTable,
}

impl KeptMessages {
    /// The messages in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// One message.
    pub async fn get(&self, key: &ControlKey) -> Result<Option<KeptMessage>, StoreError> {
        self.table.get(key).await
    }

    /// Puts a message, whatever is there.
    pub async fn put(&self, key: &ControlKey, message: &KeptMessage) -> Result<(), StoreError> {
        let put = self.table.put(key, message)?.send().await;
        put.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }
}
