//! Marks: a drainer left something undone for a tenant.
//!
//! A mark is put before the lease is released, and deleted only by a sweep that found everything settled, and only if no
//! process with a later fence has put it since. Marks are spread over several partitions. Those of the version before are
//! in one of their own, which is read and cleared as well.

use std::collections::BTreeMap;

use futures::{FutureExt, future::join_all};
use ledgerline_event::Name;
use ledgerline_ledger::{
    Fault, Patience, StoreError,
    control::keys::{self, ControlKey},
};
use serde::Deserialize;

use crate::{Dispatch, conditional::number};

/// A drainer at a tenant.
pub(crate) type Visit = (Name, Name);

/// Who is marked, and whether the version before has put a mark too.
pub(crate) type Marked = BTreeMap<Visit, bool>;

#[derive(Deserialize)]
struct Mark {
    #[serde(rename = "SK")]
    sk: String,
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
                    for visit in marks.iter().filter_map(Mark::visit) {
                        *marked.entry(visit).or_default() |= partition == keys::DIRTY;
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
            .update_expression("SET fence = :fence, markedAt = :now")
            .condition_expression("attribute_not_exists(fence) OR fence <= :fence")
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

    /// Deletes the mark of a visit that found everything settled.
    pub(crate) async fn clear_mark(
        &self,
        (tenant, drainer): &Visit,
        has_old: bool,
        fence: u64,
    ) -> Result<(), StoreError> {
        if has_old {
            self.delete_mark(&keys::old_dirty_mark(tenant, drainer), fence).await?;
        }
        self.delete_mark(&keys::dirty_mark(tenant, drainer), fence).await
    }

    async fn delete_mark(&self, mark: &ControlKey, fence: u64) -> Result<(), StoreError> {
        let delete = self
            .control
            .delete(mark)
            .condition_expression("fence <= :fence")
            .expression_attribute_values(":fence", number(fence));
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            Err(error) if error.fault == Fault::Refused => Ok(()),
            other => other.map(|_| ()),
        }
    }
}
