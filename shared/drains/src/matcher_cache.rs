//! The compiled subscriptions of a drainer and tenant. They are compiled once per change: the
//! drain state, which every pass reads anyway, says how many changes there were.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use ledgerline_event::Name;
use ledgerline_store::{StoreError, SubscriptionRecords};
use ledgerline_subscription::{Matcher, Subscription};

use crate::lease::Lease;

/// Compiled matchers that one process keeps. When there are more, all are dropped.
const MAX_MATCHERS: usize = 1_000;

/// The matchers that this process has compiled, by tenant and drainer.
pub(crate) struct MatcherCache {
    pub(crate) subscriptions: SubscriptionRecords,
    pub(crate) compiled: Mutex<HashMap<(Name, Name), Compiled>>,
}

#[derive(Clone)]
pub(crate) struct Compiled {
    version: u64,
    matcher: Arc<Matcher>,
}

impl MatcherCache {
    pub(crate) async fn matcher(&self, lease: &Lease) -> Result<Arc<Matcher>, StoreError> {
        let drain_key = (lease.tenant.clone(), lease.drainer.clone());
        let version = lease.state.subscriptions_version;
        if let Ok(kept) = self.compiled.lock()
            && let Some(compiled) = kept.get(&drain_key).filter(|compiled| compiled.version == version)
        {
            return Ok(compiled.matcher.clone());
        }
        // The subscriptions are read after the version: they may be newer than it, never older.
        let matcher = Arc::new(Matcher::new(self.subscriptions_of(&lease.tenant, &lease.drainer).await?));
        if let Ok(mut kept) = self.compiled.lock() {
            if kept.len() >= MAX_MATCHERS {
                kept.clear();
            }
            kept.insert(drain_key, Compiled { version, matcher: matcher.clone() });
        }
        Ok(matcher)
    }

    pub(crate) async fn subscriptions_of(
        &self,
        tenant: &Name,
        drainer: &Name,
    ) -> Result<Vec<Subscription>, StoreError> {
        let mut all = self.subscriptions.of_tenant(tenant).await?;
        all.retain(|subscription| subscription.drainer_id == *drainer);
        Ok(all)
    }
}
