//! What is stored of a job: the job with its counts, its nodes, the outcomes of its tasks, and who waits for whom.

use ledgerline_event::{JobState, Millis, Name, Seconds, job_state};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;

use crate::{
    ClaimState, ControlTable, Item, ListCursor, StoreError, item,
    keys::{self, ControlKey},
    read, text,
};

mod changes;
mod transactions;

pub use changes::JobUpdate;
pub use transactions::{EndsCount, JobWrite, StartsClaim, TaskAddition, TaskStartRow};

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
    pub laid_out: bool,
    /// The run that started it, and may wait for its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_run_id: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_in: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_at: Option<String>,
    #[serde(default, rename = "state", skip_serializing)]
    pub claim_state: Option<ClaimState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

impl JobRecord {
    /// Where it stands.
    pub fn state(&self) -> JobState {
        let active = u64::try_from(self.active).unwrap_or(0);
        job_state(self.completed_at, self.failed.into(), active)
    }

    /// The list that it belongs to.
    pub fn list(&self, tenant: &str) -> String {
        keys::jobs_in(tenant, self.state().as_str())
    }
}

/// One task of a job. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct JobNode {
    pub task_id: Name,
    pub name: String,
    pub depends_on: Vec<String>,
    /// What it is given, if that is small. Earlier versions kept up to 30 KB here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Where that lies otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The event that it came with.
    pub added_by: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// How a task of a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct JobEnd {
    pub task_id: Name,
    pub outcome: TaskOutcome,
    pub generation: u32,
    /// The place of the terminal event.
    pub event_sk: String,
    /// Whether the job's counts know of it: not while the job, or the task in it, is unknown.
    pub counted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// How a task of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum TaskOutcome {
    Completed,
    Failed,
}

impl JobNode {
    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        let parents: usize = self.depends_on.iter().map(String::len).sum();
        self.name.len() + parents + self.input.as_ref().map_or(0, String::len) + 300
    }
}

/// The input of one task, in a row of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct JobInput {
    pub input: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// An addition of tasks that came before its job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct EarlyAddition {
    pub event_sk: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// What has no content but its key: that a task waits, that an addition is counted.
#[derive(Serialize)]
struct Mark {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<Seconds>,
}

/// Whether a record was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutNew {
    /// It is put.
    Applied,
    /// The key has a record.
    Exists,
}

/// The records of jobs: counts, nodes, inputs, ends, waits, additions.
#[derive(Clone, Debug)]
pub struct JobRecords {
    table: ControlTable,
}

impl JobRecords {
    /// The records in this table.
    pub fn new(table: ControlTable) -> Self {
        Self { table }
    }

    /// The job, strongly consistent.
    pub async fn get(&self, tenant: &str, job_id: &str) -> Result<Option<JobRecord>, StoreError> {
        self.table.get(&keys::job(tenant, job_id)).await
    }

    /// Puts a job if there is none of its id.
    pub async fn put_new(&self, tenant: &str, job: &JobRecord) -> Result<PutNew, StoreError> {
        self.put_if_new(&keys::job(tenant, &job.job_id), job).await
    }

    /// Some jobs of lists that follow each other, and the cursor of the next page.
    pub async fn list(
        &self,
        tenant: &Name,
        lists: &[String],
        limit: usize,
        cursor: ListCursor,
    ) -> Result<(Vec<JobRecord>, Option<String>), StoreError> {
        self.table.list_pages(lists, limit, cursor, |id| keys::job(tenant, id)).await
    }

    /// The nodes of some tasks, as far as they are there.
    pub async fn nodes(
        &self,
        tenant: &str,
        job_id: &str,
        tasks: impl IntoIterator<Item = &str>,
    ) -> Result<Vec<JobNode>, StoreError> {
        let keys: Vec<_> = tasks.into_iter().map(|task| keys::job_node(tenant, job_id, task)).collect();
        self.table.get_all(&keys).await?.into_iter().map(read).collect()
    }

    /// The node of one task.
    pub async fn node(
        &self,
        tenant: &str,
        job_id: &str,
        task_id: &str,
    ) -> Result<Option<JobNode>, StoreError> {
        self.table.get(&keys::job_node(tenant, job_id, task_id)).await
    }

    /// Every node of a job, by the ids of the tasks.
    pub async fn all_nodes(&self, tenant: &str, job_id: &str) -> Result<Vec<JobNode>, StoreError> {
        all_rows(self.beginning_with(tenant, job_id, keys::NODES)).await
    }

    /// The ids of a job's tasks, and nothing else of their nodes: those of earlier versions hold their inputs.
    pub async fn task_ids(&self, tenant: &str, job_id: &str) -> Result<Vec<Name>, StoreError> {
        let nodes = self.beginning_with(tenant, job_id, keys::NODES).projection_expression("taskId");
        Ok(all_rows::<TaskId>(nodes).await?.into_iter().map(|node| node.task_id).collect())
    }

    /// Puts nodes, whatever is there: nodes never change.
    pub async fn put_nodes(&self, tenant: &str, job_id: &str, nodes: &[JobNode]) -> Result<(), StoreError> {
        let rows = nodes.iter().map(|node| item(&keys::job_node(tenant, job_id, &node.task_id), node));
        self.table.put_all(rows.collect::<Result<_, _>>()?).await
    }

    /// The row with an input.
    pub async fn input(&self, key: &ControlKey) -> Result<Option<JobInput>, StoreError> {
        self.table.get(key).await
    }

    /// Puts rows with inputs, whatever is there: inputs never change.
    pub async fn put_inputs(&self, inputs: &[(ControlKey, JobInput)]) -> Result<(), StoreError> {
        let rows = inputs.iter().map(|(key, input)| item(key, input));
        self.table.put_all(rows.collect::<Result<_, _>>()?).await
    }

    /// The outcomes of some tasks, as far as there are any.
    pub async fn ends(
        &self,
        tenant: &str,
        job_id: &str,
        tasks: impl IntoIterator<Item = &str>,
    ) -> Result<Vec<JobEnd>, StoreError> {
        let keys: Vec<_> = tasks.into_iter().map(|task| keys::job_end(tenant, job_id, task)).collect();
        self.table.get_all(&keys).await?.into_iter().map(read).collect()
    }

    /// The outcomes of all tasks of a job that have one.
    pub async fn all_ends(&self, tenant: &str, job_id: &str) -> Result<Vec<JobEnd>, StoreError> {
        all_rows(self.beginning_with(tenant, job_id, keys::ENDS)).await
    }

    /// Notes an end of a task that the job does not know of, so far, unless the task has one.
    pub async fn note_end(&self, tenant: &str, job_id: &str, end: &JobEnd) -> Result<PutNew, StoreError> {
        let end = JobEnd { counted: false, ..end.clone() };
        self.put_if_new(&keys::job_end(tenant, job_id, &end.task_id), &end).await
    }

    /// Marks tasks as waiting for a parent each, given as (parent, child).
    pub async fn put_waits<'w>(
        &self,
        tenant: &str,
        job_id: &str,
        waits: impl Iterator<Item = (&'w str, &'w str)>,
        ttl: Option<Seconds>,
    ) -> Result<(), StoreError> {
        let marks =
            waits.map(|(parent, child)| item(&keys::job_wait(tenant, job_id, parent, child), &Mark { ttl }));
        let marks: Vec<Item> = marks.collect::<Result<_, _>>()?;
        self.table.put_all(marks).await
    }

    /// The tasks with a mark that they wait for this one.
    pub async fn waiting_for(
        &self,
        tenant: &str,
        job_id: &str,
        parent: &str,
    ) -> Result<Vec<String>, StoreError> {
        let beginning = keys::job_waits(parent);
        let rows: Vec<Wait> = all_rows(self.beginning_with(tenant, job_id, &beginning)).await?;
        Ok(rows.into_iter().filter_map(|row| row.sk.strip_prefix(&beginning).map(str::to_owned)).collect())
    }

    /// The additions that came before the job was laid out.
    pub async fn early_additions(
        &self,
        tenant: &str,
        job_id: &str,
    ) -> Result<Vec<EarlyAddition>, StoreError> {
        all_rows(self.beginning_with(tenant, job_id, keys::EARLY_ADDITIONS)).await
    }

    /// Marks an addition that came before the job was laid out.
    pub async fn put_early_addition(
        &self,
        tenant: &str,
        job_id: &str,
        event_id: &str,
        mark: &EarlyAddition,
    ) -> Result<PutNew, StoreError> {
        self.put_if_new(&keys::early_addition(tenant, job_id, event_id), mark).await
    }

    async fn put_if_new(&self, key: &ControlKey, record: &impl Serialize) -> Result<PutNew, StoreError> {
        Ok(match self.table.put_new(key, record).await? {
            true => PutNew::Applied,
            false => PutNew::Exists,
        })
    }

    fn beginning_with(&self, tenant: &str, job_id: &str, beginning: &str) -> QueryFluentBuilder {
        self.table
            .partition(&keys::job_partition(tenant, job_id))
            .key_condition_expression("PK = :pk AND begins_with(SK, :beginning)")
            .expression_attribute_values(":beginning", text(beginning))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskId {
    task_id: Name,
}

#[derive(Deserialize)]
struct Wait {
    #[serde(rename = "SK")]
    sk: String,
}

async fn all_rows<T: DeserializeOwned>(query: QueryFluentBuilder) -> Result<Vec<T>, StoreError> {
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
