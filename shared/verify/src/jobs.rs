//! A job's records against the ledger: its tasks against the events that defined them, the outcomes that it has noted
//! against the ends of its tasks, its counts against its outcomes, and the list that it is in.

use std::collections::BTreeMap;

use ledgerline_event::{JobEvent, Millis, Name, dag::task_entity};

use crate::{
    difference::{Difference, What, fault_unless},
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
    check.in_motion |= check.has_more_to_come();
    match &rows.record {
        None => check.without_record(),
        Some(record) => {
            // Of one that is older than the ledger reaches back, what is left cannot tell everything.
            if !folded.may_have_lost(record.created_at, record.ttl.is_some(), now) {
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
    fn say(&mut self, what: What, explained: bool, detail: String) {
        self.found.push(Difference::of_job(self.id, what, fault_unless(explained), detail));
    }

    /// Whether an event that drives the job may not have been handled yet.
    fn has_more_to_come(&self) -> bool {
        let drives = |told: &FoldedJobEvent| match told.kind {
            JobEvent::Created | JobEvent::TasksAdded | JobEvent::Resumed => !told.settled,
            JobEvent::Completed | JobEvent::FailureDetected => false,
        };
        let tasks = self.job.events.iter().flat_map(|told| told.history.tasks().keys());
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
        self.job.events.iter().filter(move |told| match told.kind {
            JobEvent::Created => {
                rows.record.as_ref().is_some_and(|record| record.created_by == told.event_id)
            }
            JobEvent::TasksAdded => rows.added.contains_key(told.event_id.as_str()),
            JobEvent::Completed | JobEvent::FailureDetected | JobEvent::Resumed => false,
        })
    }

    fn without_record(&mut self) {
        let created = |told: &&FoldedJobEvent| told.kind == JobEvent::Created;
        for told in self.job.events.iter().filter(created) {
            let lost = self.folded.may_have_lost(told.at, false, self.now);
            if !lost && !self.rows.refused.contains(&told.event_id) {
                let detail = format!("{} created it, and it has no record", told.event_id);
                self.say(What::JobMissing, !told.settled || self.rows.moving, detail);
            }
        }
    }

    fn creation(&mut self, record: &JobRecord) {
        if self.followed().any(|told| told.kind == JobEvent::Created) {
            return;
        }
        let on_its_way = is_recent(Some(record.created_at), self.now)
            || self.rows.stamp.as_ref().is_some_and(|stamp| stamp.is_on_its_way(self.now));
        let detail = format!("{} created it, and is not in the ledger", record.created_by);
        self.say(What::OrphanJob, on_its_way, detail);
    }

    fn tasks(&mut self, record: &JobRecord) {
        let mut total = 0;
        for told in self.followed() {
            total += told.history.tasks().len();
            for (task_id, told_node) in told.history.tasks() {
                let detail = match self.rows.nodes.get(task_id) {
                    None => format!("task `{task_id}` of {} is missing", told.event_id),
                    Some(node) if node.name != told_node.name || node.depends_on != told_node.depends_on => {
                        format!("task `{task_id}` is not as {} defined it", told.event_id)
                    }
                    Some(_) => continue,
                };
                self.say(What::JobTasks, self.in_motion, detail);
            }
        }
        let known = |event_id: &str| self.job.events.iter().any(|told| told.event_id.as_str() == event_id);
        // Those of an event that is on its way count already.
        let unsaved: BTreeMap<&str, bool> = self
            .rows
            .added
            .iter()
            .filter(|(event_id, _)| !known(event_id))
            .map(|(event_id, stamp)| (event_id.as_str(), stamp.is_on_its_way(self.now)))
            .collect();
        for (event_id, on_its_way) in &unsaved {
            let detail = format!("tasks were added by {event_id}, which is not in the ledger");
            self.say(What::JobTasks, *on_its_way, detail);
        }
        for told in self.job.events.iter().filter(|told| told.kind == JobEvent::TasksAdded) {
            let event_id = &told.event_id;
            if !self.rows.added.contains_key(event_id.as_str()) && !self.rows.refused.contains(event_id) {
                let detail = format!("{event_id} added tasks, and they were not taken up");
                self.say(What::JobTasks, self.in_motion, detail);
            }
        }
        let created = self.followed().any(|told| told.kind == JobEvent::Created);
        for (task_id, node) in &self.rows.nodes {
            let by = node.added_by.as_str();
            if unsaved.contains_key(by) {
                total += 1;
            } else if created && !self.followed().any(|told| told.history.tasks().contains_key(task_id)) {
                let detail = format!("task `{task_id}` came with {by}, which did not define it");
                self.say(What::JobTasks, self.in_motion, detail);
            }
        }
        if created && u64::from(record.total) != total as u64 {
            let detail = format!("it counts {} tasks, and its events list {total}", record.total);
            self.say(What::JobCount, self.in_motion, detail);
        }
    }

    fn outcomes(&mut self) {
        let rows = self.rows;
        let told = self.job.events.iter().flat_map(|told| told.history.tasks().keys());
        let tasks: std::collections::BTreeSet<&String> =
            told.chain(rows.nodes.keys()).chain(rows.ends.keys()).collect();
        for task_id in tasks {
            let known = rows.nodes.contains_key(task_id);
            let detail = match rows.ends.get(task_id) {
                None => self.unnoted(task_id).filter(|_| known),
                Some(noted) => self.misnoted(task_id, noted, known),
            };
            if let Some(detail) = detail {
                self.say(What::JobOutcome, self.in_motion, detail);
            }
            if let Some(node) = rows.nodes.get(task_id) {
                let completed = |parent: &String| {
                    let end = rows.ends.get(parent);
                    end.is_some_and(|end| end.counted && end.outcome == TaskOutcome::Completed)
                };
                let begun = rows.ends.contains_key(task_id) || rows.started.contains(task_id);
                // What comes with an event that is not in the ledger waits for that.
                let told = self.followed().any(|told| told.history.tasks().contains_key(task_id));
                if told && !begun && node.depends_on.iter().all(completed) {
                    let detail =
                        format!("nothing keeps task `{task_id}` from starting, and it was not started");
                    self.say(What::JobTaskNotStarted, self.in_motion, detail);
                }
            }
        }
    }

    /// A task whose end the job has not noted.
    fn unnoted(&self, task_id: &str) -> Option<String> {
        let end = self.ends_of(task_id).find(|end| end.in_job)?;
        Some(format!("task `{task_id}` ended with {}, and the job has not noted it", end.event_id))
    }

    /// An end that the job has noted otherwise than it was.
    fn misnoted(&self, task_id: &str, noted: &JobEnd, known: bool) -> Option<String> {
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
        if known && !noted.counted {
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
            self.say(What::JobCount, rows.moving, format!("it counts {said} tasks as {what}, and {are} are"));
        }
    }

    fn completion(&mut self, record: &JobRecord) {
        let told = self.job.events.iter().find(|told| told.kind == JobEvent::Completed);
        match (record.completed_at, told) {
            (Some(at), None) => {
                let pending =
                    self.rows.stamp.as_ref().and_then(|stamp| stamp.state) == Some(ClaimState::Pending);
                let on_its_way = pending || is_recent(Some(at), self.now) || self.rows.moving;
                let detail = "its record is completed, and no `Job Completed` is in the ledger".to_owned();
                self.say(What::JobCompletion, on_its_way, detail);
            }
            (None, Some(told)) => {
                let detail = format!("{} says that it is completed, and its record does not", told.event_id);
                self.say(What::JobCompletion, self.rows.moving || !told.settled, detail);
            }
            (None, None) if record.total > 0 && record.done >= record.total => {
                let detail = format!("all of its {} tasks are completed, and it is not", record.total);
                self.say(What::JobCompletion, self.in_motion, detail);
            }
            (Some(_), Some(_)) if record.done != record.total => {
                let detail = format!("it is completed with {} of {} tasks", record.done, record.total);
                self.say(What::JobCompletion, self.in_motion, detail);
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    fn resumes(&mut self, record: &JobRecord) {
        let told = self.job.events.iter().map(|told| told.history.generation()).max().unwrap_or(1);
        if record.generation > told {
            let on_its_way = self.rows.moving
                || self.rows.resume.as_ref().is_some_and(|claim| claim.is_on_its_way(self.now));
            let detail = format!("it is in generation {}, and its events tell of {told}", record.generation);
            self.say(What::ResumeNotSaved, on_its_way, detail);
        }
    }

    fn list(&mut self, tenant: &Name, record: &JobRecord) {
        let (list, place) = (record.list(tenant), place_of(record));
        if record.list_in.as_ref() != Some(&list) || record.list_at.as_ref() != Some(&place) {
            let none = "no list";
            let (found, at) = (record.list_in.as_deref().unwrap_or(none), record.list_at.as_deref());
            let detail =
                format!("is in {found} at {}, and belongs in {list} at {place}", at.unwrap_or("no place"));
            self.say(What::JobInWrongList, self.in_motion, detail);
        }
    }
}

const fn in_words(outcome: TaskOutcome) -> &'static str {
    match outcome {
        TaskOutcome::Completed => "completed",
        TaskOutcome::Failed => "failed",
    }
}
