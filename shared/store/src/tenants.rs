//! The registry of tenants: drainers and sweeps visit those that are in it.

use std::collections::HashMap;

use ledgerline_event::{Millis, Name};
use serde::Deserialize;

use crate::{ControlTable, StoreError, keys};

/// The registry of tenants.
#[derive(Clone, Debug)]
pub struct Tenants {
    table: ControlTable,
}

#[derive(Deserialize)]
struct Tenant {
    #[serde(rename = "SK")]
    id: Name,
}

impl Tenants {
    /// The registry in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Registers a tenant; a second time changes nothing. No tenant ever leaves the registry.
    pub async fn register(&self, tenant: &Name, now: Millis) -> Result<(), StoreError> {
        self.table.put_new(&keys::tenant(tenant), &HashMap::from([("registeredAt", now)])).await.map(|_| ())
    }

    /// Every tenant.
    pub async fn all(&self) -> Result<Vec<Name>, StoreError> {
        let tenants: Vec<Tenant> = self.table.all(keys::TENANTS).await?;
        Ok(tenants.into_iter().map(|tenant| tenant.id).collect())
    }
}
