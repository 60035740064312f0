//! Changes of a job's own record.

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::{Millis, Seconds};

use super::{JobRecord, JobRecords};
use crate::{Claim, Conditional, StoreError, conditionally, keys, number, text, with_claim::with_claim};

/// What became of a change of a job that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobUpdate {
    /// The job is changed.
    Applied,
    /// The job has changed since it was read, or is missing.
    Superseded,
}

impl JobUpdate {
    fn of(answer: &Conditional<JobRecord>) -> Self {
        match answer {
            Conditional::Done(_) => Self::Applied,
            Conditional::Refused(_) => Self::Superseded,
        }
    }
}

impl JobRecords {
    /// Notes that all tasks of a job are in place, with the expiry of its event if that has one.
    pub async fn set_laid_out(
        &self,
        tenant: &str,
        job_id: &str,
        ttl: Option<Seconds>,
    ) -> Result<JobUpdate, StoreError> {
        let update = self
            .table
            .update(&keys::job(tenant, job_id))
            .condition_expression("attribute_exists(PK)")
            .expression_attribute_values(":true", AttributeValue::Bool(true));
        // The submitter does not know how long events are kept: only the saved event has the expiry.
        let update = match ttl {
            None => update.update_expression("SET laidOut = :true"),
            Some(ttl) => update
                .update_expression("SET laidOut = :true, #ttl = :ttl")
                .expression_attribute_names("#ttl", "ttl")
                .expression_attribute_values(":ttl", number(ttl.get())),
        };
        Ok(JobUpdate::of(&conditionally(update).await?))
    }

    /// Completes a job all of whose tasks are completed, and makes its record the claim of the event that says so: if it
    /// has as many tasks as when it was read, and nothing unsent in it.
    pub async fn complete(
        &self,
        tenant: &str,
        as_read: &JobRecord,
        completed_at: Millis,
        claim: &Claim,
    ) -> Result<JobUpdate, StoreError> {
        let update = self
            .table
            .update(&keys::job(tenant, &as_read.job_id))
            .update_expression(format!("SET completedAt = :at, listIn = :list, {}", Claim::SET))
            .condition_expression(
                "attribute_not_exists(completedAt) AND done = #total AND #total = :total \
                 AND (attribute_not_exists(#state) OR #state <> :pending)",
            )
            .expression_attribute_names("#state", "state")
            .expression_attribute_names("#total", "total")
            .expression_attribute_values(":total", number(as_read.total.into()))
            .expression_attribute_values(":at", number(completed_at.get()))
            .expression_attribute_values(":list", text(&keys::jobs_in(tenant, "completed")));
        Ok(JobUpdate::of(&conditionally(with_claim(update, claim)).await?))
    }

    /// Puts a job into a list, if the counts that decide on the list are as they were read.
    pub async fn put_in_list(
        &self,
        tenant: &str,
        as_read: &JobRecord,
        list: &str,
    ) -> Result<JobUpdate, StoreError> {
        let update = self
            .table
            .update(&keys::job(tenant, &as_read.job_id))
            .update_expression("SET listIn = :list")
            .condition_expression(
                "attribute_not_exists(completedAt) AND failed = :failed AND active = :active",
            )
            .expression_attribute_values(":list", text(list))
            .expression_attribute_values(":failed", number(as_read.failed.into()))
            .expression_attribute_values(":active", AttributeValue::N(as_read.active.to_string()));
        Ok(JobUpdate::of(&conditionally(update).await?))
    }
}
