//! The rows that people list, against the fold of the ledger. A row is a join of events, so it is right exactly if it
//! holds everything that is settled and nothing that is not in the ledger.

use ledgerline_event::{Millis, Name, TaskHistory, TaskSummary, catalogue::TaskState};
use ledgerline_store::{Repair, keys};
use serde_json::Value;

use crate::Verify;
use crate::{
    difference::{Difference, Standing, What, fault_unless},
    fold::{Folded, TaskFold, began},
};
use ledgerline_jobs::{SummaryRow, next_row};
use ledgerline_outbox::ComponentError;

/// How a task's row differs from what the ledger tells.
pub(crate) fn difference(
    tenant: &Name,
    id: &Name,
    row: Option<&SummaryRow>,
    folded: &Folded,
    now: Millis,
) -> Option<Difference> {
    let task = folded.tasks.get(id)?;
    let whole = task.whole();
    let told = whole.summary()?;
    let of_task = |what, standing, detail| Some(Difference::of_task(id, what, standing, detail));
    let Some(row) = row else {
        let explained = task.settled().summary().is_none();
        let detail = format!("there is none, and the ledger says {}", told.state.as_str());
        return of_task(What::RowMissing, fault_unless(explained), detail);
    };
    let history = row.history();
    let partly_expired = is_partly_expired(row, &history, folded, now);
    let misfit = misfit(task, &whole, &history, partly_expired);
    if misfit == Some(Standing::Fault) {
        return of_task(What::RowDifferent, Standing::Fault, in_words(history.summary(), &told));
    }
    let right = next_row(row, tenant, &history, None);
    if row.list_in != right.list_in || row.list_at != right.list_at {
        let list = |row: &SummaryRow| match (&row.list_in, &row.list_at) {
            (Some(list), Some(place)) => format!("{list} at {place}"),
            (Some(list), None) => format!("{list} at no place"),
            (None, _) => "no list".to_owned(),
        };
        let detail = format!("is in {}, and belongs in {}", list(row), list(&right));
        return of_task(What::RowInWrongList, Standing::Fault, detail);
    }
    if row.due_at.is_none() && right.due_at.is_some() {
        // An earlier version wrote it, which did not come back to tasks that no worker takes.
        let detail =
            "it has no time at which the health check looks whether a worker has the task".to_owned();
        return of_task(What::RowDifferent, Standing::Fault, detail);
    }
    of_task(What::RowDifferent, misfit?, in_words(history.summary(), &told))
}

/// A row that was listed, of a task that no event knew.
pub(crate) fn orphan(id: &Name, row: &SummaryRow, folded: &Folded, now: Millis) -> Option<Difference> {
    // A row lives as long as the last of its events, and longer while its task waits for a worker.
    let expired = row.ttl.is_some_and(|ttl| ttl <= now.seconds());
    let may_outlive = || row.due_at.is_some() || is_partly_expired(row, &row.history(), folded, now);
    let outlives = row.ttl.is_some() && may_outlive();
    if expired || outlives || folded.tasks.contains_key(id) {
        return None;
    }
    let state = row.history().summary().map_or("unreadable", |summary| summary.state.as_str());
    let detail = format!("is {state}, and no event is about this task");
    Some(Difference::of_task(id, What::OrphanRow, Standing::Fault, detail))
}

/// Whether a row may know of events that have expired.
fn is_partly_expired(row: &SummaryRow, history: &TaskHistory, folded: &Folded, now: Millis) -> bool {
    history.summary().is_some_and(|summary| folded.may_have_lost(began(&summary), row.ttl.is_some(), now))
}

/// How a history lies outside of what the ledger allows; `None` if it does not.
fn misfit(task: &TaskFold, whole: &TaskHistory, row: &TaskHistory, partly_expired: bool) -> Option<Standing> {
    // If both know an event, the first keeps its own version of it: so a version that was changed is noticed.
    let joined = |first: &TaskHistory, second: &TaskHistory| {
        let mut joined = first.clone();
        joined.join(second);
        joined
    };
    if row == whole || (partly_expired && joined(whole, row) == *row) {
        return None;
    }
    let has_what_is_settled = joined(task.settled(), row) == *row;
    let has_nothing_else = partly_expired || joined(row, whole) == *whole;
    Some(fault_unless(has_what_is_settled && has_nothing_else))
}

fn in_words(row: Option<TaskSummary>, told: &TaskSummary) -> String {
    let Some(row) = row else {
        return format!("it tells nothing that can be read, and the ledger says {}", told.state.as_str());
    };
    if row.state != told.state {
        return format!("it says {}, and the ledger says {}", row.state.as_str(), told.state.as_str());
    }
    let fields = |summary: &TaskSummary| match serde_json::to_value(summary) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (row, told) = (fields(&row), fields(told));
    let mut names: Vec<&str> = row
        .keys()
        .chain(told.keys())
        .filter(|name| row.get(*name) != told.get(*name))
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => "it knows other events than the ledger".to_owned(),
        false => format!("it says otherwise than the ledger in {}", names.join(", ")),
    }
}

impl Verify {
    /// Makes a row again, on condition that it is as it was read.
    pub(crate) async fn rebuild_row(
        &self,
        tenant: &Name,
        id: &Name,
        row: Option<&SummaryRow>,
        folded: &Folded,
        now: Millis,
    ) -> Result<Repair, ComponentError> {
        let Some(task) = folded.tasks.get(id) else { return Ok(Repair::ChangedMeanwhile) };
        let mut history = task.whole().into_owned();
        // What has expired is known to the row alone.
        let before = row.map(|row| (row, row.history()));
        if let Some((_, before)) = before.filter(|(row, before)| is_partly_expired(row, before, folded, now))
        {
            history.join(&before);
        }
        if history.summary().is_some_and(|summary| summary.state == TaskState::Processing) {
            // Put the mark before the row says that its task runs: the health check must not miss it.
            self.tasks.mark_busy(tenant).await?;
        }
        let next = next_row(&row.cloned().unwrap_or_default(), tenant, &history, task.ttl);
        let put = self.tasks.put_summary(&keys::task_summary(tenant, id), row, &next).await?;
        Ok(if put { Repair::Done } else { Repair::ChangedMeanwhile })
    }

    /// Deletes the row of a task that no event knows.
    pub(crate) async fn delete_row(
        &self,
        tenant: &Name,
        id: &Name,
        row: &SummaryRow,
    ) -> Result<Repair, ComponentError> {
        Ok(self.repairs.delete_summary(tenant, id, row.version).await?)
    }
}
