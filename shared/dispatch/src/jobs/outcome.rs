//! Writing down how tasks of a job ended, together with the job's counts, each once.

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::Name;
use ledgerline_ledger::control::keys;

use super::record::{JobEnd, Outcome};
use crate::{
    Dispatch, DispatchError,
    conditional::{number, text},
    transaction::{Cancelled, Patience, built, busy, cancelled},
};

/// Outcomes of one transaction.
const AT_ONCE: usize = 40;

/// An end, and whether the job counts the task as active.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) end: JobEnd,
    pub(crate) was_active: bool,
}

impl Dispatch {
    /// Counts ends that are not counted yet. What was counted before stays as it is.
    pub(crate) async fn count_ends(
        &self,
        tenant: &Name,
        job_id: &Name,
        ends: Vec<Counted>,
    ) -> Result<(), DispatchError> {
        for chunk in ends.chunks(AT_ONCE) {
            let mut rest: Vec<&Counted> = chunk.iter().collect();
            let mut patience = Patience::default();
            while !rest.is_empty() {
                match self.count_together(tenant, job_id, &rest).await? {
                    None => break,
                    Some(Cancelled::Refused(positions)) if positions.contains(&rest.len()) => {
                        // The job's record is gone. The ends are noted: if the job is created again, it counts them.
                        tracing::error!(%tenant, %job_id, "tasks of a job ended that is not there");
                        for counted in rest.drain(..) {
                            self.note_end(tenant, job_id, &counted.end).await?;
                        }
                    }
                    Some(Cancelled::Refused(positions)) => {
                        let mut position = 0;
                        rest.retain(|_| {
                            position += 1;
                            !positions.contains(&(position - 1))
                        });
                    }
                    Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
                }
            }
        }
        Ok(())
    }

    async fn count_together(
        &self,
        tenant: &Name,
        job_id: &Name,
        ends: &[&Counted],
    ) -> Result<Option<Cancelled>, DispatchError> {
        let count = |wanted: Outcome| ends.iter().filter(|counted| counted.end.outcome == wanted).count();
        let inactive = ends.iter().filter(|counted| counted.was_active).count();
        let mut transaction = self.control.transaction();
        for counted in ends {
            let end = JobEnd { counted: true, ..counted.end.clone() };
            let put = self
                .control
                .put_for_transaction(&keys::job_end(tenant, job_id, &end.task_id), &end)?
                .condition_expression(
                    "attribute_not_exists(PK) OR counted = :false OR (outcome = :failed AND generation < :generation)",
                )
                .expression_attribute_values(":false", aws_sdk_dynamodb::types::AttributeValue::Bool(false))
                .expression_attribute_values(":failed", text("failed"))
                .expression_attribute_values(":generation", number(end.generation.into()))
                .build()
                .map_err(built)?;
            transaction = transaction.transact_items(TransactWriteItem::builder().put(put).build());
        }
        let job = self
            .control
            .update_for_transaction(&keys::job(tenant, job_id))
            .update_expression(
                "SET done = done + :done, failed = failed + :failed, active = active - :inactive",
            )
            .condition_expression("attribute_exists(PK)")
            .expression_attribute_values(":done", number(count(Outcome::Completed) as u64))
            .expression_attribute_values(":failed", number(count(Outcome::Failed) as u64))
            .expression_attribute_values(":inactive", number(inactive as u64))
            .build()
            .map_err(built)?;
        let transaction =
            transaction.transact_items(TransactWriteItem::builder().update(job).build()).send().await;
        cancelled(transaction)
    }

    /// Notes an end of a task that the job does not know of, so far.
    pub(crate) async fn note_end(
        &self,
        tenant: &Name,
        job_id: &Name,
        end: &JobEnd,
    ) -> Result<(), DispatchError> {
        let end = JobEnd { counted: false, ..end.clone() };
        self.control.put_new(&keys::job_end(tenant, job_id, &end.task_id), &end).await?;
        Ok(())
    }
}
