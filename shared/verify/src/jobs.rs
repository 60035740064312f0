//! A job's records against the ledger: its tasks against the events that defined them, the outcomes that it has noted
//! against the ends of its tasks, its counts against its outcomes, and the list that it is in.

use std::collections::BTreeMap;

use ledgerline_event::{JobEvent, Millis, Name, dag::task_entity};

use crate::{
    difference::{Difference, DifferenceKind, Standing},
    fold::{Folded, FoldedJobEvent, JobFold, TaskEnded},
    job_rows::{JobRows, place_of},
    records::is_recent,
};
use ledgerline_jobs::{JobEnd, JobRecord, TaskOutcome};
use ledgerline_outbox::ClaimState;

/// How what is stored of a job differs from what the ledger tells.
pub(crate) fn differences(
    tenant: &Name,
    id: &Name,
    rows: &JobRows,
    folded: &Folded,
    now: Millis,
) -> Vec<Difference> {
    let nothing = JobFold::default();
    let job = folded.jobs.get(id).unwrap_or(&nothing);
    let mut check = Check { id, rows, job, folded, now, in_motion: rows.moving, found: Vec::new() };
    check.in_motion |= check.has_unhandled_events();
    match &rows.record {
        None => check.without_record(),
        Some(record) => {
            // If the job is older than the oldest event, some of its events may have expired.
            if !folded.may_have_lost(record.created_at, record.ttl, now) {
                check.creation(record);
                check.tasks(record);
                check.outcomes();
                check.counts(record);
                check.completion(record);
                check.resumes(record);
            }
            check.list(tenant, record);
        }
    }
    check.found
}

struct Check<'a> {
    id: &'a Name,
    rows: &'a JobRows,
    job: &'a JobFold,
    folded: &'a Folded,
    now: Millis,
    /// Whether something about it is not settled yet.
    in_motion: bool,
    found: Vec<Difference>,
}

impl<'a> Check<'a> {
    fn report(&mut self, kind: DifferenceKind, standing: Standing, detail: String) {
        self.found.push(Difference::of_job(self.id, kind, standing, detail));
    }

    /// Whether an event that drives the job may not have been handled yet.
    fn has_unhandled_events(&self) -> bool {
        let drives = |event: &FoldedJobEvent| match event.kind {
            JobEvent::Created | JobEvent::TasksAdded | JobEvent::Resumed => !event.settled,
            JobEvent::Completed | JobEvent::FailureDetected => false,
        };
        let tasks = self.job.events.iter().flat_map(|event| event.history.tasks().keys());
        let mut tasks = tasks.chain(self.rows.nodes.keys());
        self.job.events.iter().any(drives)
            || tasks.any(|task| self.ends_of(task).any(|end| end.in_job && !end.settled))
    }

    fn ends_of(&self, task_id: &str) -> impl Iterator<Item = &'a TaskEnded> + use<'a> {
        let entity = task_entity(self.id, task_id).ok();
        let task = entity.and_then(|entity| self.folded.tasks.get(&entity));
        task.into_iter().flat_map(|task| &task.ends)
    }

    /// The events that made up the job: the one that created it, and those whose tasks it has counted.
    fn followed(&self) -> impl Iterator<Item = &'a FoldedJobEvent> + use<'a> {
        let rows = self.rows;
        self.job.events.iter().filter(move |event| match event.kind {
            JobEvent::Created => {
                rows.record.as_ref().is_some_and(|record| record.created_by == event.event_id)
            }
            JobEvent::TasksAdded => rows.added.contains_key(event.event_id.as_str()),
            JobEvent::Completed | JobEvent::FailureDetected | JobEvent::Resumed => false,
        })
    }

    fn without_record(&mut self) {
        let created = |event: &&FoldedJobEvent| event.kind == JobEvent::Created;
        for event in self.job.events.iter().filter(created) {
            let lost = self.folded.may_have_lost(event.at, None, self.now);
            if !lost && !self.rows.refused.contains(&event.event_id) {
                let detail = format!("{} created it, and it has no record", event.event_id);
                self.report(
                    DifferenceKind::JobMissing,
                    Standing::fault_if(event.settled && !self.rows.moving),
                    detail,
                );
            }
        }
    }

    fn creation(&mut self, record: &JobRecord) {
        if self.followed().any(|event| event.kind == JobEvent::Created) {
            return;
        }
        let on_its_way = is_recent(Some(record.created_at), self.now)
            || self.rows.claim.as_ref().is_some_and(|claim| claim.is_on_its_way(self.now));
        let detail = format!("{} created it, and is not in the ledger", record.created_by);
        self.report(DifferenceKind::OrphanJob, Standing::fault_unless(on_its_way), detail);
    }

    fn tasks(&mut self, record: &JobRecord) {
        let mut total = 0;
        for event in self.followed() {
            total += event.history.tasks().len();
            for (task_id, defined_node) in event.history.tasks() {
                let detail = match self.rows.nodes.get(task_id) {
                    None => format!("task `{task_id}` of {} is missing", event.event_id),
                    Some(node)
                        if node.name != defined_node.name || node.depends_on != defined_node.depends_on =>
                    {
                        format!("task `{task_id}` is not as {} defined it", event.event_id)
                    }
                    Some(_) => continue,
                };
                self.report(DifferenceKind::JobTasks, Standing::fault_unless(self.in_motion), detail);
            }
        }
        let known = |event_id: &str| self.job.events.iter().any(|event| event.event_id.as_str() == event_id);
        // Those of an event that is on its way count already.
        let unsaved: BTreeMap<&str, bool> = self
            .rows
            .added
            .iter()
            .filter(|(event_id, _)| !known(event_id))
            .map(|(event_id, claim)| (event_id.as_str(), claim.is_on_its_way(self.now)))
            .collect();
        for (event_id, on_its_way) in &unsaved {
            let detail = format!("tasks were added by {event_id}, which is not in the ledger");
            self.report(DifferenceKind::JobTasks, Standing::fault_unless(*on_its_way), detail);
        }
        for event in self.job.events.iter().filter(|event| event.kind == JobEvent::TasksAdded) {
            let event_id = &event.event_id;
            if !self.rows.added.contains_key(event_id.as_str()) && !self.rows.refused.contains(event_id) {
                let detail = format!("{event_id} added tasks, and they were not taken up");
                self.report(DifferenceKind::JobTasks, Standing::fault_unless(self.in_motion), detail);
            }
        }
        let created = self.followed().any(|event| event.kind == JobEvent::Created);
        for (task_id, node) in &self.rows.nodes {
            let by = node.added_by.as_str();
            if unsaved.contains_key(by) {
                total += 1;
            } else if created && !self.followed().any(|event| event.history.tasks().contains_key(task_id)) {
                let detail = format!("task `{task_id}` came with {by}, which did not define it");
                self.report(DifferenceKind::JobTasks, Standing::fault_unless(self.in_motion), detail);
            }
        }
        if created && u64::from(record.total) != total as u64 {
            let detail = format!("it counts {} tasks, and its events list {total}", record.total);
            self.report(DifferenceKind::JobCount, Standing::fault_unless(self.in_motion), detail);
        }
    }

    fn outcomes(&mut self) {
        let rows = self.rows;
        let defined = self.job.events.iter().flat_map(|event| event.history.tasks().keys());
        let tasks: std::collections::BTreeSet<&String> =
            defined.chain(rows.nodes.keys()).chain(rows.ends.keys()).collect();
        for task_id in tasks {
            let detail = match rows.ends.get(task_id) {
                None => self.missing_note(task_id).filter(|_| rows.nodes.contains_key(task_id)),
                Some(noted) => self.note_difference(task_id, noted),
            };
            if let Some(detail) = detail {
                self.report(DifferenceKind::JobOutcome, Standing::fault_unless(self.in_motion), detail);
            }
            if let Some(node) = rows.nodes.get(task_id) {
                let completed = |parent: &String| {
                    let end = rows.ends.get(parent);
                    end.is_some_and(|end| end.counted && end.outcome == TaskOutcome::Completed)
                };
                let begun = rows.ends.contains_key(task_id) || rows.started.contains(task_id);
                // A task whose event is not in the ledger yet waits for that event.
                let is_defined = self.followed().any(|event| event.history.tasks().contains_key(task_id));
                if is_defined && !begun && node.depends_on.iter().all(completed) {
                    let detail =
                        format!("nothing keeps task `{task_id}` from starting, and it was not started");
                    self.report(
                        DifferenceKind::JobTaskNotStarted,
                        Standing::fault_unless(self.in_motion),
                        detail,
                    );
                }
            }
        }
    }

    /// A task whose end the job has not noted.
    fn missing_note(&self, task_id: &str) -> Option<String> {
        let end = self.ends_of(task_id).find(|end| end.in_job)?;
        Some(format!("task `{task_id}` ended with {}, and the job has not noted it", end.event_id))
    }

    /// How the job's note of an end differs from that end, if it does.
    fn note_difference(&self, task_id: &str, noted: &JobEnd) -> Option<String> {
        let Some(end) = self.ends_of(task_id).find(|end| end.sk == noted.event_sk) else {
            return Some(format!(
                "task `{task_id}` is noted as ended at {}, where the ledger has no end of it",
                noted.event_sk
            ));
        };
        if end.outcome != noted.outcome {
            let (noted, end) = (in_words(noted.outcome), in_words(end.outcome));
            return Some(format!("task `{task_id}` is noted as {noted}, and the ledger says {end}"));
        }
        if end.generation.is_some_and(|generation| generation != noted.generation) {
            let generation = noted.generation;
            return Some(format!(
                "task `{task_id}` is noted as ended in generation {generation}, which is not what its end says"
            ));
        }
        if self.rows.nodes.contains_key(task_id) && !noted.counted {
            return Some(format!("the end of task `{task_id}` is noted, and not counted"));
        }
        let later = self
            .ends_of(task_id)
            .filter(|end| end.in_job && noted.outcome == TaskOutcome::Failed)
            .find(|end| end.generation.is_some_and(|generation| generation > noted.generation))?;
        Some(format!(
            "task `{task_id}` ended again with {}, and the job has noted only generation {}",
            later.event_id, noted.generation
        ))
    }

    /// Counts change in one transaction with what they count, so that they are right at any time.
    fn counts(&mut self, record: &JobRecord) {
        let rows = self.rows;
        let counted =
            |outcome| rows.ends.iter().filter(move |(_, end)| end.counted && end.outcome == outcome);
        let done = counted(TaskOutcome::Completed).count() as u64;
        // One that runs again is active, and not failed any more.
        let failed =
            counted(TaskOutcome::Failed).filter(|(task, _)| !rows.active.contains(*task)).count() as u64;
        let active = i64::try_from(rows.active.len()).unwrap_or(i64::MAX);
        let counts = [
            ("completed", i64::from(record.done), i64::try_from(done).unwrap_or(i64::MAX)),
            ("failed", i64::from(record.failed), i64::try_from(failed).unwrap_or(i64::MAX)),
            ("active", record.active, active),
        ];
        for (what, said, are) in counts.into_iter().filter(|(_, said, are)| said != are) {
            self.report(
                DifferenceKind::JobCount,
                Standing::fault_unless(rows.moving),
                format!("it counts {said} tasks as {what}, and {are} are"),
            );
        }
    }

    fn completion(&mut self, record: &JobRecord) {
        let event = self.job.events.iter().find(|event| event.kind == JobEvent::Completed);
        match (record.completed_at, event) {
            (Some(at), None) => {
                let pending =
                    self.rows.claim.as_ref().and_then(|claim| claim.state) == Some(ClaimState::Pending);
                let on_its_way = pending || is_recent(Some(at), self.now) || self.rows.moving;
                let detail = "its record is completed, and no `Job Completed` is in the ledger".to_owned();
                self.report(DifferenceKind::JobCompletion, Standing::fault_unless(on_its_way), detail);
            }
            (None, Some(event)) => {
                let detail = format!("{} says that it is completed, and its record does not", event.event_id);
                self.report(
                    DifferenceKind::JobCompletion,
                    Standing::fault_if(event.settled && !self.rows.moving),
                    detail,
                );
            }
            (None, None) if record.total > 0 && record.done >= record.total => {
                let detail = format!("all of its {} tasks are completed, and it is not", record.total);
                self.report(DifferenceKind::JobCompletion, Standing::fault_unless(self.in_motion), detail);
            }
            (Some(_), Some(_)) if record.done != record.total => {
                let detail = format!("it is completed with {} of {} tasks", record.done, record.total);
                self.report(DifferenceKind::JobCompletion, Standing::fault_unless(self.in_motion), detail);
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    fn resumes(&mut self, record: &JobRecord) {
        let ledger_generation =
            self.job.events.iter().map(|event| event.history.generation()).max().unwrap_or(1);
        if record.generation > ledger_generation {
            let on_its_way = self.rows.moving
                || self.rows.resume.as_ref().is_some_and(|claim| claim.is_on_its_way(self.now));
            let detail = format!(
                "it is in generation {}, and its events tell of {ledger_generation}",
                record.generation
            );
            self.report(DifferenceKind::ResumeNotSaved, Standing::fault_unless(on_its_way), detail);
        }
    }

    fn list(&mut self, tenant: &Name, record: &JobRecord) {
        let (list, place) = (record.list(tenant), place_of(record));
        if record.list_in.as_ref() != Some(&list) || record.list_at.as_ref() != Some(&place) {
            let none = "no list";
            let (found, at) = (record.list_in.as_deref().unwrap_or(none), record.list_at.as_deref());
            let detail =
                format!("is in {found} at {}, and belongs in {list} at {place}", at.unwrap_or("no place"));
            self.report(DifferenceKind::JobInWrongList, Standing::fault_unless(self.in_motion), detail);
        }
    }
}

const fn in_words(outcome: TaskOutcome) -> &'static str {
    match outcome {
        TaskOutcome::Completed => "completed",
        TaskOutcome::Failed => "failed",
    }
}
