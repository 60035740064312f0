//! Marks: a drainer left something undone for a tenant. And where a sweep of the marks goes on.
//!
//! Each put renews the nonce of a mark, and a mark is deleted only as it was read: one that was put again since stays.
//! The version before compares fences alone, so both are written.

use aws_sdk_dynamodb::types::builders::UpdateBuilder;
use ledgerline_event::{Millis, Name};
use serde::{Deserialize, Serialize};

use crate::{ControlKey, ControlTable, Fault, StoreError, keys, number, text};

/// Where the visits of marked tenants go on.
const SWEEP_PLACE: &str = "MARKS";

/// A mark as it was read.
#[derive(Clone, Debug, Deserialize)]
pub struct Mark {
    #[serde(rename = "PK")]
    pk: String,
    #[serde(rename = "SK")]
    sk: String,
    /// A new one with each put. Marks of the version before have none.
    #[serde(default)]
    nonce: Option<String>,
}

/// Distinguishes one put of a mark from the others.
#[derive(Clone, Debug)]
pub struct MarkStamp {
    /// An id that nothing else has.
    pub nonce: Name,
    /// When it is put.
    pub now: Millis,
}

/// Which of the two marks of a drainer and tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkPlace {
    /// The usual one.
    Main,
    /// The one in the next partition, for when the usual one's takes no writes.
    Spare,
}

#[derive(Serialize, Deserialize)]
struct SweepPlace {
    after: Name,
}

/// Reads and changes marks.
#[derive(Clone, Debug)]
pub struct MarkRecords {
    table: ControlTable,
}

impl Mark {
    /// Its tenant and drainer, if the row is a mark.
    pub fn visit(&self) -> Option<(Name, Name)> {
        let (tenant, drainer) = keys::parse_dirty_mark(&self.sk)?;
        Some((Name::stored("tenantId", tenant).ok()?, Name::stored("drainerId", drainer).ok()?))
    }
}

impl MarkPlace {
    /// The partition of a mark.
    pub fn partition(self, tenant: &Name, drainer: &Name) -> String {
        self.key(tenant, drainer).pk
    }

    fn key(self, tenant: &Name, drainer: &Name) -> ControlKey {
        match self {
            Self::Main => keys::dirty_mark(tenant, drainer),
            Self::Spare => keys::spare_dirty_mark(tenant, drainer),
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
            Err(error) if error.fault == Fault::Refused => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Puts a mark whatever is there: for a writer that does not know the fence.
    pub async fn put_without_fence(
        &self,
        tenant: &Name,
        drainer: &Name,
        place: MarkPlace,
        stamp: &MarkStamp,
    ) -> Result<(), StoreError> {
        let update = self
            .table
            .update(&place.key(tenant, drainer))
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
            Err(error) if error.fault == Fault::Refused => Ok(()),
            other => other.map(drop),
        }
    }

    /// The tenant up to which the last sweep has visited marked tenants.
    pub async fn swept_up_to(&self) -> Result<Option<Name>, StoreError> {
        let place: Option<SweepPlace> = self.table.get(&keys::sweep_place(SWEEP_PLACE)).await?;
        Ok(place.map(|place| place.after))
    }

    /// Notes the tenant up to which a sweep has visited marked tenants.
    pub async fn note_swept_up_to(&self, tenant: &Name) -> Result<(), StoreError> {
        let put = self.table.put(&keys::sweep_place(SWEEP_PLACE), &SweepPlace { after: tenant.clone() })?;
        put.send().await.map(drop).map_err(|error| StoreError::new("PutItem", error))
    }

    /// Notes that a sweep has visited all marked tenants.
    pub async fn forget_swept_up_to(&self) -> Result<(), StoreError> {
        let delete = self.table.delete(&keys::sweep_place(SWEEP_PLACE)).send().await;
        delete.map(drop).map_err(|error| StoreError::new("DeleteItem", error))
    }
}

const PUT_WITHOUT_FENCE: &str = "SET nonce = :nonce, fence = if_not_exists(fence, :zero), markedAt = :now";

/// A mark in the transaction of a change that the drainer has to see.
pub(crate) fn of_change(
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

/// A mark in the transaction of a rewind, which gives the drainer this fence.
pub(crate) fn of_rewind(
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
