//! The end of a job, and the list that it belongs to meanwhile.

use ledgerline_event::{Event, Name};
use ledgerline_outbox::{ComponentError, Effects, PendingEffects};
use ledgerline_store::{ClaimState, JobRecord, JobUpdate, keys};

use super::Ended;
use crate::JobDriver;

/// What follows from a job's record.
#[derive(Debug, PartialEq, Eq)]
enum JobStep {
    /// It is completed.
    Completed,
    /// All of its tasks are completed: the job completes.
    Complete,
    /// It is not in the list of its state: put it into this one.
    PutInList(String),
    /// It is in the list of its state.
    Listed,
}

/// What follows from the record of a job of this tenant.
fn job_step(job: &JobRecord, tenant: &Name) -> JobStep {
    if job.completed_at.is_some() {
        return JobStep::Completed;
    }
    if job.done == job.total {
        return JobStep::Complete;
    }
    let list = job.list(tenant);
    if job.list_in.as_ref() == Some(&list) { JobStep::Listed } else { JobStep::PutInList(list) }
}

impl JobDriver {
    /// Completes a job all of whose tasks are completed, or lists it where it belongs now.
    pub async fn complete_or_list(&self, job_id: &Name, cause: &Event) -> Result<(), ComponentError> {
        let tenant = &cause.tenant_id;
        loop {
            let Some(job) = self.records.get(tenant, job_id).await? else { return Ok(()) };
            match job_step(&job, tenant) {
                JobStep::Completed => {
                    // The process that completed it may have died before it sent the event.
                    self.outbox.resume(&keys::job(tenant, job_id)).await?;
                    if let Some(run_id) = &job.workflow_run_id {
                        let (tenant, run_id, job_id) = (tenant.clone(), run_id.clone(), job_id.clone());
                        (self.notify)(Ended::Job { tenant, run_id, job_id, failed_task: None }).await?;
                    }
                    return Ok(());
                }
                JobStep::Complete => match self.complete(&job, cause).await? {
                    // If a run started the job, the next iteration finds the job completed and wakes the run.
                    JobUpdate::Applied if job.workflow_run_id.is_none() => return Ok(()),
                    JobUpdate::Applied | JobUpdate::Superseded => {}
                },
                JobStep::PutInList(list) => match self.records.put_in_list(tenant, &job, &list).await? {
                    JobUpdate::Applied => return Ok(()),
                    JobUpdate::Superseded => {}
                },
                JobStep::Listed => return Ok(()),
            }
        }
    }

    /// Completes a job; superseded if tasks were added since it was read, or another process completed it.
    async fn complete(&self, job: &JobRecord, cause: &Event) -> Result<JobUpdate, ComponentError> {
        let (tenant, job_id) = (&cause.tenant_id, &job.job_id);
        let key = keys::job(tenant, job_id);
        if job.claim_state == Some(ClaimState::Pending) {
            self.outbox.resume(&key).await?;
        }
        let emitter = self.emitter.handling(cause).with_scope(|scope| scope.app = job.app_name.clone());
        let properties = self.completed_properties(tenant, job_id, job.total).await?;
        let event = emitter.catalogued(job_id.as_str(), properties).build_plain()?;
        let completed_at = event.timestamp;
        let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
        let pending = PendingEffects { key: key.clone(), effects, started: None, ttl: cause.ttl };
        let claim = self.outbox.new_claim(&pending).await?;
        let completed = self.records.complete(tenant, job, completed_at, &claim).await?;
        if completed == JobUpdate::Applied {
            self.outbox.resume(&key).await?;
        }
        Ok(completed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(done: u32, failed: u32, active: i64) -> JobRecord {
        let job = json!({
            "jobId": "job-1", "requestId": "job-1", "appName": "app", "createdAt": 1_767_453_739_000_u64,
            "total": 3, "done": done, "failed": failed, "active": active, "generation": 1, "createdBy": "evnt_1",
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_job_completes_when_all_of_its_tasks_are_completed_and_once() {
        let tenant = Name::stored("tenantId", "t").unwrap();
        assert_eq!(job_step(&job(3, 0, 0), &tenant), JobStep::Complete);
        let completed = JobRecord { completed_at: Some(job(3, 0, 0).created_at), ..job(3, 0, 0) };
        assert_eq!(job_step(&completed, &tenant), JobStep::Completed);
    }

    #[test]
    fn a_job_moves_to_the_list_of_its_state_and_stays_there() {
        let tenant = Name::stored("tenantId", "t").unwrap();
        for (failed, active, state) in [(0, 1, "running"), (1, 1, "failing"), (1, 0, "failed")] {
            let (open, list) = (job(1, failed, active), keys::jobs_in(&tenant, state));
            assert_eq!(job_step(&open, &tenant), JobStep::PutInList(list.clone()));
            let listed = JobRecord { list_in: Some(list), ..open };
            assert_eq!(job_step(&listed, &tenant), JobStep::Listed);
        }
    }
}
