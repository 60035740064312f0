//! The rows of tasks that people list. The drainer `jobs` folds the events of each task, in any order, into its row.
//! Rows are derived: they tell the health check where to look, records decide, and rows can be rebuilt from the ledger.

use std::collections::BTreeMap;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use ledgerline_event::{
    Event, Name, Seconds, TaskEvent, TaskHistory, TaskSummary, catalogue::TaskState, keys::place, overflow,
};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{
    ListCursor, RowPut, StoreError, SummaryRow,
    keys::{self, ControlKey},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    TaskMessage,
    untaken::{enqueue_check_at, kept_while_due},
};
use crate::Tasks;

/// Rows that are written at the same time.
const MAX_CONCURRENT: usize = 16;

/// One page of a list of tasks.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct TaskPage {
    pub items: Vec<TaskSummary>,
    pub cursor: Option<String>,
}

/// The row that replaces `row` when its history becomes `history`.
pub fn next_row(row: &SummaryRow, tenant: &str, history: &TaskHistory, ttl: Option<Seconds>) -> SummaryRow {
    let summary = history.summary();
    let list_in = summary.as_ref().map(|summary| keys::tasks_in(tenant, summary.state.as_str()));
    let due_at = summary.as_ref().and_then(enqueue_check_at);
    let summary_key = |summary: &TaskSummary| keys::task_summary(tenant, &summary.request_id);
    let due_key = summary.as_ref().filter(|_| due_at.is_some()).map(summary_key);
    let list_at = summary.map(|summary| format!("{}#{}", summary.entered_at, summary.request_id));
    SummaryRow {
        history: serde_json::to_string(history).unwrap_or_default(),
        version: row.version + 1,
        list_in,
        list_at,
        due_shard: due_key.map(|key| keys::task_due_shard_of(&key)),
        due_at,
        ttl: kept_while_due(ttl.max(row.ttl), due_at),
        // The writer takes the key as an argument; only rows that were read have it here.
        pk: String::new(),
    }
}

impl Tasks {
    /// Folds events about tasks into their rows.
    pub async fn fold_tasks<'e>(
        &self,
        tenant: &Name,
        events: impl IntoIterator<Item = &'e Event>,
    ) -> Result<(), ComponentError> {
        let mut tasks: BTreeMap<&Name, Vec<&Event>> = BTreeMap::new();
        for event in events {
            tasks.entry(&event.entity_id).or_default().push(event);
        }
        if tasks.is_empty() {
            return Ok(());
        }
        let keys: Vec<ControlKey> = tasks.keys().map(|id| keys::task_summary(tenant, id)).collect();
        let rows = self.rows.get_all(&keys).await?;
        let rows: BTreeMap<&str, &SummaryRow> = rows.iter().map(|row| (row.pk.as_str(), row)).collect();
        let mut changes = Vec::new();
        let mut gets_busy = false;
        for (key, (id, events)) in keys.iter().zip(&tasks) {
            let row = rows.get(key.pk.as_str()).map(|row| (*row).clone());
            gets_busy |= row
                .as_ref()
                .and_then(|row| row.summary())
                .is_none_or(|summary| summary.state != TaskState::Processing)
                && events.iter().any(|event| is_activity(event));
            changes.push((key, *id, events, row));
        }
        if gets_busy {
            // Put the mark before any row says that its task runs: the health check must not miss these tasks.
            self.mark_busy(tenant).await?;
        }
        let folds: Vec<_> = changes
            .into_iter()
            .map(|(key, id, events, row)| self.fold_task(tenant, key, id, events, row).boxed())
            .collect();
        stream::iter(folds).buffer_unordered(MAX_CONCURRENT).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    async fn fold_task(
        &self,
        tenant: &Name,
        key: &ControlKey,
        id: &Name,
        events: &[&Event],
        mut row: Option<SummaryRow>,
    ) -> Result<(), ComponentError> {
        loop {
            let before = row.as_ref().map(SummaryRow::history).unwrap_or_default();
            let mut history = before.clone();
            events.iter().for_each(|event| history.add(event));
            if history == before {
                return Ok(());
            }
            let ttl = events.iter().filter_map(|event| event.ttl).max();
            let next = next_row(&row.clone().unwrap_or_default(), tenant, &history, ttl);
            match self.put_summary(key, row.as_ref(), &next).await? {
                RowPut::Applied => return Ok(()),
                RowPut::Superseded => {
                    tracing::debug!(task = %id, "another process updated the task's row concurrently");
                    row = self.rows.get(key).await?;
                }
            }
        }
    }

    /// Puts a row, on condition that it is still as `before`.
    pub async fn put_summary(
        &self,
        key: &ControlKey,
        before: Option<&SummaryRow>,
        next: &SummaryRow,
    ) -> Result<RowPut, ComponentError> {
        Ok(self.rows.put(key, before, next).await?)
    }

    /// The row of a task.
    pub async fn summary_row(
        &self,
        tenant: &Name,
        request_id: &str,
    ) -> Result<Option<SummaryRow>, ComponentError> {
        Ok(self.rows.get(&keys::task_summary(tenant, request_id)).await?)
    }

    /// The summaries of some tasks, in no order. A task without a row is left out.
    pub async fn summaries(
        &self,
        tenant: &Name,
        request_ids: &[Name],
    ) -> Result<Vec<TaskSummary>, ComponentError> {
        let keys: Vec<_> = request_ids.iter().map(|id| keys::task_summary(tenant, id)).collect();
        Ok(self.rows.get_all(&keys).await?.iter().filter_map(SummaryRow::summary).collect())
    }

    /// One task.
    pub async fn task(&self, tenant: &Name, request_id: &str) -> Result<TaskSummary, ComponentError> {
        let row = self.summary_row(tenant, request_id).await?;
        let summary = match row.and_then(|row| row.summary()) {
            Some(summary) => Some(summary),
            None => self.summary_from_record(tenant, request_id).await?,
        };
        summary.ok_or_else(|| ComponentError::Unknown {
            what: "tasks",
            id: request_id.to_owned(),
            hint: "; a task of a job is called JOB:TASK".into(),
        })
    }

    /// Tasks of one state, the newest first; or of all, by state: processing, pending, failed, completed.
    pub async fn tasks(
        &self,
        tenant: &Name,
        state: Option<TaskState>,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<TaskPage, ComponentError> {
        let states = [TaskState::Processing, TaskState::Pending, TaskState::Failed, TaskState::Completed];
        let lists: Vec<String> = states
            .iter()
            .filter(|one| state.is_none_or(|wanted| wanted == **one))
            .map(|state| keys::tasks_in(tenant, state.as_str()))
            .collect();
        let cursor = ListCursor::decode(cursor)?;
        let (rows, next) = self.rows.list(tenant, &lists, limit, cursor).await?;
        Ok(TaskPage { items: rows.iter().filter_map(SummaryRow::summary).collect(), cursor: next })
    }

    /// Marks a tenant for the health check: it has tasks under way.
    pub async fn mark_busy(&self, tenant: &Name) -> Result<(), ComponentError> {
        Ok(self.busy.mark(tenant).await?)
    }

    /// The output of a task; `None` if it is not completed, or if its end has expired. If the output's payload is
    /// missing in S3: the `_s3Overflow` marker, with `missing` set.
    pub async fn task_output(
        &self,
        tenant: &Name,
        task: &TaskSummary,
    ) -> Result<Option<Value>, ComponentError> {
        let (TaskState::Completed, Some(at), Some(event_id)) = (task.state, task.ended_at, &task.ended_by)
        else {
            return Ok(None);
        };
        let event = self.timeline.at(tenant, &place(at, event_id)).await?;
        Ok(event.and_then(|mut event| match overflow::missing(&event.properties) {
            Some(_) => {
                event.properties.remove_entry(overflow::MARKER).map(|marker| Value::from_iter([marker]))
            }
            None => event.properties.remove("output"),
        }))
    }

    /// The summary of a task that was submitted a moment ago, made from its record: its submitter finds the task before
    /// the drainer has folded any event of it.
    pub async fn summary_from_record(
        &self,
        tenant: &Name,
        request_id: &str,
    ) -> Result<Option<TaskSummary>, ComponentError> {
        let record = self.records.get(&keys::task_record(tenant, request_id, 1)).await?;
        let Some((at, record)) = record.and_then(|record| Some((record.created_at?, record))) else {
            return Ok(None);
        };
        let message = record.message.as_deref().and_then(|body| TaskMessage::parse(body).ok());
        let summary = json!({
            "requestId": request_id,
            "state": TaskState::Pending,
            "name": message.as_ref().map(|message| &message.name),
            "jobId": message.as_ref().and_then(|message| message.job_id.as_ref()),
            "generation": 1,
            "pendingAt": at,
            "enteredAt": at,
            "lastEventAt": at,
            "lastEventType": TaskEvent::Pending,
        });
        let summary = serde_json::from_value(summary);
        summary.map(Some).map_err(|error| StoreError::unreadable("GetItem", error.to_string()).into())
    }
}

/// Whether the event says that a worker has taken its task.
fn is_activity(event: &Event) -> bool {
    matches!(
        event.event_type.as_str(),
        "Task Processing Started" | "Task Heartbeat" | "Task Processing Failed"
    )
}
