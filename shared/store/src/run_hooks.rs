//! Hooks of runs, by their tokens.

use ledgerline_event::Name;
use serde::{Deserialize, Serialize};

use crate::{ControlKey, ControlTable, StoreError, keys};

/// A hook as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct HookRecord {
    pub tenant_id: Name,
    pub run_id: Name,
    pub hook_id: Name,
    pub token_digest: String,
    /// The token itself where it is part of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default)]
    pub external: bool,
    #[serde(default)]
    pub disposed: bool,
}

impl HookRecord {
    /// The key of its token.
    pub fn key(&self) -> ControlKey {
        match &self.name {
            Some(name) => keys::named_hook(&self.tenant_id, name),
            None => keys::hook(&self.token_digest),
        }
    }
}

/// The hooks of runs.
#[derive(Clone, Debug)]
pub struct HookRecords {
    table: ControlTable,
}

impl HookRecords {
    /// Those of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The hook whose token has this key.
    pub async fn get(&self, key: &ControlKey) -> Result<Option<HookRecord>, StoreError> {
        self.table.get(key).await
    }
}
