//! Marks: a drainer left something undone for a tenant.
//!
//! A mark is put before the lease is released, and each put renews its nonce. A sweep that found everything settled
//! deletes the marks that it read before its visit, and only if no process has put them again since. A mark has a fence
//! as well, because sweeps of versions before 0.1.0 compare only that. Marks are spread over several partitions.
//! Versions before 0.1.0 put theirs into one other partition, which the sweep reads and clears as well.

use std::{collections::BTreeMap, time::Duration};

use futures::{FutureExt, future::join_all};
use ledgerline_event::Name;
use ledgerline_ledger::Emitter;
use ledgerline_store::{Mark, MarkPartition, MarkRecords, MarkStamp, RequestRetry, StoreError, keys};
use tokio::time::timeout;

/// A drainer at a tenant.
pub(crate) type Visit = (Name, Name);

/// The visits that are marked, each with its marks as they were read.
pub(crate) type Marked = BTreeMap<Visit, Vec<Mark>>;

/// The marks of one stage.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    pub(crate) records: MarkRecords,
    pub(crate) emitter: Emitter,
}

impl Marks {
    /// Every mark, and how many partitions could not be read: the next sweep finds their marks.
    pub(crate) async fn marked(&self) -> (Marked, usize) {
        let mut read = Vec::new();
        for partition in keys::dirty_partitions() {
            let marks = async move {
                let marks: Result<Vec<Mark>, StoreError> = self.records.in_partition(&partition).await;
                (partition, marks)
            };
            read.push(marks.boxed());
        }
        let (mut marked, mut unread) = (Marked::new(), 0);
        for (partition, marks) in join_all(read).await {
            match marks {
                Ok(marks) => {
                    for mark in marks {
                        if let Some(visit) = mark.tenant_and_drainer() {
                            marked.entry(visit).or_default().push(mark);
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(partition, %error, "could not read a partition of marks; the next sweep reads it");
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
        self.records.put(tenant, drainer, fence, &self.stamp()).await
    }

    /// Puts a mark, with retries while the table throttles. The caller must hold no lease, which might expire
    /// meanwhile.
    pub(crate) async fn mark_with_retries(
        &self,
        tenant: &Name,
        drainer: &Name,
        fence: u64,
    ) -> Result<(), StoreError> {
        let mut retries = RequestRetry::default();
        while let Err(error) = self.mark_dirty(tenant, drainer, fence).await {
            retries.wait_after(error).await?;
        }
        Ok(())
    }

    /// Marks a visit that was not made or that failed, without reading the drain state, since that may be what made the
    /// visit fail. Returns `false` if neither partition takes the mark in time.
    pub(crate) async fn mark_without_fence(&self, (tenant, drainer): &Visit, within: Duration) -> bool {
        for choice in [MarkPartition::Primary, MarkPartition::Fallback] {
            let partition = choice.partition(tenant, drainer);
            match timeout(within, self.put_without_fence((tenant, drainer), choice)).await {
                Ok(Ok(())) => return true,
                Ok(Err(error)) => {
                    tracing::error!(%tenant, %drainer, partition, %error, "could not write the mark");
                }
                Err(_) => {
                    tracing::error!(%tenant, %drainer, partition, "timed out writing the mark");
                }
            }
        }
        false
    }

    async fn put_without_fence(
        &self,
        (tenant, drainer): (&Name, &Name),
        partition: MarkPartition,
    ) -> Result<(), StoreError> {
        let mut retries = RequestRetry::default();
        while let Err(error) = self.records.put_without_fence(tenant, drainer, partition, &self.stamp()).await
        {
            retries.wait_after(error).await?;
        }
        Ok(())
    }

    /// Distinguishes the next put of a mark from all others.
    pub(crate) fn stamp(&self) -> MarkStamp {
        MarkStamp { nonce: self.emitter.new_event_id(), now: self.emitter.now() }
    }

    /// Deletes the marks that were read before a visit that found everything settled.
    pub(crate) async fn clear_marks(&self, marks: &[Mark], fence: u64) -> Result<(), StoreError> {
        for mark in marks {
            self.records.delete_as_read(mark, fence).await?;
        }
        Ok(())
    }
}
