//! `Job Failure Detected`: once per failed task and generation. What runs goes on.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{
    Event, Name, TaskSummary,
    catalogue::{JobCompleted, JobFailureDetected, TaskState},
    dag::{split_task_entity, task_entity},
};
use ledgerline_outbox::{ComponentError, Effects, PendingEffects};
use ledgerline_store::{JobEnd, TaskOutcome, keys};

use super::Ended;
use crate::JobDriver;

impl JobDriver {
    /// Emits that tasks of a job have failed, each because of its terminal event.
    pub async fn emit_failures(
        &self,
        job_id: &Name,
        failed: Vec<(&Event, &Name, u32)>,
    ) -> Result<(), ComponentError> {
        // The event lists every task of the job: they are read once for all failures, and not for those emitted before.
        let mut statuses = None;
        let first = failed.first().map(|(cause, task_id, _)| (cause.tenant_id.clone(), (*task_id).clone()));
        for (cause, task_id, generation) in failed {
            let tenant = &cause.tenant_id;
            let key = keys::job_failure_claim(tenant, job_id, task_id, generation);
            if self.outbox.claim_exists(&key).await? {
                self.outbox.resume(&key).await?;
                continue;
            }
            let task_statuses = match &statuses {
                Some(statuses) => BTreeMap::clone(statuses),
                None => statuses.insert(self.task_statuses(tenant, job_id).await?).clone(),
            };
            let (job, failed_task_id) = (job_id.to_string(), task_id.to_string());
            let failure = JobFailureDetected { job_id: job, failed_task_id, task_statuses };
            let emitter = self.emitter.handling(cause).with_scope(|scope| scope.app = cause.app_name.clone());
            let event = emitter.catalogued(job_id.as_str(), failure).build_plain()?;
            let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
            self.outbox.execute(&PendingEffects { key, effects, started: None, ttl: cause.ttl }).await?;
        }
        if let Some((tenant, failed)) = first
            && let Some(job) = self.records.get(&tenant, job_id).await?
            && let Some(run_id) = &job.workflow_run_id
        {
            let (run_id, job_id) = (run_id.clone(), job_id.clone());
            (self.notify)(Ended::Job { tenant, run_id, job_id, failed_task: Some(failed) }).await?;
        }
        Ok(())
    }

    /// Where every task of a job stands; `None` for one that has not begun.
    pub async fn task_statuses(
        &self,
        tenant: &Name,
        job_id: &Name,
    ) -> Result<BTreeMap<String, Option<TaskState>>, ComponentError> {
        let tasks = self.records.task_ids(tenant, job_id).await?;
        let ends = self.records.all_ends(tenant, job_id).await?;
        let ended: BTreeSet<&Name> = ends.iter().map(|end| &end.task_id).collect();
        let open = tasks.iter().filter(|task_id| !ended.contains(task_id));
        // A failed task that was resumed is one of these too, but its mark says so until it ends again.
        let requests = open.map(|task_id| task_entity(job_id, task_id)).collect::<Result<Vec<_>, _>>()?;
        let summaries = self.tasks.summaries(tenant, &requests).await?;
        Ok(statuses_of(&tasks, &ends, &summaries))
    }

    /// What `Job Completed` says.
    pub async fn completed_properties(
        &self,
        tenant: &Name,
        job_id: &Name,
        total: u32,
    ) -> Result<JobCompleted, ComponentError> {
        let tasks = self.records.task_ids(tenant, job_id).await?;
        let task_statuses =
            tasks.iter().map(|task_id| (task_id.to_string(), Some(TaskState::Completed))).collect();
        Ok(JobCompleted { job_id: job_id.to_string(), total_tasks: total, task_statuses })
    }
}

/// Where each of `tasks` stands: as its end says, or else as its row says.
fn statuses_of(
    tasks: &[Name],
    ends: &[JobEnd],
    summaries: &[TaskSummary],
) -> BTreeMap<String, Option<TaskState>> {
    let mut statuses: BTreeMap<String, Option<TaskState>> =
        tasks.iter().map(|task_id| (task_id.to_string(), None)).collect();
    for summary in summaries {
        if let Some((_, task_id)) = split_task_entity(&summary.request_id) {
            statuses.insert(task_id.to_owned(), Some(summary.state));
        }
    }
    for end in ends {
        let state = match end.outcome {
            TaskOutcome::Completed => TaskState::Completed,
            TaskOutcome::Failed => TaskState::Failed,
        };
        statuses.insert(end.task_id.to_string(), Some(state));
    }
    statuses
}
