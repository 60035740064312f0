//! Jobs as people see them.

use std::collections::HashMap;

use ledgerline_event::{JobState, Millis, Name, TaskSummary, catalogue::TaskState, dag::task_entity};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{JobRecord, ListCursor, keys};
use serde::{Serialize, Serializer};

use crate::Jobs;

/// Some jobs of a list.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct JobPage {
    pub items: Vec<JobView>,
    pub cursor: Option<String>,
}

/// A job as lists show it.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct JobView {
    pub state: JobState,
    pub job: JobRecord,
}

/// The part of a job's record that the API shows.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobFields<'a> {
    job_id: &'a Name,
    state: JobState,
    request_id: &'a str,
    app_name: &'a Name,
    total_tasks: u32,
    completed_tasks: u32,
    failed_tasks: u32,
    active_tasks: u64,
    generation: u32,
    created_at: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<Millis>,
}

impl Serialize for JobView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let job = &self.job;
        let fields = JobFields {
            job_id: &job.job_id,
            state: self.state,
            request_id: &job.request_id,
            app_name: &job.app_name,
            total_tasks: job.total,
            completed_tasks: job.done,
            failed_tasks: job.failed,
            active_tasks: u64::try_from(job.active).unwrap_or(0),
            generation: job.generation,
            created_at: job.created_at,
            completed_at: job.completed_at,
        };
        fields.serialize(serializer)
    }
}

/// A job with all of its tasks.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct JobDetails {
    #[serde(flatten)]
    pub job: JobView,
    pub tasks: Vec<JobTaskDetails>,
}

/// One task of a job, and how it fares if it has begun.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct JobTaskDetails {
    pub task_id: Name,
    pub name: String,
    pub depends_on: Vec<String>,
    /// `None` while it has not begun.
    pub state: Option<TaskState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<TaskSummary>,
}

impl From<JobRecord> for JobView {
    fn from(job: JobRecord) -> Self {
        Self { state: job.state(), job }
    }
}

impl Jobs {
    /// The record of a job; an error if there is none.
    pub(super) async fn known_job(&self, tenant: &Name, job_id: &str) -> Result<JobRecord, ComponentError> {
        self.records.get(tenant, job_id).await?.ok_or_else(|| ComponentError::Unknown {
            what: "jobs",
            id: job_id.to_owned(),
            hint: String::new(),
        })
    }

    /// Jobs of one state, the newest first; or of all, by state: failing, failed, running, completed.
    pub async fn jobs(
        &self,
        tenant: &Name,
        state: Option<JobState>,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<JobPage, ComponentError> {
        let states = [JobState::Failing, JobState::Failed, JobState::Running, JobState::Completed];
        let lists: Vec<String> = states
            .iter()
            .filter(|one| state.is_none_or(|wanted| wanted == **one))
            .map(|state| keys::jobs_in(tenant, state.as_str()))
            .collect();
        let cursor = ListCursor::decode(cursor)?;
        let (items, next) = self.records.list(tenant, &lists, limit, cursor).await?;
        Ok(JobPage { items: items.into_iter().map(JobView::from).collect(), cursor: next })
    }

    /// A job with all of its tasks, in the order of their ids.
    pub async fn job(&self, tenant: &Name, job_id: &str) -> Result<JobDetails, ComponentError> {
        let job = self.known_job(tenant, job_id).await?;
        let nodes = self.records.all_nodes(tenant, job_id).await?;
        let ids =
            nodes.iter().map(|node| task_entity(job_id, &node.task_id)).collect::<Result<Vec<_>, _>>()?;
        let summaries = self.tasks.summaries(tenant, &ids).await?;
        let mut summaries: HashMap<Name, TaskSummary> =
            summaries.into_iter().map(|summary| (summary.request_id.clone(), summary)).collect();
        let tasks = nodes.into_iter().zip(ids).map(|(node, id)| {
            let summary = summaries.remove(&id);
            JobTaskDetails {
                task_id: node.task_id,
                name: node.name,
                depends_on: node.depends_on,
                state: summary.as_ref().map(|summary| summary.state),
                summary,
            }
        });
        Ok(JobDetails { job: job.into(), tasks: tasks.collect() })
    }
}
