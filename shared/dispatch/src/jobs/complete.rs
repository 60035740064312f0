//! The end of a job, and the list that it belongs to meanwhile.

use ledgerline_event::{Event, Name};
use ledgerline_ledger::control::keys;

use super::record::JobRecord;
use crate::{
    Dispatch, DispatchError,
    claim::{Claim, ClaimState, Effects, Intent},
    conditional::{Answer, conditionally, number, text},
};

impl Dispatch {
    /// Completes a job all of whose tasks are completed, or lists it where it belongs now.
    pub(crate) async fn complete_or_list(&self, job_id: &Name, cause: &Event) -> Result<(), DispatchError> {
        let tenant = &cause.tenant_id;
        let key = keys::job(tenant, job_id);
        loop {
            let Some(job) = self.job_record(tenant, job_id).await? else { return Ok(()) };
            if job.completed_at.is_some() {
                // The process that completed it may have died before it sent the event.
                self.repeat(&key).await?;
                if let Some(run_id) = &job.workflow_run_id {
                    Box::pin(self.job_ended_for(tenant, run_id, job_id, None)).await?;
                }
                return Ok(());
            }
            let settled = match job.done == job.total {
                true => self.complete(&job, cause).await?,
                false => self.list(&job, tenant).await?,
            };
            // If a run started the job, the next iteration finds the job completed and wakes the run.
            if settled && (job.done < job.total || job.workflow_run_id.is_none()) {
                return Ok(());
            }
        }
    }

    async fn complete(&self, job: &JobRecord, cause: &Event) -> Result<bool, DispatchError> {
        let (tenant, job_id) = (&cause.tenant_id, &job.job_id);
        let key = keys::job(tenant, job_id);
        if job.claim_state == Some(ClaimState::Pending) {
            self.repeat(&key).await?;
        }
        let emitter = self.emitter.handling(cause).within(|origin| origin.app = job.app_name.clone());
        let properties = self.completed_properties(tenant, job_id, job.total).await?;
        let event = emitter.catalogued(job_id.as_str(), properties).build_plain()?;
        let completed_at = event.timestamp;
        let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
        let intent = Intent { key: key.clone(), effects, started: None, ttl: cause.ttl };
        let claim = self.pending(&intent).await?;
        let update = self
            .control
            .update(&key)
            .update_expression(format!("SET completedAt = :at, listIn = :list, {}", Claim::SET))
            .condition_expression(
                "attribute_not_exists(completedAt) AND done = #total AND #total = :total \
                 AND (attribute_not_exists(#state) OR #state <> :pending)",
            )
            .expression_attribute_names("#state", "state")
            .expression_attribute_names("#total", "total")
            .expression_attribute_values(":total", number(job.total.into()))
            .expression_attribute_values(":at", number(completed_at.get()))
            .expression_attribute_values(":list", text(&keys::jobs_in(tenant, "completed")));
        let values = claim.values().into_iter();
        let update =
            values.fold(update, |update, (name, value)| update.expression_attribute_values(name, value));
        match conditionally::<JobRecord>(update).await? {
            Answer::Done(_) => {
                self.repeat(&key).await?;
                Ok(true)
            }
            // The job has changed since it was read: tasks were added, or another process completed it.
            Answer::Refused(_) => Ok(false),
        }
    }

    /// Puts a job into the list of its state; `false` if the job has changed since it was read.
    async fn list(&self, job: &JobRecord, tenant: &Name) -> Result<bool, DispatchError> {
        let list = job.list(tenant);
        if job.list_in.as_ref() == Some(&list) {
            return Ok(true);
        }
        let update = self
            .control
            .update(&keys::job(tenant, &job.job_id))
            .update_expression("SET listIn = :list")
            .condition_expression(
                "attribute_not_exists(completedAt) AND failed = :failed AND active = :active",
            )
            .expression_attribute_values(":list", text(&list))
            .expression_attribute_values(":failed", number(job.failed.into()))
            .expression_attribute_values(
                ":active",
                aws_sdk_dynamodb::types::AttributeValue::N(job.active.to_string()),
            );
        Ok(matches!(conditionally::<JobRecord>(update).await?, Answer::Done(_)))
    }
}
