//! The records of tasks, which decide who runs them and how they ended, against the ledger.

use std::collections::HashMap;

use ledgerline_event::{Millis, Name, catalogue::TaskState};
use ledgerline_store::{ControlKey, Row, keys};
use serde::Deserialize;

use crate::Verify;
use crate::{
    compare::RECENT_MS,
    difference::{Difference, DifferenceKind, Standing},
    fold::{Folded, TaskEnded, TaskFold, began},
    rows,
};
use ledgerline_jobs::{Phase, SummaryRow, TaskOutcome, TaskRecord};
use ledgerline_outbox::{ClaimState, ComponentError};

/// The row and the records of a task.
pub(crate) struct StoredTask {
    pub(crate) summary: Option<SummaryRow>,
    /// The generation that the ledger knew when these were read.
    generation: u32,
    current: Option<StoredRecord>,
    /// The generation after that one.
    next: Option<StoredRecord>,
}

struct StoredRecord {
    record: TaskRecord,
    claimed_at: Option<Millis>,
}

/// A record as a claim: when it last became one, and whether its effects were sent.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimStatus {
    #[serde(default)]
    pub(crate) state: Option<ClaimState>,
    #[serde(default)]
    pub(crate) claimed_at: Option<Millis>,
}

impl ClaimStatus {
    /// Whether events of the claim may still be on their way to the ledger.
    pub(crate) fn is_on_its_way(&self, now: Millis) -> bool {
        self.state == Some(ClaimState::Pending) || is_recent(self.claimed_at, now)
    }
}

pub(crate) fn is_recent(at: Option<Millis>, now: Millis) -> bool {
    at.is_some_and(|at| at.plus(RECENT_MS) > now)
}

impl StoredRecord {
    fn read(row: Row) -> Result<Self, ComponentError> {
        let status: ClaimStatus = row.view()?;
        Ok(Self { record: row.read()?, claimed_at: status.claimed_at })
    }

    fn is_on_its_way(&self, now: Millis) -> bool {
        ClaimStatus { state: self.record.claim_state, claimed_at: self.claimed_at }.is_on_its_way(now)
    }

    fn had_begun_by(&self, at: Millis) -> bool {
        self.record.created_at.is_none_or(|created| created <= at)
    }
}

impl Verify {
    /// Rows and records of some tasks.
    pub(crate) async fn task_rows(
        &self,
        tenant: &Name,
        ids: &[&Name],
        folded: &Folded,
    ) -> Result<Vec<(Name, StoredTask)>, ComponentError> {
        let generation_of = |id: &Name| {
            let summary = folded.tasks.get(id).and_then(|task| task.whole().summary());
            summary.map_or(1, |summary| summary.generation)
        };
        let generations: Vec<u32> = ids.iter().map(|id| generation_of(id)).collect();
        let keys_of = |id: &Name, generation: u32| {
            [
                keys::task_summary(tenant, id),
                keys::task_record(tenant, id, generation),
                keys::task_record(tenant, id, generation.saturating_add(1)),
            ]
        };
        let wanted: Vec<_> =
            ids.iter().zip(&generations).flat_map(|(id, generation)| keys_of(id, *generation)).collect();
        let found = self.rows.get_all(&wanted).await?.into_iter();
        let mut found: HashMap<ControlKey, Row> = found.map(|row| (row.key.clone(), row)).collect();
        let mut tasks = Vec::with_capacity(ids.len());
        for (id, generation) in ids.iter().zip(generations) {
            let [summary, current, next] = keys_of(id, generation).map(|key| found.remove(&key));
            let rows = StoredTask {
                summary: summary.map(Row::read).transpose()?,
                generation,
                current: current.map(StoredRecord::read).transpose()?,
                next: next.map(StoredRecord::read).transpose()?,
            };
            tasks.push(((*id).clone(), rows));
        }
        Ok(tasks)
    }
}

impl StoredTask {
    /// How the row and the records differ from what the ledger tells.
    pub(crate) fn differences(
        &self,
        tenant: &Name,
        id: &Name,
        folded: &Folded,
        now: Millis,
    ) -> Vec<Difference> {
        let row = rows::difference(tenant, id, self.summary.as_ref(), folded, now);
        let mut differences: Vec<Difference> = row.into_iter().collect();
        let Some(task) = folded.tasks.get(id) else { return differences };
        let Some(ledger_summary) = task.whole().summary() else { return differences };
        let row_began = self.summary.as_ref().and_then(|row| row.history().summary()).map(|row| began(&row));
        let ledger_began = began(&ledger_summary);
        let began = row_began.map_or(ledger_began, |row| row.min(ledger_began));
        let ttl = self.summary.as_ref().and_then(|row| row.ttl);
        if !folded.may_have_lost(began, ttl, now) {
            let ledger_state = (ledger_summary.generation == self.generation).then_some(ledger_summary.state);
            differences.extend(self.end_difference(id, task, ledger_state, now));
            differences.extend(self.start_difference(id, ledger_summary.generation, now));
        }
        differences
    }

    fn end_difference(
        &self,
        id: &Name,
        task: &TaskFold,
        ledger_state: Option<TaskState>,
        now: Millis,
    ) -> Option<Difference> {
        let generation = self.generation;
        let of_task = |kind, standing, detail| Some(Difference::of_task(id, kind, standing, detail));
        let mut ends = task.ends.iter().filter(|end| self.belongs(end)).peekable();
        let Some(StoredRecord { record, .. }) = &self.current else {
            ends.peek()?;
            let detail = format!("the ledger says that generation {generation} ended, and it has no record");
            return of_task(
                DifferenceKind::RecordMissing,
                Standing::fault_if(ends.any(|end| end.settled)),
                detail,
            );
        };
        if record.phase != Phase::Ended {
            let end = ends.peek()?;
            let detail = format!(
                "the ledger says that generation {generation} ended with {}, and its record is open",
                end.event_id
            );
            return of_task(
                DifferenceKind::RecordOpen,
                Standing::fault_if(ends.any(|end| end.settled)),
                detail,
            );
        }
        let ended_by = record.end_event.as_ref();
        let Some(end) = task.ends.iter().find(|end| Some(&end.event_id) == ended_by) else {
            let on_its_way = self.current.as_ref().is_some_and(|stored| stored.is_on_its_way(now));
            let event = ended_by.map_or("no event", Name::as_str);
            let detail = format!(
                "the record of generation {generation} ended with {event}, which is not in the ledger"
            );
            return of_task(DifferenceKind::EndNotSaved, Standing::fault_unless(on_its_way), detail);
        };
        let ended = match end.outcome {
            TaskOutcome::Completed => TaskState::Completed,
            TaskOutcome::Failed => TaskState::Failed,
        };
        let ledger_state = ledger_state.filter(|state| *state != ended)?;
        let detail = format!(
            "its record ended as {} with {}, and the ledger's first end says {}",
            ended.as_str(),
            end.event_id,
            ledger_state.as_str()
        );
        of_task(DifferenceKind::TwoEnds, Standing::Fault, detail)
    }

    /// A generation that has a record, though no event tells of its start.
    fn start_difference(&self, id: &Name, ledger_generation: u32, now: Millis) -> Option<Difference> {
        let next = self.next.as_ref()?;
        let created_at = next.record.created_at?;
        if ledger_generation > self.generation {
            return None;
        }
        let on_its_way = next.is_on_its_way(now) || is_recent(Some(created_at), now);
        let detail =
            format!("generation {} was started, and no event tells of it", self.generation.saturating_add(1));
        Some(Difference::of_task(
            id,
            DifferenceKind::StartNotSaved,
            Standing::fault_unless(on_its_way),
            detail,
        ))
    }

    /// Whether an end belongs to the generation that was read. An end that names none belongs to the newest generation
    /// that had begun by then.
    fn belongs(&self, end: &TaskEnded) -> bool {
        if let Some(generation) = end.generation {
            return generation == self.generation;
        }
        let of_next = self.next.as_ref().is_some_and(|next| next.had_begun_by(end.at));
        let begun = self.current.as_ref().is_some_and(|current| current.had_begun_by(end.at));
        !of_next && (begun || self.generation == 1)
    }
}
