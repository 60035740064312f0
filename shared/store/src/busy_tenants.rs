//! The mark that a tenant has tasks under way, and what the last health check remembered beside it.
//!
//! The drainer puts the mark, with a new stamp, before any row says that a task is being worked on. The list of
//! such tasks is an index, which is behind its table: the mark is taken away only after the list was empty for
//! a while under one and the same stamp.

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::Millis;
use serde::Deserialize;

use crate::{Conditional, ControlTable, Fault, StoreError, conditionally, keys, number, text};

/// A mark as it is stored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct BusyMark {
    #[serde(rename = "SK")]
    pub tenant: String,
    /// The drainer's: rises whenever a task begins to be worked on.
    pub stamp: u64,
    /// The check's: rises with every change of what follows.
    pub version: u64,
    /// Tasks that were not healthy, as JSON: one attribute, whatever it holds.
    pub unwell: Option<String>,
    /// Where that lies if it is large.
    pub unwell_key: Option<String>,
    /// The stamp under which the list was first found empty, and when.
    pub quiet_stamp: Option<u64>,
    pub quiet_since: Option<Millis>,
}

/// A change of the part of a mark that belongs to the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusyChange {
    /// No task is unwell.
    AllWell,
    /// These tasks are unwell.
    Unwell(String),
    /// The tasks that are unwell lie under this key.
    UnwellAt(String),
    /// The list is empty under this stamp since then.
    Quiet {
        /// The stamp.
        stamp: u64,
        /// The time.
        since: Millis,
    },
}

/// What became of the removal of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyRemoval {
    /// The mark is removed.
    Applied,
    /// The mark has changed since it was read: a task has begun.
    Superseded,
}

/// The marks of all tenants.
#[derive(Clone, Debug)]
pub struct BusyMarks {
    table: ControlTable,
}

impl BusyMarks {
    /// The marks in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Every mark.
    pub async fn all(&self) -> Result<Vec<BusyMark>, StoreError> {
        self.table.all(keys::BUSY).await
    }

    /// Marks a tenant, with a new stamp.
    pub async fn mark(&self, tenant: &str) -> Result<(), StoreError> {
        let update = self
            .table
            .update(&keys::busy_mark(tenant))
            .update_expression("SET stamp = if_not_exists(stamp, :zero) + :one")
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1));
        update.send().await.map(drop).map_err(|error| StoreError::new("UpdateItem", error))
    }

    /// Changes the part of a mark that belongs to the check, if it is as it was read. If not, another process
    /// was faster and has checked the same tasks.
    pub async fn change(
        &self,
        mark: &BusyMark,
        change: &BusyChange,
    ) -> Result<Conditional<BusyMark>, StoreError> {
        let (set, values): (_, Vec<(&str, AttributeValue)>) = match change {
            BusyChange::AllWell => (" REMOVE unwell, unwellKey", Vec::new()),
            BusyChange::Unwell(json) => {
                (", unwell = :unwell REMOVE unwellKey", vec![(":unwell", text(json))])
            }
            BusyChange::UnwellAt(key) => {
                (", unwellKey = :unwell REMOVE unwell", vec![(":unwell", text(key))])
            }
            BusyChange::Quiet { stamp, since } => (
                ", quietStamp = :stamp, quietSince = :now",
                vec![(":stamp", number(*stamp)), (":now", number(since.get()))],
            ),
        };
        let unchanged = match mark.version {
            0 => "attribute_exists(PK) AND attribute_not_exists(version)",
            _ => "version = :version",
        };
        let mut update = self
            .table
            .update(&keys::busy_mark(&mark.tenant))
            .update_expression(format!("SET version = :next{set}"))
            .condition_expression(unchanged)
            .expression_attribute_values(":next", number(mark.version + 1));
        if mark.version > 0 {
            update = update.expression_attribute_values(":version", number(mark.version));
        }
        for (name, value) in values {
            update = update.expression_attribute_values(name, value);
        }
        conditionally(update).await
    }

    /// Removes a mark, if it is as it was read.
    pub async fn remove(&self, mark: &BusyMark) -> Result<BusyRemoval, StoreError> {
        let delete = self
            .table
            .delete(&keys::busy_mark(&mark.tenant))
            .condition_expression("stamp = :stamp AND version = :version")
            .expression_attribute_values(":stamp", number(mark.stamp))
            .expression_attribute_values(":version", number(mark.version));
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            Ok(_) => Ok(BusyRemoval::Applied),
            Err(error) if error.fault == Fault::ConditionFailed => Ok(BusyRemoval::Superseded),
            Err(error) => Err(error),
        }
    }
}
