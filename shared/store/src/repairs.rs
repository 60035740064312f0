//! Repairs of what is derived, each on condition that the record is as it was when it was compared.

use ledgerline_event::{Millis, Name};
use serde::Deserialize;

use crate::keys::{self, ControlKey};
use crate::{Conditional, ControlTable, Fault, StoreError, conditionally, number, text};

/// What became of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The record is right now.
    Done,
    /// Another process has changed the record since it was read.
    ChangedMeanwhile,
}

/// A job as it was compared, and where it belongs.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct JobListing<'a> {
    pub job: &'a ControlKey,
    pub is_completed: bool,
    pub failed: u32,
    pub active: i64,
    /// The list that it belongs in.
    pub list: &'a str,
    /// Its place in that list.
    pub place: &'a str,
}

/// A run's record as it was compared, and what it should say.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RunRepair<'a> {
    pub run: &'a ControlKey,
    /// The state that the record had.
    pub state_before: &'a str,
    /// How often the run had been woken.
    pub wakes: u64,
    pub state: &'a str,
    /// The list that it belongs in.
    pub list: &'a str,
    pub started_at: Option<Millis>,
    pub ended_at: Option<Millis>,
    pub workflow_version: Option<&'a str>,
}

/// Repairs derived records.
#[derive(Clone, Debug)]
pub struct Repairs {
    table: ControlTable,
}

/// What is read back of a repaired record: nothing.
#[derive(Deserialize)]
struct Repaired {}

impl Repairs {
    /// Repairs records of this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// Deletes the summary of a task.
    pub async fn delete_summary(
        &self,
        tenant: &Name,
        request_id: &Name,
        version: u64,
    ) -> Result<Repair, StoreError> {
        let delete = self
            .table
            .delete(&keys::task_summary(tenant, request_id))
            .condition_expression("version = :version")
            .expression_attribute_values(":version", number(version));
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            Ok(_) => Ok(Repair::Done),
            Err(error) if error.fault == Fault::ConditionFailed => Ok(Repair::ChangedMeanwhile),
            Err(error) => Err(error),
        }
    }

    /// Puts a job into the list that it belongs in.
    pub async fn relist_job(&self, listing: JobListing<'_>) -> Result<Repair, StoreError> {
        let completed = match listing.is_completed {
            false => "attribute_not_exists(completedAt)",
            true => "attribute_exists(completedAt)",
        };
        let update = self
            .table
            .update(listing.job)
            .update_expression("SET listIn = :list, listAt = :place")
            .condition_expression(format!("{completed} AND failed = :failed AND active = :active"))
            .expression_attribute_values(":list", text(listing.list))
            .expression_attribute_values(":place", text(listing.place))
            .expression_attribute_values(":failed", number(listing.failed.into()))
            .expression_attribute_values(
                ":active",
                aws_sdk_dynamodb::types::AttributeValue::N(listing.active.to_string()),
            );
        Ok(repair_of(&conditionally::<Repaired>(update).await?))
    }

    /// Makes a run's record say what its log says.
    pub async fn correct_run(&self, repair: RunRepair<'_>) -> Result<Repair, StoreError> {
        let mut set = "SET #state = :state, listIn = :list".to_owned();
        let mut update = self
            .table
            .update(repair.run)
            .condition_expression("#state = :before AND wakes = :wakes")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":before", text(repair.state_before))
            .expression_attribute_values(":wakes", number(repair.wakes))
            .expression_attribute_values(":state", text(repair.state))
            .expression_attribute_values(":list", text(repair.list));
        for (field, at) in [("startedAt", repair.started_at), ("endedAt", repair.ended_at)] {
            if let Some(at) = at {
                set.push_str(&format!(", {field} = :{field}"));
                update = update.expression_attribute_values(format!(":{field}"), number(at.get()));
            }
        }
        if let Some(version) = repair.workflow_version {
            set.push_str(", workflowVersion = :version");
            update = update.expression_attribute_values(":version", text(version));
        }
        Ok(repair_of(&conditionally::<Repaired>(update.update_expression(set)).await?))
    }
}

fn repair_of(answer: &Conditional<Repaired>) -> Repair {
    match answer {
        Conditional::Done(_) => Repair::Done,
        Conditional::Refused(_) => Repair::ChangedMeanwhile,
    }
}
