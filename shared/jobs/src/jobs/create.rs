//! The drainer `jobs` sets a job up when it reads the job's `Job Created` event, and adds tasks to it when it reads a
//! `Job Tasks Added` event, from any sender.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use ledgerline_event::{
    Event, Invalid, Name,
    catalogue::{JobCreated, JobTask, JobTasksAdded},
    dag::{Node, check_added, check_job},
};
use ledgerline_ledger::TimelineEvent;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{
    EarlyAddition, JobEnd, JobUpdate, PutNew, RequestRetry, TaskAddition, TaskOutcome, back_off,
};
use serde::Deserialize;

use super::{
    counters::{Counted, count_ends},
    new_records::{kept_until, new_job},
};
use crate::JobDriver;

impl JobDriver {
    /// Puts the tasks of a new job in place and starts those that wait for nothing.
    pub async fn job_created(&self, event: &Event) -> Result<(), ComponentError> {
        let created = JobCreated::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &created.job_id)?;
        check_job(&job_id, created.tasks.iter().map(Node::from))?;
        let tenant = &event.tenant_id;
        let record = new_job(tenant, &job_id, &created.request_id, event, created.tasks.len());
        if self.records.put_new(tenant, &record).await? == PutNew::Exists {
            let there = self.records.get(tenant, &job_id).await?;
            match there {
                Some(there) if there.created_by != event.event_id => {
                    let reason = format!("the job `{job_id}` exists: {} created it", there.created_by);
                    return Err(Invalid::new("jobId", reason).into());
                }
                Some(there) if there.laid_out => return self.early_additions(tenant, &job_id).await,
                _ => {}
            }
        }
        self.lay_out(&job_id, &created.tasks, event).await?;
        match self.records.set_laid_out(tenant, &job_id, kept_until(event.ttl)).await? {
            JobUpdate::Applied | JobUpdate::Superseded => self.early_additions(tenant, &job_id).await,
        }
    }

    /// Puts tasks in place, counts those that ended before the job knew them, and starts those that wait for
    /// nothing.
    pub async fn lay_out(
        &self,
        job_id: &Name,
        tasks: &[JobTask],
        event: &Event,
    ) -> Result<(), ComponentError> {
        let tenant = &event.tenant_id;
        let new = try_join_all(tasks.iter().map(|task| self.inputs.new_node(job_id, task, event))).await?;
        let (nodes, inputs): (Vec<_>, Vec<_>) = new.into_iter().map(|new| (new.node, new.input)).unzip();
        self.inputs.put(inputs.into_iter().flatten()).await?;
        self.records.put_nodes(tenant, job_id, &nodes).await?;
        // Put the tasks, then read the ends: a process that found no task for an end has noted that end before.
        let ids = nodes.iter().map(|node| node.task_id.as_str());
        let early: Vec<JobEnd> =
            self.records.ends(tenant, job_id, ids).await?.into_iter().filter(|end| !end.counted).collect();
        let counted = early.iter().map(|end| Counted { end: end.clone(), was_active: false });
        count_ends(&self.records, tenant, job_id, counted.collect()).await?;
        let waiting = nodes.into_iter().map(|node| (node, 0)).collect();
        Box::pin(self.advance(job_id, waiting, event)).await?;
        let failed = early.iter().filter(|end| end.outcome == TaskOutcome::Failed);
        let failed = failed.map(|end| (event, &end.task_id, end.generation)).collect();
        Box::pin(self.emit_failures(job_id, failed)).await?;
        Box::pin(self.complete_or_list(job_id, event)).await
    }

    /// Puts added tasks in place and starts those that wait for nothing.
    pub async fn tasks_added(&self, event: &Event) -> Result<(), ComponentError> {
        let added = JobTasksAdded::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &added.job_id)?;
        let tenant = &event.tenant_id;
        let is_laid_out = async || {
            let job = self.records.get(tenant, &job_id).await?;
            Ok::<_, ComponentError>(job.is_some_and(|job| job.laid_out))
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
    pub async fn early_additions(&self, tenant: &Name, job_id: &Name) -> Result<(), ComponentError> {
        for mark in self.records.early_additions(tenant, job_id).await? {
            let Some(event) = self.timeline.stored_at(tenant, &mark.event_sk).await? else { continue };
            let place = TimelineEvent { sk: mark.event_sk, event };
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
    ) -> Result<bool, ComponentError> {
        if self.records.has_addition(tenant, job_id, &event.event_id).await? {
            return Ok(true);
        }
        let mut retries = RequestRetry::default();
        loop {
            let ttl = kept_until(event.ttl);
            match self.records.count_addition(tenant, job_id, &event.event_id, count, ttl).await? {
                TaskAddition::Applied | TaskAddition::AddedBefore => return Ok(true),
                TaskAddition::Refused => return Ok(false),
                TaskAddition::Busy(why) => back_off(&mut retries, why).await?,
            }
        }
    }
}

/// The job that an event is about; the entity and the properties must agree.
pub(super) fn same_job(event: &Event, said: &str) -> Result<Name, Invalid> {
    if event.entity_id.as_str() != said {
        let reason = format!("`{said}` is not the event's entity, `{}`", event.entity_id);
        return Err(Invalid::new("jobId", reason));
    }
    ledgerline_event::dag::bare_id("jobId", said)
}
