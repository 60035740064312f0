//! `Job Failure Detected`: once per failed task and generation. What runs goes on.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{
    Event, Name,
    catalogue::{JobCompleted, JobFailureDetected, TaskState},
    dag::task_entity,
};
use ledgerline_ledger::control::keys;

use super::record::{JobEnd, Outcome};
use crate::{
    Dispatch, DispatchError,
    claim::{Effects, Intent},
};

impl Dispatch {
    /// Tells of tasks of a job that have failed, each by the event that says so.
    pub(crate) async fn tell_failures(
        &self,
        job_id: &Name,
        failed: Vec<(&Event, &Name, u32)>,
    ) -> Result<(), DispatchError> {
        // What is told takes reading every task: once for all of them, and not for what was told before.
        let mut statuses = None;
        let first = failed.first().map(|(cause, task_id, _)| (cause.tenant_id.clone(), (*task_id).clone()));
        for (cause, task_id, generation) in failed {
            let tenant = &cause.tenant_id;
            let key = keys::job_failure_claim(tenant, job_id, task_id, generation);
            if self.claim_there(&key).await? {
                self.repeat(&key).await?;
                continue;
            }
            let task_statuses = match &statuses {
                Some(statuses) => BTreeMap::clone(statuses),
                None => statuses.insert(self.task_statuses(tenant, job_id).await?).clone(),
            };
            let (job, failed_task_id) = (job_id.to_string(), task_id.to_string());
            let failure = JobFailureDetected { job_id: job, failed_task_id, task_statuses };
            let emitter = self.emitter.handling(cause).within(|origin| origin.app = cause.app_name.clone());
            let event = emitter.catalogued(job_id.as_str(), failure).build_plain()?;
            let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
            self.carry_out(&[Intent { key, effects, started: None, ttl: cause.ttl }]).await?;
        }
        if let Some((tenant, failed)) = first
            && let Some(job) = self.job_record(&tenant, job_id).await?
            && let Some(run_id) = &job.workflow_run_id
        {
            Box::pin(self.job_ended_for(&tenant, run_id, job_id, Some(&failed))).await?;
        }
        Ok(())
    }

    /// Where every task of a job stands; `None` for one that has not begun.
    pub(crate) async fn task_statuses(
        &self,
        tenant: &Name,
        job_id: &Name,
    ) -> Result<BTreeMap<String, Option<TaskState>>, DispatchError> {
        let tasks = self.task_ids(tenant, job_id).await?;
        let ends: Vec<JobEnd> = self.job_rows(tenant, job_id, keys::ENDS).await?;
        let mut statuses: BTreeMap<String, Option<TaskState>> =
            tasks.iter().map(|task_id| (task_id.to_string(), None)).collect();
        let ended: BTreeSet<&Name> = ends.iter().map(|end| &end.task_id).collect();
        let open = tasks.iter().filter(|task_id| !ended.contains(task_id));
        // A failed task that was resumed is one of these too, but its mark says so until it ends again.
        let requests = open.map(|task_id| task_entity(job_id, task_id)).collect::<Result<Vec<_>, _>>()?;
        for summary in self.summaries(tenant, &requests).await? {
            if let Some((_, task_id)) = ledgerline_event::dag::split_task_entity(&summary.request_id) {
                statuses.insert(task_id.to_owned(), Some(summary.state));
            }
        }
        for end in ends {
            let state = match end.outcome {
                Outcome::Completed => TaskState::Completed,
                Outcome::Failed => TaskState::Failed,
            };
            statuses.insert(end.task_id.to_string(), Some(state));
        }
        Ok(statuses)
    }

    /// What `Job Completed` says.
    pub(super) async fn completed_properties(
        &self,
        tenant: &Name,
        job_id: &Name,
        total: u32,
    ) -> Result<JobCompleted, DispatchError> {
        let tasks = self.task_ids(tenant, job_id).await?;
        let task_statuses =
            tasks.iter().map(|task_id| (task_id.to_string(), Some(TaskState::Completed))).collect();
        Ok(JobCompleted { job_id: job_id.to_string(), total_tasks: total, task_statuses })
    }
}
