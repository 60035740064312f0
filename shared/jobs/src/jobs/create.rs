//! The drainer `jobs` sets a job up when it reads the job's `Job Created` event, from any sender.

use futures::future::try_join_all;
use ledgerline_event::{
    Event, Invalid, Name,
    catalogue::{JobCreated, JobTask},
    dag::{Node, check_job},
};
use ledgerline_outbox::DispatchError;
use ledgerline_store::{JobEnd, JobUpdate, PutNew, TaskOutcome};
use serde::Deserialize;

use super::{
    counters::Counted,
    new_records::{kept_until, new_job},
};
use crate::JobDriver;

impl JobDriver {
    /// Puts the tasks of a new job in place and starts those that wait for nothing.
    pub async fn job_created(&self, event: &Event) -> Result<(), DispatchError> {
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
    ) -> Result<(), DispatchError> {
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
        self.count_ends(tenant, job_id, counted.collect()).await?;
        let waiting = nodes.into_iter().map(|node| (node, 0)).collect();
        Box::pin(self.advance(job_id, waiting, event)).await?;
        let failed = early.iter().filter(|end| end.outcome == TaskOutcome::Failed);
        let failed = failed.map(|end| (event, &end.task_id, end.generation)).collect();
        Box::pin(self.emit_failures(job_id, failed)).await?;
        Box::pin(self.complete_or_list(job_id, event)).await
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
