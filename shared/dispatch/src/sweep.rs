//! What brings a drainer to a tenant: wake-ups, marks, and the round that visits everybody.
//!
//! A mark says that a drainer left something undone. It is put before the lease is let go, and
//! taken away only by a sweep that found everything settled, and only if nobody with a later
//! fence has put it since.

use std::collections::BTreeSet;

use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::{
    Fault, StoreError,
    control::keys::{self, DUE_SHARDS},
};
use serde::Deserialize;
use tokio::time::Instant;

use crate::{Dispatch, DispatchError, Drained, Drainer, conditional::number};

/// Tenants that are visited at the same time.
const VISITED_AT_ONCE: usize = 4;
/// Overdue claims of one shard and one sweep; the next sweep takes the rest.
const OVERDUE_AT_ONCE: i32 = 200;

/// What a sweep did.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Swept {
    pub visited: usize,
    pub claims_repeated: usize,
    pub trouble: usize,
    /// Who wants to be visited again…
    pub again: BTreeSet<Name>,
    /// …and the soonest time of it.
    pub again_at: Option<Millis>,
}

/// A drainer at a tenant.
type Visit = (Name, Name);

#[derive(Deserialize)]
struct Mark {
    #[serde(rename = "SK")]
    sk: String,
}

impl Mark {
    fn visit(&self) -> Option<Visit> {
        let (tenant, drainer) = keys::parse_dirty_mark(&self.sk)?;
        Some((Name::new("tenantId", tenant).ok()?, Name::new("drainerId", drainer).ok()?))
    }
}

#[derive(Deserialize)]
struct Tenant {
    #[serde(rename = "SK")]
    id: Name,
}

impl Dispatch {
    /// Visits tenants that have new events. Trouble with one of them leaves a mark and the others alone.
    pub async fn wake(
        &self,
        tenants: BTreeSet<Name>,
        deadline: Option<Instant>,
    ) -> Result<Swept, DispatchError> {
        let visits = tenants.into_iter().flat_map(|tenant| {
            self.drainers.prompt().map(move |drainer| (tenant.clone(), drainer.id.clone()))
        });
        self.visit_all(visits.collect(), &BTreeSet::new(), deadline).await
    }

    /// Finishes overdue claims, visits everybody whose round has come, and whoever has a mark.
    pub async fn sweep(&self, deadline: Option<Instant>) -> Result<Swept, DispatchError> {
        let mut swept = Swept { claims_repeated: self.repeat_overdue().await?, ..Swept::default() };
        let marks: Vec<Mark> = self.control.all(keys::DIRTY).await?;
        let marked: BTreeSet<Visit> = marks.iter().filter_map(Mark::visit).collect();
        // One with a schedule of its own waits for its round.
        let is_prompt = |drainer: &Name| self.drainers.prompt().any(|prompt| prompt.id == *drainer);
        let mut visits: BTreeSet<Visit> =
            marked.iter().filter(|(_, drainer)| is_prompt(drainer)).cloned().collect();
        for drainer in self.drainers.iter() {
            if self.round_is_due(drainer).await? {
                let tenants: Vec<Tenant> = self.control.all(keys::TENANTS).await?;
                visits.extend(tenants.into_iter().map(|tenant| (tenant.id, drainer.id.clone())));
            }
        }
        swept.add(self.visit_all(visits, &marked, deadline).await?);
        for (tenant, drainer) in &marked {
            self.tell_stall(tenant, drainer).await?;
        }
        Ok(swept)
    }

    /// Takes every lease away: for whoever knows that nobody else is alive.
    pub async fn break_leases(&self) -> Result<(), DispatchError> {
        let tenants: Vec<Tenant> = self.control.all(keys::TENANTS).await?;
        for tenant in &tenants {
            for drainer in self.drainers.iter() {
                self.records.break_lease(&tenant.id, &drainer.id).await?;
            }
        }
        Ok(())
    }

    /// Visits every tenant once, for every drainer.
    pub async fn visit_everybody(&self, deadline: Option<Instant>) -> Result<Swept, DispatchError> {
        let tenants: Vec<Tenant> = self.control.all(keys::TENANTS).await?;
        let visits = tenants.into_iter().flat_map(|tenant| {
            self.drainers.iter().map(move |drainer| (tenant.id.clone(), drainer.id.clone()))
        });
        self.visit_all(visits.collect(), &BTreeSet::new(), deadline).await
    }

    async fn visit_all(
        &self,
        visits: BTreeSet<Visit>,
        marked: &BTreeSet<Visit>,
        deadline: Option<Instant>,
    ) -> Result<Swept, DispatchError> {
        let visited: Vec<_> = stream::iter(visits)
            .map(|visit| {
                let marked = marked.contains(&visit);
                let (tenant, drainer) = visit;
                async move {
                    let drained = self.visit(&tenant, &drainer, marked, deadline).await;
                    (tenant, drainer, drained)
                }
                .boxed()
            })
            .buffer_unordered(VISITED_AT_ONCE)
            .collect()
            .await;
        let mut swept = Swept { visited: visited.len(), ..Swept::default() };
        for (tenant, drainer, drained) in visited {
            match drained {
                Ok(drained) => swept.again(tenant, drained.again_at),
                Err(error) => {
                    tracing::error!(%tenant, %drainer, %error, "a visit failed; the next sweep comes back to it");
                    swept.trouble += 1;
                    // If even that fails, the caller's own repetition is all that is left.
                    let fence = self.records.get(&tenant, &drainer).await?.map_or(0, |record| record.fence);
                    self.mark_dirty(&tenant, &drainer, fence).await?;
                    swept.again(tenant, Some(self.now().plus(crate::SETTLE_MS)));
                }
            }
        }
        self.metrics.count(self.now(), &[("DrainTrouble", swept.trouble)]);
        Ok(swept)
    }

    async fn visit(
        &self,
        tenant: &Name,
        drainer: &Name,
        marked: bool,
        deadline: Option<Instant>,
    ) -> Result<Drained, DispatchError> {
        let drained = self.drain(tenant, drainer, deadline).await?;
        if marked && drained.again_at.is_none() && !drained.skipped_due_to_lock {
            self.clear_mark(tenant, drainer, drained.fence).await?;
        }
        Ok(drained)
    }

    pub(crate) async fn mark_dirty(
        &self,
        tenant: &Name,
        drainer: &Name,
        fence: u64,
    ) -> Result<(), StoreError> {
        let update = self
            .control
            .update(&keys::dirty_mark(tenant, drainer))
            .update_expression("SET fence = :fence, markedAt = :now")
            .condition_expression("attribute_not_exists(fence) OR fence <= :fence")
            .expression_attribute_values(":fence", number(fence))
            .expression_attribute_values(":now", number(self.now().get()));
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            // Somebody with a later fence has marked it: that one stays.
            Err(error) if error.code.as_deref() == Some("ConditionalCheckFailedException") => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn clear_mark(&self, tenant: &Name, drainer: &Name, fence: u64) -> Result<(), StoreError> {
        let delete = self
            .control
            .delete(&keys::dirty_mark(tenant, drainer))
            .condition_expression("fence <= :fence")
            .expression_attribute_values(":fence", number(fence));
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            Err(error) if error.fault == Fault::Conflict => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Whether this sweep is the one that visits everybody for the drainer.
    async fn round_is_due(&self, drainer: &Drainer) -> Result<bool, StoreError> {
        let now = self.now();
        let round = u64::try_from(drainer.round().as_millis()).unwrap_or(u64::MAX);
        let update = self
            .control
            .update(&keys::schedule(&drainer.id))
            .update_expression("SET visitedAt = :now")
            .condition_expression("attribute_not_exists(visitedAt) OR visitedAt <= :before")
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":before", number(now.minus(round).get()));
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            Ok(_) => Ok(true),
            Err(error) if error.fault == Fault::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finishes claims that nobody finished in time.
    async fn repeat_overdue(&self) -> Result<usize, DispatchError> {
        let now = self.now();
        let mut repeated = 0;
        for shard in 0..DUE_SHARDS {
            for key in self.control.due(&keys::due_shard(shard), now, OVERDUE_AT_ONCE).await? {
                match self.repeat(&key).await {
                    Ok(was_pending) => repeated += usize::from(was_pending),
                    // One that cannot be finished now must not keep the others from it.
                    Err(error) => {
                        tracing::error!(claim = key.pk, %error, "a claim is still pending");
                        self.postpone(&key).await?;
                    }
                }
            }
        }
        Ok(repeated)
    }
}

impl Swept {
    fn add(&mut self, other: Self) {
        self.visited += other.visited;
        self.claims_repeated += other.claims_repeated;
        self.trouble += other.trouble;
        for tenant in other.again {
            self.again(tenant, other.again_at);
        }
    }

    fn again(&mut self, tenant: Name, at: Option<Millis>) {
        let Some(at) = at else { return };
        self.again.insert(tenant);
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }
}
