//! What follows when tasks of a job have ended.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use ledgerline_event::{Event, Name, dag::split_task_entity};
use ledgerline_ledger::TimelineEvent;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{JobEnd, TaskOutcome};

use super::{
    Ended,
    counters::{Counted, count_ends},
    new_records::kept_until,
};
use crate::JobDriver;

/// Ends that are looked at at the same time.
const MAX_CONCURRENT: usize = 16;

/// The outcome of a task, by its terminal event.
pub fn outcome_of(event: &Event) -> Option<TaskOutcome> {
    match event.event_type.as_str() {
        "Task Completed" => Some(TaskOutcome::Completed),
        "Task Failed" | "Task Timeout" => Some(TaskOutcome::Failed),
        _ => None,
    }
}

/// The job and the task in it that a task event is about, by its entity.
pub(super) fn job_and_task_of(event: &Event) -> Option<(Name, Name)> {
    let (job_id, task_id) = split_task_entity(&event.entity_id)?;
    Some((Name::stored("jobId", job_id).ok()?, Name::stored("taskId", task_id).ok()?))
}

/// Whether the `jobId` in the properties of a task event is the job in its entity id.
pub fn names_own_job(event: &Event) -> bool {
    let said = event.properties.get("jobId").and_then(|said| said.as_str());
    split_task_entity(&event.entity_id).is_some_and(|(job_id, _)| said == Some(job_id))
}

impl JobDriver {
    /// Counts tasks of one job that have ended, emits their failures, starts the tasks that waited for them, and completes
    /// the job if it is done.
    pub async fn tasks_ended(&self, job_id: &Name, places: &[&TimelineEvent]) -> Result<(), ComponentError> {
        let mut done: Vec<(&Event, JobEnd)> = Vec::new();
        for some in places.chunks(MAX_CONCURRENT) {
            let looked = try_join_all(some.iter().map(|place| self.look_at_end(job_id, place))).await?;
            let mut counted: Vec<Counted> = Vec::new();
            for (place, ended) in some.iter().zip(looked) {
                let Some(ended) = ended else { continue };
                // One transaction takes one write of a record: a task may have ended twice, in two generations.
                if counted.iter().any(|other| other.end.task_id == ended.end.task_id) {
                    count_ends(&self.records, &place.event.tenant_id, job_id, std::mem::take(&mut counted))
                        .await?;
                }
                done.push((&place.event, ended.end.clone()));
                counted.push(ended);
            }
            if let Some(place) = some.first() {
                count_ends(&self.records, &place.event.tenant_id, job_id, counted).await?;
            }
        }
        let Some((cause, _)) = done.last() else { return Ok(()) };
        let completed = done.iter().filter(|(_, end)| end.outcome == TaskOutcome::Completed);
        let completed: BTreeSet<&Name> = completed.map(|(_, end)| &end.task_id).collect();
        let completed: Vec<&Name> = completed.into_iter().collect();
        let waiting = self.waiting_for(&cause.tenant_id, job_id, &completed).await?;
        Box::pin(self.advance(job_id, waiting, cause)).await?;
        let failed: Vec<_> = done.iter().filter(|(_, end)| end.outcome == TaskOutcome::Failed).collect();
        let failed = failed.into_iter().map(|(event, end)| (*event, &end.task_id, end.generation)).collect();
        Box::pin(self.emit_failures(job_id, failed)).await?;
        Box::pin(self.complete_or_list(job_id, cause)).await
    }

    /// Whether a terminal event is the end of a task that the job knows.
    async fn look_at_end(
        &self,
        job_id: &Name,
        place: &TimelineEvent,
    ) -> Result<Option<Counted>, ComponentError> {
        let event = &place.event;
        let Some(outcome) = outcome_of(event) else { return Ok(None) };
        let generation = self.tasks.generation_of(event).await?;
        let Some(record) = self.tasks.observe_end(event, generation).await? else {
            tracing::warn!(event_id = %event.event_id, task = %event.entity_id, "ignored a second terminal event: the task had already ended");
            return Ok(None);
        };
        if let Some(run_id) = &record.workflow_run_id {
            let (run_id, end) = (run_id.clone(), Box::new(Event::clone(event)));
            (self.notify)(Ended::Task { run_id, end }).await?;
        }
        let Some((_, task_id)) = job_and_task_of(event).filter(|(of, _)| of == job_id) else {
            return Ok(None);
        };
        let end = JobEnd {
            task_id,
            outcome,
            generation,
            event_sk: place.sk.clone(),
            counted: true,
            ttl: kept_until(event.ttl),
        };
        // A task that the job started belongs to it; any other task is looked up. An end that does not name
        // its job counts too: it ended the task's record, so the job cannot start that task any more.
        if !record.in_job && !self.knows(&event.tenant_id, job_id, &end.task_id).await? {
            // Note the end, then look again: the process that puts the task in place reads the noted ends
            // after that.
            self.records.note_end(&event.tenant_id, job_id, &end).await?;
            if !self.knows(&event.tenant_id, job_id, &end.task_id).await? {
                return Ok(None);
            }
        }
        Ok(Some(Counted { end, was_active: record.in_job }))
    }

    async fn knows(&self, tenant: &Name, job_id: &Name, task_id: &Name) -> Result<bool, ComponentError> {
        let node = self.records.node(tenant, job_id, task_id).await?;
        Ok(node.is_some() && self.records.get(tenant, job_id).await?.is_some())
    }
}
