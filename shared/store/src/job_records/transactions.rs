//! Changes of a job together with other records: every count changes together with what it counts.

use aws_sdk_dynamodb::types::{
    AttributeValue, Put, TransactWriteItem, Update,
    builders::{PutBuilder, UpdateBuilder},
};
use ledgerline_event::{Name, Seconds};

use super::{JobEnd, JobNode, JobRecord, JobRecords, Mark, TaskOutcome};
use crate::{
    Cancelled, Claim, RetryCause, StoreError, TaskRecord, WithClaim, build_error, cancelled,
    keys::{self, ControlKey},
    number, text,
};

/// What became of the count of ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndsCount {
    /// All are counted.
    Applied,
    /// The job is missing: nothing is counted.
    JobMissing,
    /// Nothing is counted: those at these positions were counted before.
    CountedBefore(Vec<usize>),
    /// Nothing is counted: another writer, or throttling, was in the way.
    Busy(RetryCause),
}

/// The start of a task of a job, to be written.
#[derive(Clone, Debug)]
pub struct TaskStartRow {
    /// The key of the task's record.
    pub key: ControlKey,
    /// The record.
    pub record: TaskRecord,
    /// The claim of what the start sends.
    pub claim: Claim,
    /// Whether the task failed before.
    pub again: bool,
}

/// What became of the claims of some starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartsClaim {
    /// All are made.
    Applied,
    /// The job is missing: none is made.
    JobMissing,
    /// None is made: the tasks at these positions have a record.
    StartedBefore(Vec<usize>),
    /// None is made: another writer, or throttling, was in the way.
    Busy(RetryCause),
}

/// What became of the addition of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAddition {
    /// The job counts the tasks.
    Applied,
    /// An earlier request has added them.
    AddedBefore,
    /// The job is missing, completed, or not as it was read.
    Refused,
    /// Another writer, or throttling, was in the way.
    Busy(RetryCause),
}

/// What became of a change of a job that was read, with a claim beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobWrite {
    /// It is done.
    Applied,
    /// The job is not as it was read, or what is to be put is there.
    Refused,
    /// Another writer, or throttling, was in the way.
    Busy(RetryCause),
}

impl JobRecords {
    /// Counts ends that are not counted yet; with each, whether the job counts the task as active.
    pub async fn count_ends(
        &self,
        tenant: &str,
        job_id: &str,
        ends: &[(&JobEnd, bool)],
    ) -> Result<EndsCount, StoreError> {
        let count = |wanted: TaskOutcome| ends.iter().filter(|(end, _)| end.outcome == wanted).count();
        let inactive = ends.iter().filter(|(_, was_active)| *was_active).count();
        let mut writes = Vec::with_capacity(ends.len() + 1);
        for (end, _) in ends {
            let end = JobEnd { counted: true, ..(*end).clone() };
            let put = self
                .table
                .put_for_transaction(&keys::job_end(tenant, job_id, &end.task_id), &end)?
                .condition_expression(
                    "attribute_not_exists(PK) OR counted = :false OR (outcome = :failed AND generation < :generation)",
                )
                .expression_attribute_values(":false", AttributeValue::Bool(false))
                .expression_attribute_values(":failed", text("failed"))
                .expression_attribute_values(":generation", number(end.generation.into()));
            writes.push(put_of(put)?);
        }
        let job = self
            .table
            .update_for_transaction(&keys::job(tenant, job_id))
            .update_expression(
                "SET done = done + :done, failed = failed + :failed, active = active - :inactive",
            )
            .condition_expression("attribute_exists(PK)")
            .expression_attribute_values(":done", number(count(TaskOutcome::Completed) as u64))
            .expression_attribute_values(":failed", number(count(TaskOutcome::Failed) as u64))
            .expression_attribute_values(":inactive", number(inactive as u64));
        writes.push(update_of(job)?);
        Ok(match self.write(writes).await? {
            None => EndsCount::Applied,
            Some(Cancelled::Refused(positions)) if positions.contains(&ends.len()) => EndsCount::JobMissing,
            Some(Cancelled::Refused(positions)) => EndsCount::CountedBefore(positions),
            Some(Cancelled::Busy(why)) => EndsCount::Busy(why),
        })
    }

    /// Puts the records of tasks that start, each if there is none, and counts the tasks as active.
    pub async fn start_tasks(
        &self,
        tenant: &str,
        job_id: &str,
        starts: &[&TaskStartRow],
    ) -> Result<StartsClaim, StoreError> {
        let again = starts.iter().filter(|start| start.again).count();
        let mut writes = Vec::with_capacity(starts.len() + 1);
        for TaskStartRow { key, record, claim, .. } in starts {
            let put = self
                .table
                .put_for_transaction(key, &WithClaim { record, claim })?
                .condition_expression("attribute_not_exists(PK)");
            writes.push(put_of(put)?);
        }
        let job = self
            .table
            .update_for_transaction(&keys::job(tenant, job_id))
            .update_expression("SET active = active + :started, failed = failed - :again")
            .condition_expression("attribute_exists(PK)")
            .expression_attribute_values(":started", number(starts.len() as u64))
            .expression_attribute_values(":again", number(again as u64));
        writes.push(update_of(job)?);
        Ok(match self.write(writes).await? {
            None => StartsClaim::Applied,
            Some(Cancelled::Refused(positions)) if positions.contains(&starts.len()) => {
                StartsClaim::JobMissing
            }
            Some(Cancelled::Refused(positions)) => StartsClaim::StartedBefore(positions),
            Some(Cancelled::Busy(why)) => StartsClaim::Busy(why),
        })
    }

    /// Whether an event has added tasks to a job.
    pub async fn has_addition(&self, tenant: &str, job_id: &str, event_id: &str) -> Result<bool, StoreError> {
        Ok(self.table.get_row(&keys::job_addition(tenant, job_id, event_id)).await?.is_some())
    }

    /// Raises the total of an open job by the tasks that an event adds, once for an event.
    pub async fn count_addition(
        &self,
        tenant: &str,
        job_id: &str,
        event_id: &str,
        count: usize,
        ttl: Option<Seconds>,
    ) -> Result<TaskAddition, StoreError> {
        let mark = self
            .table
            .put_for_transaction(&keys::job_addition(tenant, job_id, event_id), &Mark { ttl })?
            .condition_expression("attribute_not_exists(PK)");
        let job = self
            .more_tasks(tenant, job_id, count)
            .condition_expression("attribute_exists(PK) AND attribute_not_exists(completedAt)");
        Ok(match self.write(vec![put_of(mark)?, update_of(job)?]).await? {
            None => TaskAddition::Applied,
            Some(Cancelled::Refused(positions)) if positions.contains(&0) => TaskAddition::AddedBefore,
            Some(Cancelled::Refused(_)) => TaskAddition::Refused,
            Some(Cancelled::Busy(why)) => TaskAddition::Busy(why),
        })
    }

    /// Puts nodes that are added to a job, and makes the mark of their event its claim: if the job is open, has as many
    /// tasks as when it was read, and none of these.
    pub async fn add_nodes(
        &self,
        tenant: &str,
        as_read: &JobRecord,
        nodes: &[JobNode],
        event_id: &Name,
        claim: &Claim,
    ) -> Result<JobWrite, StoreError> {
        let job_id = &as_read.job_id;
        let job = self
            .more_tasks(tenant, job_id, nodes.len())
            .condition_expression(
                "attribute_exists(PK) AND attribute_not_exists(completedAt) AND #total = :total",
            )
            .expression_attribute_values(":total", number(as_read.total.into()));
        let mark = self.table.put_for_transaction(&keys::job_addition(tenant, job_id, event_id), claim)?;
        let mut writes = vec![update_of(job)?, put_of(mark)?];
        for node in nodes {
            let put = self
                .table
                .put_for_transaction(&keys::job_node(tenant, job_id, &node.task_id), node)?
                .condition_expression("attribute_not_exists(PK)");
            writes.push(put_of(put)?);
        }
        Ok(match self.write(writes).await? {
            None => JobWrite::Applied,
            Some(Cancelled::Refused(_)) => JobWrite::Refused,
            Some(Cancelled::Busy(why)) => JobWrite::Busy(why),
        })
    }

    /// Opens the next generation of a job with the claim of its resume, if the job is in the generation that was read
    /// and is not completed.
    pub async fn resume(
        &self,
        tenant: &str,
        as_read: &JobRecord,
        claim_key: &ControlKey,
        claim: &Claim,
    ) -> Result<JobWrite, StoreError> {
        let put = self
            .table
            .put_for_transaction(claim_key, claim)?
            .condition_expression("attribute_not_exists(PK)");
        let job = self
            .table
            .update_for_transaction(&keys::job(tenant, &as_read.job_id))
            .update_expression("SET generation = :next")
            .condition_expression("generation = :generation AND attribute_not_exists(completedAt)")
            .expression_attribute_values(":next", number((as_read.generation + 1).into()))
            .expression_attribute_values(":generation", number(as_read.generation.into()));
        Ok(match self.write(vec![put_of(put)?, update_of(job)?]).await? {
            None => JobWrite::Applied,
            Some(Cancelled::Refused(_)) => JobWrite::Refused,
            Some(Cancelled::Busy(why)) => JobWrite::Busy(why),
        })
    }

    fn more_tasks(&self, tenant: &str, job_id: &str, count: usize) -> UpdateBuilder {
        self.table
            .update_for_transaction(&keys::job(tenant, job_id))
            .update_expression("SET #total = #total + :count")
            .expression_attribute_names("#total", "total")
            .expression_attribute_values(":count", number(count as u64))
    }

    async fn write(&self, writes: Vec<TransactWriteItem>) -> Result<Option<Cancelled>, StoreError> {
        cancelled(self.table.transaction().set_transact_items(Some(writes)).send().await)
    }
}

fn put_of(put: PutBuilder) -> Result<TransactWriteItem, StoreError> {
    let put: Put = put.build().map_err(build_error)?;
    Ok(TransactWriteItem::builder().put(put).build())
}

fn update_of(update: UpdateBuilder) -> Result<TransactWriteItem, StoreError> {
    let update: Update = update.build().map_err(build_error)?;
    Ok(TransactWriteItem::builder().update(update).build())
}
