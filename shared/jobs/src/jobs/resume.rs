//! Resuming a job: what failed runs again, in its next generation, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Event, Invalid, Name, catalogue::JobResumed};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::{ComponentError, Effects, PendingEffects};
use ledgerline_store::{
    JobEnd, JobNode, JobRecord, JobRecords, JobWrite, RequestRetry, RetryCause, TaskOutcome, back_off, keys,
};
use serde::Deserialize;

use super::{create::same_job, dependencies::completed_of, start::Ready};
use crate::{JobDriver, Jobs};

impl Jobs {
    /// Resumes a job in the context of `emitter`. Returns the tasks that run again.
    pub async fn resume_job(&self, emitter: &Emitter, job_id: &str) -> Result<Vec<Name>, ComponentError> {
        let tenant = emitter.scope().tenant.clone();
        let mut retries = RequestRetry::default();
        loop {
            let job = self.known_job(&tenant, job_id).await?;
            if job.completed_at.is_some() {
                return Err(ComponentError::Refused(format!(
                    "the job `{job_id}` is completed: nothing failed in it"
                )));
            }
            let ends = self.records.all_ends(&tenant, job_id).await?;
            let failed: Vec<JobEnd> =
                ends.into_iter().filter(|end| end.outcome == TaskOutcome::Failed && end.counted).collect();
            let ids = failed.iter().map(|end| end.task_id.as_str());
            let may_start = startable(&self.records, &tenant, &job.job_id, ids).await?;
            let may_start: BTreeSet<&Name> = may_start.iter().map(|node| &node.task_id).collect();
            let mut candidates = Vec::new();
            for end in failed.iter().filter(|end| may_start.contains(&end.task_id)) {
                let next = keys::task_record(
                    &tenant,
                    &format!("{job_id}:{}", end.task_id),
                    end.generation.saturating_add(1),
                );
                candidates.push((end, self.tasks.records.exists(&next).await?));
            }
            let tasks = to_resume(&job, &failed, &candidates).map_err(ComponentError::Refused)?;
            let resumed = failed.iter().filter(|end| tasks.contains_key(end.task_id.as_str()));
            let resumed: Vec<Name> = resumed.map(|end| end.task_id.clone()).collect();
            let generation = job.generation + 1;
            let properties = JobResumed { job_id: job_id.to_owned(), generation, tasks };
            let emitter = emitter.with_scope(|scope| scope.app = job.app_name.clone());
            let event = emitter.catalogued(job_id, properties).build_plain()?;
            let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
            let key = keys::job_resume_claim(&tenant, job_id, generation);
            let pending = PendingEffects { key: key.clone(), effects, started: None, ttl: job.ttl };
            let claim = self.outbox.new_claim(&pending).await?;
            match self.records.resume(&tenant, &job, &key, &claim).await? {
                JobWrite::Applied => {
                    self.outbox.resume(&key).await?;
                    return Ok(resumed);
                }
                // It was done, and only the answer was lost.
                JobWrite::Refused if self.outbox.is_claimed_by(&key, &claim).await? => {
                    self.outbox.resume(&key).await?;
                    return Ok(resumed);
                }
                // The job may have changed since it was read: the next iteration looks up again what is left
                // to resume.
                JobWrite::Busy(why) => back_off(&mut retries, why).await?,
                JobWrite::Refused => back_off(&mut retries, RetryCause::LostRace).await?,
            }
        }
    }
}

/// The tasks that a resume runs again, each with its next generation; or why there are none. `candidates` are those of the
/// `failed` tasks whose parents are completed; one that is running again has a record of the next generation.
fn to_resume(
    job: &JobRecord,
    failed: &[JobEnd],
    candidates: &[(&JobEnd, bool)],
) -> Result<BTreeMap<String, u32>, String> {
    let job_id = &job.job_id;
    let stopped = candidates.iter().filter(|(_, is_running_again)| !is_running_again);
    let tasks: BTreeMap<String, u32> =
        stopped.map(|(end, _)| (end.task_id.to_string(), end.generation.saturating_add(1))).collect();
    match (failed.is_empty(), candidates.is_empty(), tasks.is_empty()) {
        (_, _, false) => Ok(tasks),
        (false, true, true) => Err(format!(
            "what has failed in the job `{job_id}` depends on tasks that are not completed: resume it after them"
        )),
        (false, false, true) => {
            Err(format!("the failed tasks of the job `{job_id}` have been started again"))
        }
        (true, _, true) => {
            Err(format!("no task of the job `{job_id}` has failed: it is {}", job.state().as_str()))
        }
    }
}

/// Those of some tasks whose parents are completed. Another system may have ended a task that still waits for its
/// parents: it starts after them.
async fn startable<'t>(
    records: &JobRecords,
    tenant: &Name,
    job_id: &Name,
    tasks: impl Iterator<Item = &'t str>,
) -> Result<Vec<JobNode>, ComponentError> {
    let mut nodes = records.nodes(tenant, job_id, tasks).await?;
    let parents: BTreeSet<&str> =
        nodes.iter().flat_map(|node| node.depends_on.iter().map(String::as_str)).collect();
    let completed = completed_of(records.ends(tenant, job_id, parents).await?);
    nodes.retain(|node| node.depends_on.iter().all(|parent| completed.contains(parent)));
    Ok(nodes)
}

impl JobDriver {
    /// Starts the tasks that a resume lists, each once.
    pub async fn job_resumed(&self, event: &Event) -> Result<(), ComponentError> {
        let resumed = JobResumed::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &resumed.job_id)?;
        let tenant = &event.tenant_id;
        let ids = || resumed.tasks.keys().map(String::as_str);
        let ends = self.records.ends(tenant, &job_id, ids()).await?;
        let nodes = startable(&self.records, tenant, &job_id, ids()).await?;
        let ready = nodes.into_iter().filter_map(|node| {
            let generation = *resumed.tasks.get(node.task_id.as_str())?;
            let failed = ends.iter().find(|end| end.task_id == node.task_id)?;
            let is_next = failed.outcome == TaskOutcome::Failed
                && failed.counted
                && failed.generation.checked_add(1) == Some(generation);
            is_next.then_some(Ready { node, generation })
        });
        Box::pin(self.start_tasks(&job_id, ready.collect(), event)).await?;
        Box::pin(self.complete_or_list(&job_id, event)).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resume_runs_what_failed_and_is_not_running_again() {
        let job: JobRecord = serde_json::from_value(json!({
            "jobId": "job-1", "requestId": "job-1", "appName": "app", "createdAt": 1_767_453_739_000_u64,
            "total": 3, "done": 0, "failed": 2, "active": 0, "generation": 1, "createdBy": "evnt_1",
        }))
        .unwrap();
        let end = |task: &str, generation: u32| -> JobEnd {
            let end = json!({
                "taskId": task, "outcome": "failed", "generation": generation, "eventSk": "x", "counted": true,
            });
            serde_json::from_value(end).unwrap()
        };
        let (one, two) = (end("a", 1), end("b", 2));
        let failed = [one.clone(), two.clone()];
        let tasks = to_resume(&job, &failed, &[(&one, true), (&two, false)]).unwrap();
        assert_eq!(tasks, BTreeMap::from([("b".to_owned(), 3)]));
        let why = |failed: &[JobEnd], candidates: &[(&JobEnd, bool)]| {
            to_resume(&job, failed, candidates).unwrap_err()
        };
        assert!(why(&failed, &[(&one, true)]).contains("started again"));
        assert!(why(&failed, &[]).contains("not completed"));
        assert!(why(&[], &[]).contains("no task of the job `job-1` has failed: it is failed"));
    }
}
