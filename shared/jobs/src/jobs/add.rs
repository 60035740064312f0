//! The drainer `jobs` adds tasks to a job when it reads a `Job Tasks Added` event of that job, from any sender.

use std::collections::BTreeSet;

use ledgerline_event::{
    Event, Invalid, Name,
    catalogue::JobTasksAdded,
    dag::{Node, check_added},
};
use ledgerline_ledger::Place;
use ledgerline_outbox::DispatchError;
use ledgerline_store::{EarlyAddition, Patience, TaskAddition, wait_for_turn};
use serde::Deserialize;

use super::{create::same_job, new_records::kept_until};
use crate::JobDriver;

impl JobDriver {
    /// Puts added tasks in place and starts those that wait for nothing.
    pub async fn tasks_added(&self, event: &Event) -> Result<(), DispatchError> {
        let added = JobTasksAdded::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &added.job_id)?;
        let tenant = &event.tenant_id;
        let is_laid_out = async || {
            let job = self.records.get(tenant, &job_id).await?;
            Ok::<_, DispatchError>(job.is_some_and(|job| job.laid_out))
        };
        if !is_laid_out().await? {
            // Put the mark, then look again: the process that lays the job out sets `laidOut`, and then reads
            // the marks.
            let mark = EarlyAddition { event_sk: event.keys().sk().to_owned(), ttl: kept_until(event.ttl) };
            self.records.put_early_addition(tenant, &job_id, &event.event_id, &mark).await?;
            if !is_laid_out().await? {
                return Ok(());
            }
        }
        // Nodes that this very event has added already do not count as known.
        let mentioned: BTreeSet<&str> = added
            .new_tasks
            .iter()
            .flat_map(|task| std::iter::once(&task.task_id).chain(&task.depends_on))
            .map(String::as_str)
            .collect();
        let there = self.records.nodes(tenant, &job_id, mentioned).await?;
        let known = |id: &str| {
            there.iter().any(|node| node.task_id.as_str() == id && node.added_by != event.event_id)
        };
        check_added(&job_id, added.new_tasks.iter().map(Node::from), known)?;
        if !self.count_addition(tenant, &job_id, event, added.new_tasks.len()).await? {
            let reason = format!("no job `{job_id}` is open: tasks cannot be added to it");
            return Err(Invalid::new("jobId", reason).into());
        }
        self.lay_out(&job_id, &added.new_tasks, event).await
    }

    /// Handles the additions that came before the job was laid out.
    pub async fn early_additions(&self, tenant: &Name, job_id: &Name) -> Result<(), DispatchError> {
        for mark in self.records.early_additions(tenant, job_id).await? {
            let Some(event) = self.timeline.stored_at(tenant, &mark.event_sk).await? else { continue };
            let place = Place { sk: mark.event_sk, event };
            Box::pin(self.handle_early_addition(&place)).await?;
        }
        Ok(())
    }

    /// Raises the job's total, once for an event; `false` if there is no such job, or it is completed.
    async fn count_addition(
        &self,
        tenant: &Name,
        job_id: &Name,
        event: &Event,
        count: usize,
    ) -> Result<bool, DispatchError> {
        if self.records.has_addition(tenant, job_id, &event.event_id).await? {
            return Ok(true);
        }
        let mut patience = Patience::default();
        loop {
            let ttl = kept_until(event.ttl);
            match self.records.count_addition(tenant, job_id, &event.event_id, count, ttl).await? {
                TaskAddition::Applied | TaskAddition::AddedBefore => return Ok(true),
                TaskAddition::Refused => return Ok(false),
                TaskAddition::Busy(why) => wait_for_turn(&mut patience, why).await?,
            }
        }
    }
}
