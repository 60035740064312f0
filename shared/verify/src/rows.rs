//! The rows that people list, against the fold of the ledger. A row is a join of events, so it is right exactly if it
//! holds everything that is settled and nothing that is not in the ledger.

use ledgerline_event::{Millis, Name, TaskHistory, TaskSummary, catalogue::TaskState};
use ledgerline_store::{Repair, RowPut, keys};
use serde_json::Value;

use crate::Verify;
use crate::{
    difference::{Difference, DifferenceKind, Standing},
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
    let ledger_summary = whole.summary()?;
    let of_task = |kind, standing, detail| Some(Difference::of_task(id, kind, standing, detail));
    let Some(row) = row else {
        let has_settled_events = task.settled().summary().is_some();
        let detail = format!("there is none, and the ledger says {}", ledger_summary.state.as_str());
        return of_task(DifferenceKind::RowMissing, Standing::fault_if(has_settled_events), detail);
    };
    let history = row.history();
    let known_events = events_known_to(row, &history, folded, now);
    let standing = history_standing(task, &whole, &history, known_events);
    if standing == Some(Standing::Fault) {
        return of_task(
            DifferenceKind::RowDifferent,
            Standing::Fault,
            in_words(history.summary(), &ledger_summary),
        );
    }
    let right = next_row(row, tenant, &history, None);
    if row.list_in != right.list_in || row.list_at != right.list_at {
        let list = |row: &SummaryRow| match (&row.list_in, &row.list_at) {
            (Some(list), Some(place)) => format!("{list} at {place}"),
            (Some(list), None) => format!("{list} at no place"),
            (None, _) => "no list".to_owned(),
        };
        let detail = format!("is in {}, and belongs in {}", list(row), list(&right));
        return of_task(DifferenceKind::RowInWrongList, Standing::Fault, detail);
    }
    if row.due_at.is_none() && right.due_at.is_some() {
        // Written by a version before 0.1.0, which never enqueued a task again that no worker took.
        let detail =
            "it has no time at which the health check looks whether a worker has the task".to_owned();
        return of_task(DifferenceKind::RowDifferent, Standing::Fault, detail);
    }
    of_task(DifferenceKind::RowDifferent, standing?, in_words(history.summary(), &ledger_summary))
}

/// The difference of a row that was listed though no event was about its task; `None` if that is no fault.
pub(crate) fn orphan(id: &Name, row: &SummaryRow, folded: &Folded, now: Millis) -> Option<Difference> {
    // A row lives as long as the last of its events, and longer while its task waits for a worker.
    let expired = row.ttl.is_some_and(|ttl| ttl <= now.seconds());
    let may_outlive = || {
        row.due_at.is_some() || events_known_to(row, &row.history(), folded, now) == RowEvents::SomeExpired
    };
    let outlives = row.ttl.is_some() && may_outlive();
    if expired || outlives || folded.tasks.contains_key(id) {
        return None;
    }
    let state = row.history().summary().map_or("unreadable", |summary| summary.state.as_str());
    let detail = format!("is {state}, and no event is about this task");
    Some(Difference::of_task(id, DifferenceKind::OrphanRow, Standing::Fault, detail))
}

/// The events from which a row was folded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowEvents {
    /// The ledger has them all.
    InLedger,
    /// Some may have expired since.
    SomeExpired,
}

fn events_known_to(row: &SummaryRow, history: &TaskHistory, folded: &Folded, now: Millis) -> RowEvents {
    match history.summary() {
        Some(summary) if folded.may_have_lost(began(&summary), row.ttl, now) => RowEvents::SomeExpired,
        Some(_) | None => RowEvents::InLedger,
    }
}

/// The standing of the difference between a row's history and the ledger; `None` if they agree.
fn history_standing(
    task: &TaskFold,
    whole: &TaskHistory,
    row: &TaskHistory,
    known_events: RowEvents,
) -> Option<Standing> {
    let some_expired = known_events == RowEvents::SomeExpired;
    // If both know an event, the first keeps its own version of it: so a version that was changed is noticed.
    let joined = |first: &TaskHistory, second: &TaskHistory| {
        let mut joined = first.clone();
        joined.join(second);
        joined
    };
    if row == whole || (some_expired && joined(whole, row) == *row) {
        return None;
    }
    let has_what_is_settled = joined(task.settled(), row) == *row;
    let has_nothing_else = some_expired || joined(row, whole) == *whole;
    let in_flight_explains = has_what_is_settled && has_nothing_else;
    Some(Standing::fault_unless(in_flight_explains))
}

fn in_words(row: Option<TaskSummary>, ledger: &TaskSummary) -> String {
    let Some(row) = row else {
        return format!("the row is unreadable, and the ledger says {}", ledger.state.as_str());
    };
    if row.state != ledger.state {
        return format!("it says {}, and the ledger says {}", row.state.as_str(), ledger.state.as_str());
    }
    let fields = |summary: &TaskSummary| match serde_json::to_value(summary) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (row, ledger) = (fields(&row), fields(ledger));
    let mut names: Vec<&str> = row
        .keys()
        .chain(ledger.keys())
        .filter(|name| row.get(*name) != ledger.get(*name))
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => "the row was folded from other events".to_owned(),
        false => format!("differs from the ledger in the fields: {}", names.join(", ")),
    }
}

impl Verify {
    /// Rebuilds a row, on condition that it is as it was read.
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
        // Only the row still knows of events that have expired.
        let before = row.map(|row| (row, row.history()));
        if let Some((_, before)) =
            before.filter(|(row, before)| events_known_to(row, before, folded, now) == RowEvents::SomeExpired)
        {
            history.join(&before);
        }
        if history.summary().is_some_and(|summary| summary.state == TaskState::Processing) {
            // Put the mark before the row says that its task runs: the health check must not miss it.
            self.tasks.mark_busy(tenant).await?;
        }
        let next = next_row(&row.cloned().unwrap_or_default(), tenant, &history, task.ttl);
        Ok(match self.tasks.put_summary(&keys::task_summary(tenant, id), row, &next).await? {
            RowPut::Applied => Repair::Done,
            RowPut::Superseded => Repair::ChangedMeanwhile,
        })
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
