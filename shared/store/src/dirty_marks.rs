//! Marks: a drainer left something undone for a tenant. Also the cursor of the sweep over marks.
//!
//! Each put renews the nonce of a mark, and a mark is deleted only as it was read: one that was put again since stays.
//! Both nonce and fence are written, because versions before 0.1.0 compare only the fence.

use aws_sdk_dynamodb::types::builders::UpdateBuilder;
use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{ControlKey, ControlTable, Fault, StoreError, keys, number, text};

/// The name of the sweep over marks in the key of its cursor.
const SWEEP: &str = "MARKS";

/// A mark as it was read.
#[derive(Clone, Debug, Deserialize)]
pub struct Mark {
    #[serde(rename = "PK")]
    pk: String,
    #[serde(rename = "SK")]
    sk: String,
    /// A new one with each put. Marks of versions before 0.1.0 have none.
    #[serde(default)]
    nonce: Option<String>,
}

/// Distinguishes one put of a mark from the others.
#[derive(Clone, Debug)]
pub struct MarkStamp {
    /// An id that no other put has.
    pub nonce: Name,
    /// When it is put.
    pub now: Millis,
}

/// In which of its two partitions the mark of a drainer and tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkPartition {
    /// The partition that the key of the mark selects.
    Primary,
    /// The next partition, for when the primary one takes no writes.
    Fallback,
}

#[derive(Serialize, Deserialize)]
struct MarkSweepCursor {
    after: Name,
}

/// Reads and changes marks.
#[derive(Clone, Debug)]
pub struct MarkRecords {
    table: ControlTable,
}

impl Mark {
    /// Its tenant and drainer; `None` if the row is not a mark.
    pub fn tenant_and_drainer(&self) -> Option<(Name, Name)> {
        let (tenant, drainer) = keys::parse_dirty_mark(&self.sk)?;
        Some((Name::stored("tenantId", tenant).ok()?, Name::stored("drainerId", drainer).ok()?))
    }
}

impl MarkPartition {
    /// The partition key of the mark.
    pub fn partition(self, tenant: &Name, drainer: &Name) -> String {
        self.key(tenant, drainer).pk
    }

    fn key(self, tenant: &Name, drainer: &Name) -> ControlKey {
        match self {
            Self::Primary => keys::dirty_mark(tenant, drainer),
            Self::Fallback => keys::fallback_dirty_mark(tenant, drainer),
        }
    }
}

impl MarkRecords {
    /// The marks of one control table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The marks of one of the [partitions](keys::dirty_partitions).
    pub async fn in_partition(&self, partition: &str) -> Result<Vec<Mark>, StoreError> {
        self.table.all(partition).await
    }

    /// Puts a mark. One with a later fence stays as it is.
    pub async fn put(
        &self,
        tenant: &Name,
        drainer: &Name,
        fence: u64,
        stamp: &MarkStamp,
    ) -> Result<(), StoreError> {
        let update = self
            .table
            .update(&keys::dirty_mark(tenant, drainer))
            .update_expression("SET nonce = :nonce, fence = :fence, markedAt = :now")
            .condition_expression("attribute_not_exists(fence) OR fence <= :fence")
            .expression_attribute_values(":nonce", text(&stamp.nonce))
            .expression_attribute_values(":fence", number(fence))
            .expression_attribute_values(":now", number(stamp.now.get()));
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            // A process with a later fence has marked it: that mark stays.
            Err(error) if error.fault == Fault::ConditionFailed => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Puts a mark whatever is there: for a writer that does not know the fence.
    pub async fn put_without_fence(
        &self,
        tenant: &Name,
        drainer: &Name,
        partition: MarkPartition,
        stamp: &MarkStamp,
    ) -> Result<(), StoreError> {
        let update = self
            .table
            .update(&partition.key(tenant, drainer))
            .update_expression(PUT_WITHOUT_FENCE)
            .expression_attribute_values(":nonce", text(&stamp.nonce))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":now", number(stamp.now.get()));
        update.send().await.map(drop).map_err(|error| StoreError::new("UpdateItem", error))
    }

    /// Deletes a mark, unless it was put again since it was read, or with a later fence.
    pub async fn delete_as_read(&self, mark: &Mark, fence: u64) -> Result<(), StoreError> {
        let key = ControlKey { pk: mark.pk.clone(), sk: mark.sk.clone() };
        let delete = self.table.delete(&key).expression_attribute_values(":fence", number(fence));
        let delete = match &mark.nonce {
            None => delete.condition_expression("fence <= :fence AND attribute_not_exists(nonce)"),
            Some(nonce) => delete
                .condition_expression("fence <= :fence AND nonce = :nonce")
                .expression_attribute_values(":nonce", text(nonce)),
        };
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            Err(error) if error.fault == Fault::ConditionFailed => Ok(()),
            other => other.map(drop),
        }
    }

    /// The last tenant whose marks the last sweep has visited; `None` if it visited all marked tenants.
    pub async fn sweep_cursor(&self) -> Result<Option<Name>, StoreError> {
        let cursor: Option<MarkSweepCursor> = self.table.get(&keys::sweep_record(SWEEP)).await?;
        Ok(cursor.map(|cursor| cursor.after))
    }

    /// Stores the last tenant whose marks a sweep has visited.
    pub async fn set_sweep_cursor(&self, tenant: &Name) -> Result<(), StoreError> {
        let put = self.table.put(&keys::sweep_record(SWEEP), &MarkSweepCursor { after: tenant.clone() })?;
        put.send().await.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// Deletes the cursor: a sweep has visited all marked tenants.
    pub async fn clear_sweep_cursor(&self) -> Result<(), StoreError> {
        let delete = self.table.delete(&keys::sweep_record(SWEEP)).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }
}

const PUT_WITHOUT_FENCE: &str = "SET nonce = :nonce, fence = if_not_exists(fence, :zero), markedAt = :now";

/// The update by which a process that changes a subscription marks the drainer, in the transaction of the change.
pub(crate) fn mark_update_for_change(
    table: &ControlTable,
    (tenant, drainer): (&Name, &Name),
    stamp: &MarkStamp,
) -> UpdateBuilder {
    table
        .update_for_transaction(&keys::dirty_mark(tenant, drainer))
        .update_expression(PUT_WITHOUT_FENCE)
        .expression_attribute_values(":nonce", text(&stamp.nonce))
        .expression_attribute_values(":zero", number(0))
        .expression_attribute_values(":now", number(stamp.now.get()))
}

/// The update by which a process that rewinds a drainer marks it, in the transaction of the rewind. `fence` is the fence
/// that the rewind writes.
pub(crate) fn mark_update_for_rewind(
    table: &ControlTable,
    (tenant, drainer): (&Name, &Name),
    fence: u64,
    stamp: &MarkStamp,
) -> UpdateBuilder {
    table
        .update_for_transaction(&keys::dirty_mark(tenant, drainer))
        .update_expression("SET nonce = :nonce, fence = :fence, markedAt = :now")
        .expression_attribute_values(":nonce", text(&stamp.nonce))
        .expression_attribute_values(":fence", number(fence))
        .expression_attribute_values(":now", number(stamp.now.get()))
}
