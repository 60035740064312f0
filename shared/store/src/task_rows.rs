//! The rows of tasks that people list: folded from the ledger, and made again from it at any time.

use aws_sdk_dynamodb::error::SdkError;
use ledgerline_event::{Millis, Name, Seconds, TaskHistory, TaskSummary};
use serde::{Deserialize, Serialize};

use crate::{
    ControlTable, ListCursor, StoreError, conditionally,
    keys::{self, ControlKey},
    number, read,
};

/// A task's row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SummaryRow {
    /// A [`TaskHistory`] as JSON: one attribute, whatever it holds.
    #[serde(default)]
    pub history: String,
    #[serde(default)]
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_in: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_shard: Option<String>,
    /// When a task that has not ended is looked at: no worker may have acquired it, or its worker may be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
    #[serde(default, rename = "PK", skip_serializing)]
    pub pk: String,
}

impl SummaryRow {
    /// What was folded into the row.
    pub fn history(&self) -> TaskHistory {
        // What cannot be read is folded again from nothing; `verify` finds the difference.
        serde_json::from_str(&self.history).unwrap_or_default()
    }

    /// What the row says, unless nothing has been folded into it.
    pub fn summary(&self) -> Option<TaskSummary> {
        self.history().summary()
    }
}

/// What became of a row that was read and changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPut {
    /// The row is put.
    Applied,
    /// The row has changed since it was read.
    Superseded,
}

/// The rows of tasks.
#[derive(Clone, Debug)]
pub struct TaskRows {
    table: ControlTable,
}

impl TaskRows {
    /// The rows in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// One row.
    pub async fn get(&self, key: &ControlKey) -> Result<Option<SummaryRow>, StoreError> {
        self.table.get(key).await
    }

    /// Several rows, in no order; those that are not there are left out.
    pub async fn get_all(&self, keys: &[ControlKey]) -> Result<Vec<SummaryRow>, StoreError> {
        self.table.get_all(keys).await?.into_iter().map(read).collect()
    }

    /// Puts a row if it is as it was read.
    pub async fn put(
        &self,
        key: &ControlKey,
        before: Option<&SummaryRow>,
        next: &SummaryRow,
    ) -> Result<RowPut, StoreError> {
        let put = self.table.put(key, next)?;
        let put = match before {
            None => put.condition_expression("attribute_not_exists(PK)"),
            Some(before) => put
                .condition_expression("version = :version")
                .expression_attribute_values(":version", number(before.version)),
        };
        match put.send().await {
            Ok(_) => Ok(RowPut::Applied),
            Err(SdkError::ServiceError(refused)) if refused.err().is_conditional_check_failed_exception() => {
                Ok(RowPut::Superseded)
            }
            Err(error) => Err(StoreError::new("PutItem", error)),
        }
    }

    /// Some rows of lists that follow each other, and the cursor of the next page.
    pub async fn list(
        &self,
        tenant: &Name,
        lists: &[String],
        limit: usize,
        cursor: ListCursor,
    ) -> Result<(Vec<SummaryRow>, Option<String>), StoreError> {
        self.table.list_pages(lists, limit, cursor, |id| keys::task_summary(tenant, id)).await
    }

    /// Keys of rows of one shard that are due, oldest first. The index lags behind the row.
    pub async fn due(&self, shard: u8, now: Millis, limit: i32) -> Result<Vec<ControlKey>, StoreError> {
        self.table.due(&keys::task_due_shard(shard), now, limit).await
    }

    /// Makes a row due again at a time, if it is as it was read: a fold that changed it has set the time itself.
    pub async fn make_due(
        &self,
        key: &ControlKey,
        row: &SummaryRow,
        at: Millis,
        ttl: Option<Seconds>,
    ) -> Result<RowPut, StoreError> {
        let mut set = "SET dueAt = :again".to_owned();
        let mut update = self
            .table
            .update(key)
            .condition_expression("version = :version AND attribute_exists(dueAt)")
            .expression_attribute_values(":version", number(row.version))
            .expression_attribute_values(":again", number(at.get()));
        if let Some(ttl) = ttl {
            set.push_str(", #ttl = :ttl");
            update = update
                .expression_attribute_names("#ttl", "ttl")
                .expression_attribute_values(":ttl", number(ttl.get()));
        }
        Ok(match conditionally::<SummaryRow>(update.update_expression(set)).await? {
            crate::Conditional::Done(_) => RowPut::Applied,
            crate::Conditional::Refused(_) => RowPut::Superseded,
        })
    }
}
