//! What is stored of a job: the job with its counts, its nodes, the outcomes of its tasks, and who waits for whom.

use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;
use ledgerline_event::{Event, Invalid, JobState, Millis, Name, Seconds, catalogue::JobTask, job_state};
use ledgerline_ledger::{
    StoreError,
    control::{Item, item, keys, read},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Dispatch, DispatchError, claim::ClaimState};

/// A job's records outlive its events by this: a job that waits for a worker or an operator must not lose its tasks.
const KEPT_LONGER_SECONDS: u64 = 365 * 24 * 60 * 60;

/// The expiry of a job's records that are written because of an event with this expiry.
pub(crate) fn kept_until(ttl: Option<Seconds>) -> Option<Seconds> {
    ttl.map(|ttl| ttl.plus(KEPT_LONGER_SECONDS))
}

/// A job with its counts. Every count changes together with what it counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct JobRecord {
    pub job_id: Name,
    pub request_id: String,
    pub app_name: Name,
    pub created_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Millis>,
    /// All tasks.
    pub total: u32,
    /// Those that are completed.
    pub done: u32,
    /// Those that have failed and were not resumed.
    pub failed: u32,
    /// Those that were started and have not ended.
    pub active: i64,
    /// How often it was resumed, and one.
    pub generation: u32,
    /// The `Job Created` event.
    pub created_by: Name,
    /// Whether all of its tasks are in place.
    #[serde(default)]
    pub(crate) laid_out: bool,
    /// The run that started it, and may wait for its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workflow_run_id: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list_in: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list_at: Option<String>,
    #[serde(default, rename = "state", skip_serializing)]
    pub(crate) claim_state: Option<ClaimState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Seconds>,
}

impl JobRecord {
    /// Where it stands.
    pub fn state(&self) -> JobState {
        let active = u64::try_from(self.active).unwrap_or(0);
        job_state(self.completed_at.is_some(), self.failed.into(), active)
    }

    /// The job that an event makes.
    pub(crate) fn new(tenant: &Name, job_id: &Name, request_id: &str, event: &Event, total: usize) -> Self {
        let mut record = Self {
            job_id: job_id.clone(),
            request_id: request_id.to_owned(),
            app_name: event.app_name.clone(),
            created_at: event.timestamp,
            completed_at: None,
            total: u32::try_from(total).unwrap_or(u32::MAX),
            done: 0,
            failed: 0,
            active: 0,
            generation: 1,
            created_by: event.event_id.clone(),
            laid_out: false,
            workflow_run_id: event
                .workflow_run_id
                .as_deref()
                .and_then(|id| Name::new("workflowRunId", id).ok()),
            content_hash: None,
            list_in: None,
            list_at: None,
            claim_state: None,
            ttl: kept_until(event.ttl),
        };
        record.list_in = Some(record.list(tenant));
        record.list_at = Some(format!("{}#{job_id}", record.created_at));
        record
    }

    /// The list that it belongs to.
    pub(crate) fn list(&self, tenant: &str) -> String {
        keys::jobs_in(tenant, self.state().as_str())
    }
}

/// One task of a job. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobNode {
    pub(crate) task_id: Name,
    pub(crate) name: String,
    pub(crate) depends_on: Vec<String>,
    /// What it is given, if that is small. Earlier versions kept up to 30 KB here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<String>,
    /// Where that lies otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) input_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_attempts: Option<u32>,
    /// The event that it came with.
    pub(crate) added_by: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Seconds>,
}

/// How a task of a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobEnd {
    pub(crate) task_id: Name,
    pub(crate) outcome: Outcome,
    pub(crate) generation: u32,
    /// The place of the terminal event.
    pub(crate) event_sk: String,
    /// Whether the job's counts know of it: not while the job, or the task in it, is unknown.
    pub(crate) counted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Seconds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Completed,
    Failed,
}

impl JobNode {
    /// The node of a task, its input left out.
    pub(super) fn new(task: &JobTask, event: &Event) -> Result<Self, Invalid> {
        Ok(Self {
            task_id: Name::new("taskId", task.task_id.as_str())?,
            name: task.name.clone(),
            depends_on: task.depends_on.clone(),
            input: None,
            input_key: None,
            timeout_ms: task.timeout_ms,
            max_attempts: task.max_attempts,
            added_by: event.event_id.clone(),
            ttl: kept_until(event.ttl),
        })
    }

    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        let parents: usize = self.depends_on.iter().map(String::len).sum();
        self.name.len() + parents + self.input.as_ref().map_or(0, String::len) + 300
    }

    pub(crate) fn row(&self, tenant: &str, job_id: &str) -> Result<Item, StoreError> {
        item(&keys::job_node(tenant, job_id, &self.task_id), self)
    }
}

impl Dispatch {
    /// The job, strongly consistent.
    pub(crate) async fn job_record(
        &self,
        tenant: &str,
        job_id: &str,
    ) -> Result<Option<JobRecord>, DispatchError> {
        Ok(self.control.get(&keys::job(tenant, job_id)).await?)
    }

    /// The nodes of some tasks, as far as they are there.
    pub(crate) async fn nodes(
        &self,
        tenant: &str,
        job_id: &str,
        tasks: impl IntoIterator<Item = &str>,
    ) -> Result<Vec<JobNode>, DispatchError> {
        let keys: Vec<_> = tasks.into_iter().map(|task| keys::job_node(tenant, job_id, task)).collect();
        Ok(self.control.get_all(&keys).await?.into_iter().map(read).collect::<Result<_, _>>()?)
    }

    /// The outcomes of some tasks, as far as there are any.
    pub(crate) async fn ends(
        &self,
        tenant: &str,
        job_id: &str,
        tasks: impl IntoIterator<Item = &str>,
    ) -> Result<Vec<JobEnd>, DispatchError> {
        let keys: Vec<_> = tasks.into_iter().map(|task| keys::job_end(tenant, job_id, task)).collect();
        Ok(self.control.get_all(&keys).await?.into_iter().map(read).collect::<Result<_, _>>()?)
    }

    /// The ids of a job's tasks, and nothing else of their nodes: those of earlier versions hold their inputs.
    pub(super) async fn task_ids(&self, tenant: &str, job_id: &str) -> Result<Vec<Name>, DispatchError> {
        let nodes = self.beginning_with(tenant, job_id, keys::NODES).projection_expression("taskId");
        Ok(all_rows::<TaskId>(nodes).await?.into_iter().map(|node| node.task_id).collect())
    }

    /// Every record of a job that begins like this.
    pub(crate) async fn job_rows<T: DeserializeOwned>(
        &self,
        tenant: &str,
        job_id: &str,
        beginning: &str,
    ) -> Result<Vec<T>, DispatchError> {
        all_rows(self.beginning_with(tenant, job_id, beginning)).await
    }

    fn beginning_with(&self, tenant: &str, job_id: &str, beginning: &str) -> QueryFluentBuilder {
        self.control
            .partition(&keys::job_partition(tenant, job_id))
            .key_condition_expression("PK = :pk AND begins_with(SK, :beginning)")
            .expression_attribute_values(":beginning", crate::conditional::text(beginning))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskId {
    task_id: Name,
}

async fn all_rows<T: DeserializeOwned>(query: QueryFluentBuilder) -> Result<Vec<T>, DispatchError> {
    let mut pages = query.into_paginator().send();
    let mut rows = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| StoreError::new("Query", error))?;
        for found in page.items.unwrap_or_default() {
            rows.push(read(found)?);
        }
    }
    Ok(rows)
}
