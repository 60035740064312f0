//! The drainer `jobs` sets a job up when it reads the job's `Job Created` event, from any sender.

use futures::future::try_join_all;
use ledgerline_event::{
    Event, Invalid, Name,
    catalogue::{JobCreated, JobTask},
    dag::{Node, check_job},
};
use ledgerline_ledger::control::{item, keys};
use serde::Deserialize;

use super::{
    outcome::Counted,
    record::{JobEnd, JobRecord, Outcome, kept_until},
};
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number},
};

impl Dispatch {
    /// Puts the tasks of a new job in place and starts those that wait for nothing.
    pub(crate) async fn job_created(&self, event: &Event) -> Result<(), DispatchError> {
        let created = JobCreated::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &created.job_id)?;
        check_job(&job_id, created.tasks.iter().map(Node::from))?;
        let tenant = &event.tenant_id;
        let record = JobRecord::new(tenant, &job_id, &created.request_id, event, created.tasks.len());
        let key = keys::job(tenant, &job_id);
        if !self.control.put_new(&key, &record).await? {
            let there = self.job_record(tenant, &job_id).await?;
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
        let update = self
            .control
            .update(&key)
            .condition_expression("attribute_exists(PK)")
            .expression_attribute_values(":true", aws_sdk_dynamodb::types::AttributeValue::Bool(true));
        // The submitter does not know how long events are kept: only the saved event has the expiry.
        let update = match kept_until(event.ttl) {
            None => update.update_expression("SET laidOut = :true"),
            Some(ttl) => update
                .update_expression("SET laidOut = :true, #ttl = :ttl")
                .expression_attribute_names("#ttl", "ttl")
                .expression_attribute_values(":ttl", number(ttl.get())),
        };
        match conditionally::<JobRecord>(update).await? {
            Answer::Done(_) | Answer::Refused(_) => self.early_additions(tenant, &job_id).await,
        }
    }

    /// Puts tasks in place, counts those that ended before the job knew them, and starts those that wait for
    /// nothing.
    pub(crate) async fn lay_out(
        &self,
        job_id: &Name,
        tasks: &[JobTask],
        event: &Event,
    ) -> Result<(), DispatchError> {
        let tenant = &event.tenant_id;
        let new = try_join_all(tasks.iter().map(|task| self.new_node(job_id, task, event))).await?;
        let (nodes, inputs): (Vec<_>, Vec<_>) = new.into_iter().map(|new| (new.node, new.input)).unzip();
        self.control.put_all(inputs.into_iter().flatten().collect()).await?;
        let rows = nodes.iter().map(|node| item(&keys::job_node(tenant, job_id, &node.task_id), node));
        self.control.put_all(rows.collect::<Result<_, _>>()?).await?;
        // Put the tasks, then read the ends: a process that found no task for an end has noted that end before.
        let ids = nodes.iter().map(|node| node.task_id.as_str());
        let early: Vec<JobEnd> =
            self.ends(tenant, job_id, ids).await?.into_iter().filter(|end| !end.counted).collect();
        let counted = early.iter().map(|end| Counted { end: end.clone(), was_active: false });
        self.count_ends(tenant, job_id, counted.collect()).await?;
        let waiting = nodes.into_iter().map(|node| (node, 0)).collect();
        Box::pin(self.advance(job_id, waiting, event)).await?;
        let failed = early.iter().filter(|end| end.outcome == Outcome::Failed);
        let failed = failed.map(|end| (event, &end.task_id, end.generation)).collect();
        Box::pin(self.tell_failures(job_id, failed)).await?;
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
