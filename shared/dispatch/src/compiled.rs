//! The compiled subscriptions of a drainer and tenant. They are compiled once per change: the
//! drain record, which every pass reads anyway, says how many changes there were.

use std::sync::Arc;

use ledgerline_event::Name;
use ledgerline_ledger::{StoreError, control::keys};
use ledgerline_subscription::{Matcher, Subscription};

use crate::{Dispatch, record::Lease};

/// Tenants that one process keeps in mind.
const MAX_KEPT: usize = 1_000;

#[derive(Clone)]
pub(crate) struct Compiled {
    version: u64,
    matcher: Arc<Matcher>,
}

impl Dispatch {
    pub(crate) async fn matcher(&self, lease: &Lease) -> Result<Arc<Matcher>, StoreError> {
        let whose = (lease.tenant.clone(), lease.drainer.clone());
        let version = lease.record.subscriptions;
        if let Ok(kept) = self.compiled.lock()
            && let Some(compiled) = kept.get(&whose).filter(|compiled| compiled.version == version)
        {
            return Ok(compiled.matcher.clone());
        }
        // Read after the version was: what is read may be newer, never older.
        let matcher = Arc::new(Matcher::new(self.subscriptions_of(&lease.tenant, &lease.drainer).await?));
        if let Ok(mut kept) = self.compiled.lock() {
            if kept.len() >= MAX_KEPT {
                kept.clear();
            }
            kept.insert(whose, Compiled { version, matcher: matcher.clone() });
        }
        Ok(matcher)
    }

    pub(crate) async fn subscriptions_of(
        &self,
        tenant: &Name,
        drainer: &Name,
    ) -> Result<Vec<Subscription>, StoreError> {
        let mut all: Vec<Subscription> = self.control.all(&keys::subscriptions(tenant)).await?;
        all.retain(|subscription| subscription.drainer_id == *drainer);
        Ok(all)
    }
}
