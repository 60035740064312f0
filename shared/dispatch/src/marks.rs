//! Marks: a drainer left something undone for a tenant.
//!
//! A mark is put before the lease is released, and each put renews its nonce. A sweep that found everything settled deletes
//! the marks that it read before its visit, and only if no process has put them again since. Sweeps of the version before
//! compare fences alone. Marks are spread over several partitions. Those of the version before are in one of
//! their own, which is read and cleared as well.

use std::{collections::BTreeMap, time::Duration};

use futures::{FutureExt, future::join_all};
use ledgerline_event::Name;
use ledgerline_ledger::{
    Fault, Patience, StoreError,
    control::keys::{self, ControlKey},
};
use serde::Deserialize;
use tokio::time::timeout;

use crate::{
    Dispatch,
    conditional::{number, text},
};

/// A drainer at a tenant.
pub(crate) type Visit = (Name, Name);

/// The visits that are marked, each with its marks as they were read.
pub(crate) type Marked = BTreeMap<Visit, Vec<Mark>>;

/// A mark as it was read.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mark {
    #[serde(rename = "PK")]
    pk: String,
    #[serde(rename = "SK")]
    sk: String,
    /// A new one with each put. Marks of the version before have none.
    #[serde(default)]
    nonce: Option<String>,
}

impl Mark {
    fn visit(&self) -> Option<Visit> {
        let (tenant, drainer) = keys::parse_dirty_mark(&self.sk)?;
        Some((Name::stored("tenantId", tenant).ok()?, Name::stored("drainerId", drainer).ok()?))
    }
}

impl Dispatch {
    /// Every mark, and how many partitions could not be read: the next sweep finds their marks.
    pub(crate) async fn marked(&self) -> (Marked, usize) {
        let mut read = Vec::new();
        for partition in keys::dirty_partitions() {
            let marks = async move {
                let marks: Result<Vec<Mark>, StoreError> = self.control.all(&partition).await;
                (partition, marks)
            };
            read.push(marks.boxed());
        }
        let (mut marked, mut unread) = (Marked::new(), 0);
        for (partition, marks) in join_all(read).await {
            match marks {
                Ok(marks) => {
                    for mark in marks {
                        if let Some(visit) = mark.visit() {
                            marked.entry(visit).or_default().push(mark);
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(partition, %error, "marks were not read; the next sweep reads them");
                    unread += 1;
                }
            }
        }
        (marked, unread)
    }

    /// Puts a mark. One attempt: the caller may hold the lease.
    pub(crate) async fn mark_dirty(
        &self,
        tenant: &Name,
        drainer: &Name,
        fence: u64,
    ) -> Result<(), StoreError> {
        let update = self
            .control
            .update(&keys::dirty_mark(tenant, drainer))
            .update_expression("SET nonce = :nonce, fence = :fence, markedAt = :now")
            .condition_expression("attribute_not_exists(fence) OR fence <= :fence")
            .expression_attribute_values(":nonce", text(&self.new_event_id()))
            .expression_attribute_values(":fence", number(fence))
            .expression_attribute_values(":now", number(self.now().get()));
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            // A process with a later fence has marked it: that mark stays.
            Err(error) if error.fault == Fault::Refused => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Puts a mark, and waits while the table throttles. The caller holds no lease.
    pub(crate) async fn mark_patiently(
        &self,
        tenant: &Name,
        drainer: &Name,
        fence: u64,
    ) -> Result<(), StoreError> {
        let mut patience = Patience::default();
        while let Err(error) = self.mark_dirty(tenant, drainer, fence).await {
            patience.wait_after(error).await?;
        }
        Ok(())
    }

    /// Marks a visit that was not made or that failed. It reads nothing: what made the visit fail may be the drain state.
    /// `false` if neither partition takes the mark in time.
    pub(crate) async fn mark_unread(&self, (tenant, drainer): &Visit, within: Duration) -> bool {
        for key in [keys::dirty_mark(tenant, drainer), keys::spare_dirty_mark(tenant, drainer)] {
            match timeout(within, self.renew_mark(&key)).await {
                Ok(Ok(())) => return true,
                Ok(Err(error)) => {
                    tracing::error!(%tenant, %drainer, partition = key.pk, %error, "no mark was put");
                }
                Err(_) => {
                    tracing::error!(%tenant, %drainer, partition = key.pk, "there was no time to put a mark");
                }
            }
        }
        false
    }

    async fn renew_mark(&self, key: &ControlKey) -> Result<(), StoreError> {
        let mut patience = Patience::default();
        loop {
            let update = self
                .control
                .update(key)
                .update_expression("SET nonce = :nonce, fence = if_not_exists(fence, :zero), markedAt = :now")
                .expression_attribute_values(":nonce", text(&self.new_event_id()))
                .expression_attribute_values(":zero", number(0))
                .expression_attribute_values(":now", number(self.now().get()));
            match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
                Ok(_) => return Ok(()),
                Err(error) => patience.wait_after(error).await?,
            }
        }
    }

    /// Deletes the marks that were read before a visit that found everything settled.
    pub(crate) async fn clear_marks(&self, marks: &[Mark], fence: u64) -> Result<(), StoreError> {
        for mark in marks {
            let key = ControlKey { pk: mark.pk.clone(), sk: mark.sk.clone() };
            let delete = self.control.delete(&key).expression_attribute_values(":fence", number(fence));
            let delete = match &mark.nonce {
                None => delete.condition_expression("fence <= :fence AND attribute_not_exists(nonce)"),
                Some(nonce) => delete
                    .condition_expression("fence <= :fence AND nonce = :nonce")
                    .expression_attribute_values(":nonce", text(nonce)),
            };
            match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
                Err(error) if error.fault == Fault::Refused => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}
