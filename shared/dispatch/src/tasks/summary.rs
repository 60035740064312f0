//! Tasks as people see them: folded from their events by the drainer `jobs`, in any order, and kept as a row each.
//! Rows are derived: nothing is decided by them, and they can be made again from the ledger.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::error::SdkError;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use ledgerline_event::{Event, Millis, Name, Seconds, TaskHistory, TaskSummary, catalogue::TaskState};
use ledgerline_ledger::{
    StoreError,
    control::{
        keys::{self, ControlKey},
        read,
    },
};
use serde::{Deserialize, Serialize};

use super::untaken::{kept_while_due, untaken_at};
use crate::{Dispatch, DispatchError, conditional::number, listing::ListCursor};

/// Rows that are written side by side.
const SIDE_BY_SIDE: usize = 16;

/// A task's row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SummaryRow {
    /// A [`TaskHistory`] as JSON: one attribute, whatever it holds.
    #[serde(default)]
    history: String,
    #[serde(default)]
    pub(crate) version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list_in: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_shard: Option<String>,
    /// When a task that has not ended is looked at: no worker may have taken it, or its worker may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<Seconds>,
    #[serde(default, rename = "PK", skip_serializing)]
    pk: String,
}

/// Some tasks of a list.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct TaskPage {
    pub items: Vec<TaskSummary>,
    pub cursor: Option<String>,
}

impl SummaryRow {
    pub(crate) fn history(&self) -> TaskHistory {
        // What cannot be read is folded again from nothing; `verify` finds the difference.
        serde_json::from_str(&self.history).unwrap_or_default()
    }

    pub(crate) fn summary(&self) -> Option<TaskSummary> {
        self.history().summary()
    }

    /// The same row with another history.
    pub(crate) fn with(&self, tenant: &str, history: &TaskHistory, ttl: Option<Seconds>) -> Self {
        let summary = history.summary();
        let list_in = summary.as_ref().map(|summary| keys::tasks_in(tenant, summary.state.as_str()));
        let due_at = summary.as_ref().and_then(untaken_at);
        let row_of = |summary: &TaskSummary| keys::task_summary(tenant, &summary.request_id);
        let due_shard = summary.as_ref().filter(|_| due_at.is_some()).map(row_of);
        let list_at = summary.map(|summary| format!("{}#{}", summary.entered_at, summary.request_id));
        Self {
            history: serde_json::to_string(history).unwrap_or_default(),
            version: self.version + 1,
            list_in,
            list_at,
            due_shard: due_shard.map(|key| keys::task_due_shard_of(&key)),
            due_at,
            ttl: kept_while_due(ttl.max(self.ttl), due_at),
            pk: String::new(),
        }
    }
}

impl Dispatch {
    /// Folds events about tasks into their rows.
    pub(crate) async fn fold_tasks<'e>(
        &self,
        tenant: &Name,
        events: impl IntoIterator<Item = &'e Event>,
    ) -> Result<(), DispatchError> {
        let mut tasks: BTreeMap<&Name, Vec<&Event>> = BTreeMap::new();
        for event in events {
            tasks.entry(&event.entity_id).or_default().push(event);
        }
        if tasks.is_empty() {
            return Ok(());
        }
        let keys: Vec<ControlKey> = tasks.keys().map(|id| keys::task_summary(tenant, id)).collect();
        let rows = self.control.get_all(&keys).await?.into_iter().map(read::<SummaryRow>);
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
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
        stream::iter(folds).buffer_unordered(SIDE_BY_SIDE).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    async fn fold_task(
        &self,
        tenant: &Name,
        key: &ControlKey,
        id: &Name,
        events: &[&Event],
        mut row: Option<SummaryRow>,
    ) -> Result<(), DispatchError> {
        loop {
            let before = row.as_ref().map(SummaryRow::history).unwrap_or_default();
            let mut history = before.clone();
            events.iter().for_each(|event| history.add(event));
            if history == before {
                return Ok(());
            }
            let ttl = events.iter().filter_map(|event| event.ttl).max();
            let next = row.clone().unwrap_or_default().with(tenant, &history, ttl);
            if self.put_summary(key, row.as_ref(), &next).await? {
                return Ok(());
            }
            tracing::debug!(task = %id, "somebody else folded it too");
            row = self.control.get(key).await?;
        }
    }

    /// Puts a row if it is as it was; `false` if not.
    pub(crate) async fn put_summary(
        &self,
        key: &ControlKey,
        before: Option<&SummaryRow>,
        next: &SummaryRow,
    ) -> Result<bool, DispatchError> {
        let put = self.control.put(key, next)?;
        let put = match before {
            None => put.condition_expression("attribute_not_exists(PK)"),
            Some(before) => put
                .condition_expression("version = :version")
                .expression_attribute_values(":version", number(before.version)),
        };
        match put.send().await {
            Ok(_) => Ok(true),
            Err(SdkError::ServiceError(refused)) if refused.err().is_conditional_check_failed_exception() => {
                Ok(false)
            }
            Err(error) => Err(StoreError::new("PutItem", error).into()),
        }
    }

    /// The row of a task.
    pub(crate) async fn summary_row(
        &self,
        tenant: &Name,
        request_id: &str,
    ) -> Result<Option<SummaryRow>, DispatchError> {
        Ok(self.control.get(&keys::task_summary(tenant, request_id)).await?)
    }

    /// Some tasks, in no order; those of which nothing is known are left out.
    pub(crate) async fn summaries(
        &self,
        tenant: &Name,
        request_ids: &[Name],
    ) -> Result<Vec<TaskSummary>, DispatchError> {
        let keys: Vec<_> = request_ids.iter().map(|id| keys::task_summary(tenant, id)).collect();
        let rows = self.control.get_all(&keys).await?.into_iter().map(read::<SummaryRow>);
        Ok(rows.filter_map(|row| row.map(|row| row.summary()).transpose()).collect::<Result<_, _>>()?)
    }

    /// One task.
    pub async fn task(&self, tenant: &Name, request_id: &str) -> Result<TaskSummary, DispatchError> {
        let row = self.summary_row(tenant, request_id).await?;
        let summary = match row.and_then(|row| row.summary()) {
            Some(summary) => Some(summary),
            None => self.submitted(tenant, request_id).await?,
        };
        summary.ok_or_else(|| DispatchError::Unknown {
            what: "tasks",
            id: request_id.to_owned(),
            hint: "; a task of a job is called JOB:TASK".into(),
        })
    }

    /// Tasks, the newest first: of one state, or of all, those that need attention before those that are done.
    pub async fn tasks(
        &self,
        tenant: &Name,
        state: Option<TaskState>,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<TaskPage, DispatchError> {
        let states = [TaskState::Processing, TaskState::Pending, TaskState::Failed, TaskState::Completed];
        let lists: Vec<String> = states
            .iter()
            .filter(|one| state.is_none_or(|wanted| wanted == **one))
            .map(|state| keys::tasks_in(tenant, state.as_str()))
            .collect();
        let cursor = ListCursor::decode(cursor)?;
        let key_of = |id: &str| keys::task_summary(tenant, id);
        let (rows, next) = self.list_pages::<SummaryRow>(&lists, limit, cursor, key_of).await?;
        Ok(TaskPage { items: rows.iter().filter_map(SummaryRow::summary).collect(), cursor: next })
    }

    /// Marks a tenant for the health check: it has tasks under way.
    pub(crate) async fn mark_busy(&self, tenant: &Name) -> Result<(), DispatchError> {
        let update = self
            .control
            .update(&keys::busy_mark(tenant))
            .update_expression("SET stamp = if_not_exists(stamp, :zero) + :one")
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1));
        update.send().await.map_err(|error| StoreError::new("UpdateItem", error))?;
        Ok(())
    }
}

/// Whether the event says that a worker has taken its task.
fn is_activity(event: &Event) -> bool {
    matches!(
        event.event_type.as_str(),
        "Task Processing Started" | "Task Heartbeat" | "Task Processing Failed"
    )
}
