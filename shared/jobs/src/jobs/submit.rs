//! Submitting a job, and adding tasks to one: each request is checked, and then becomes a claim that holds its event.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use ledgerline_event::{
    Invalid, Kind, Name,
    catalogue::{JobCreated, JobTask, JobTasksAdded},
    dag::{Node, bare_id, check_added, check_job},
};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::{Claimed, ComponentError, Effects, PendingEffects};
use ledgerline_store::{JobNode, JobWrite, RequestRetry, RetryCause, WithClaim, back_off, keys};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::new_records::new_job;
use crate::Jobs;

/// The most tasks of one addition: a transaction takes a hundred writes.
const ADDED_AT_ONCE: usize = 90;
/// The most bytes of one addition: a transaction takes 4 MB.
const ADDED_BYTES: usize = 3_000_000;
/// The most tasks that a job may have in all.
const TOTAL_MAX: u32 = 10_000;

/// A request to run a job.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(missing_docs)]
pub struct JobSubmission {
    #[serde(default)]
    pub job_id: Option<String>,
    #[serde(default)]
    pub request_id: Option<String>,
    pub tasks: Vec<SubmittedJobTask>,
}

/// One task of a request. Unknown fields are refused, unlike in tasks that are read from the ledger.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a task, as {taskId, name, dependsOn?, input?}"
)]
#[allow(missing_docs)]
pub struct SubmittedJobTask {
    pub task_id: String,
    pub name: String,
    #[serde(default)]
    pub depends_on: Vec<String>,
    #[serde(default)]
    pub input: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub max_attempts: Option<u32>,
}

impl From<SubmittedJobTask> for JobTask {
    fn from(task: SubmittedJobTask) -> Self {
        let SubmittedJobTask { task_id, name, depends_on, input, timeout_ms, max_attempts } = task;
        Self { task_id, name, depends_on, input, timeout_ms, max_attempts }
    }
}

/// A job that was submitted: the answer to its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SubmittedJob {
    pub job_id: Name,
    pub total_tasks: u32,
    /// Whether it was submitted before.
    pub collapsed: bool,
}

/// How many tasks a job had, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct AddedTasks {
    pub previous_total_tasks: u32,
    pub total_tasks_now: u32,
}

impl Jobs {
    /// Submits a job in the context of `emitter`. With the same id and the same content as before it changes nothing.
    pub async fn submit_job(
        &self,
        emitter: &Emitter,
        submission: JobSubmission,
    ) -> Result<SubmittedJob, ComponentError> {
        let job_id = match &submission.job_id {
            None => emitter.new_id(Kind::Job),
            Some(id) => bare_id("jobId", id.as_str())?,
        };
        let request_id = match &submission.request_id {
            None => job_id.to_string(),
            Some(id) => Name::new("requestId", id.as_str())?.to_string(),
        };
        let tasks: Vec<JobTask> = submission.tasks.into_iter().map(JobTask::from).collect();
        check_job(&job_id, tasks.iter().map(Node::from))?;
        let tenant = &emitter.scope().tenant;
        let hash =
            ledgerline_outbox::short_hash(&[&json!({ "requestId": request_id, "tasks": tasks }).to_string()]);
        let total = tasks.len();
        let created = JobCreated {
            job_id: job_id.to_string(),
            request_id: request_id.clone(),
            total_tasks: u32::try_from(total).unwrap_or(u32::MAX),
            tasks,
        };
        let total_tasks = created.total_tasks;
        let event = emitter.catalogued(job_id.as_str(), created).build_plain()?;
        let mut record = new_job(tenant, &job_id, &request_id, &event, total);
        record.content_hash = Some(hash.clone());
        let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
        let key = keys::job(tenant, &job_id);
        let pending = PendingEffects { key: key.clone(), effects, started: Some(job_id.clone()), ttl: None };
        let claim = self.outbox.new_claim(&pending).await?;
        let claimed = self.outbox.put_claim(&key, &WithClaim { record: &record, claim: &claim }).await?;
        let collapsed = match claimed {
            Claimed::New => false,
            // An earlier attempt of this request put the claim, and only the answer was lost.
            Claimed::Before(before) if before.claim_id == claim.claim_id => false,
            Claimed::Before(_) | Claimed::Recorded => {
                let there = self.records.get(tenant, &job_id).await?;
                if there.and_then(|there| there.content_hash).as_ref() != Some(&hash) {
                    let reason =
                        format!("a job `{job_id}` exists and has other tasks; leave jobId out for a new one");
                    return Err(ComponentError::Refused(reason));
                }
                true
            }
        };
        self.outbox.resume(&key).await?;
        Ok(SubmittedJob { job_id, total_tasks, collapsed })
    }

    /// Adds tasks to a job that is not completed.
    pub async fn add_tasks(
        &self,
        emitter: &Emitter,
        job_id: &str,
        tasks: Vec<SubmittedJobTask>,
    ) -> Result<AddedTasks, ComponentError> {
        let tasks: Vec<JobTask> = tasks.into_iter().map(JobTask::from).collect();
        let tenant = emitter.scope().tenant.clone();
        if tasks.len() > ADDED_AT_ONCE {
            let reason = format!(
                "has {} tasks; at most {ADDED_AT_ONCE} are added at once: add the rest after that",
                tasks.len()
            );
            return Err(Invalid::new("tasks", reason).into());
        }
        let mut retries = RequestRetry::default();
        loop {
            let job = self.known_job(&tenant, job_id).await?;
            if job.completed_at.is_some() {
                let reason = format!("the job `{job_id}` is completed; submit a new one");
                return Err(ComponentError::Refused(reason));
            }
            if !job.laid_out {
                // The drainer has not put all of the job's own tasks in place yet.
                back_off(&mut retries, RetryCause::LostRace).await?;
                continue;
            }
            let mentioned: BTreeSet<&str> = tasks
                .iter()
                .flat_map(|task| std::iter::once(&task.task_id).chain(&task.depends_on))
                .map(String::as_str)
                .collect();
            let there = self.records.nodes(&tenant, job_id, mentioned).await?;
            let known = |id: &str| there.iter().any(|node| node.task_id.as_str() == id);
            check_added(job_id, tasks.iter().map(Node::from), known)?;
            let count = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
            let total_tasks_now = job.total.saturating_add(count);
            if total_tasks_now > TOTAL_MAX {
                let reason = format!("would make {total_tasks_now} tasks; a job has at most {TOTAL_MAX}");
                return Err(Invalid::new("tasks", reason).into());
            }
            let added = JobTasksAdded {
                job_id: job_id.to_owned(),
                new_tasks: tasks.clone(),
                previous_total_tasks: job.total,
                total_tasks_now,
            };
            let emitter = emitter.with_scope(|scope| scope.app = job.app_name.clone());
            let event = emitter.catalogued(job_id, added).build_plain()?;
            let new =
                try_join_all(tasks.iter().map(|task| self.inputs.new_node(job_id, task, &event))).await?;
            let (nodes, inputs): (Vec<_>, Vec<_>) = new.into_iter().map(|new| (new.node, new.input)).unzip();
            let size: usize = nodes.iter().map(JobNode::size).sum();
            if size > ADDED_BYTES {
                let reason = format!(
                    "have {size} bytes; at most {ADDED_BYTES} are added at once: add the rest after that"
                );
                return Err(Invalid::new("tasks", reason).into());
            }
            self.inputs.put(inputs.into_iter().flatten()).await?;
            let event_id = event.event_id.clone();
            let key = keys::job_addition(&tenant, job_id, &event_id);
            let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
            let claim = self
                .outbox
                .new_claim(&PendingEffects { key: key.clone(), effects, started: None, ttl: job.ttl })
                .await?;
            match self.records.add_nodes(&tenant, &job, &nodes, &event_id, &claim).await? {
                JobWrite::Applied => {
                    self.outbox.resume(&key).await?;
                    return Ok(AddedTasks { previous_total_tasks: job.total, total_tasks_now });
                }
                // The transaction was applied, and only the answer was lost.
                JobWrite::Refused if self.outbox.is_claimed_by(&key, &claim).await? => {
                    self.outbox.resume(&key).await?;
                    return Ok(AddedTasks { previous_total_tasks: job.total, total_tasks_now });
                }
                // The job may have changed since it was read: the next iteration checks again.
                JobWrite::Busy(why) => back_off(&mut retries, why).await?,
                JobWrite::Refused => back_off(&mut retries, RetryCause::LostRace).await?,
            }
        }
    }
}
