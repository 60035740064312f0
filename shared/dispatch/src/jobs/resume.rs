//! Resuming a job: what failed runs again, in its next generation, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{Event, Invalid, Name, catalogue::JobResumed};
use ledgerline_ledger::{Emitter, control::keys};
use serde::Deserialize;

use super::{
    create::same_job,
    record::{JobEnd, JobNode, Outcome},
    start::Ready,
};
use crate::{
    Dispatch, DispatchError,
    claim::{Effects, Intent},
    conditional::number,
    transaction::{Cancelled, Hindrance, Patience, built, busy, cancelled},
};

impl Dispatch {
    /// Resumes a job in the context of `emitter`. Answers the tasks that run again.
    pub async fn resume_job(&self, emitter: &Emitter, job_id: &str) -> Result<Vec<Name>, DispatchError> {
        let tenant = emitter.origin().tenant.clone();
        let mut patience = Patience::default();
        loop {
            let job = self.known_job(&tenant, job_id).await?;
            if job.completed_at.is_some() {
                return Err(DispatchError::Refused(format!(
                    "the job `{job_id}` is completed: nothing failed in it"
                )));
            }
            let ends: Vec<JobEnd> = self.job_rows(&tenant, job_id, keys::ENDS).await?;
            let failed: Vec<JobEnd> =
                ends.into_iter().filter(|end| end.outcome == Outcome::Failed && end.counted).collect();
            let mut tasks: BTreeMap<String, u32> = BTreeMap::new();
            let ids = failed.iter().map(|end| end.task_id.as_str());
            let may_start = self.startable(&tenant, &job.job_id, ids).await?;
            let may_start: BTreeSet<&Name> = may_start.iter().map(|node| &node.task_id).collect();
            for end in failed.iter().filter(|end| may_start.contains(&end.task_id)) {
                // One that is running again has a record of the next generation.
                let next = keys::task_record(
                    &tenant,
                    &format!("{job_id}:{}", end.task_id),
                    end.generation.saturating_add(1),
                );
                if self.control.get::<serde_json::Value>(&next).await?.is_none() {
                    tasks.insert(end.task_id.to_string(), end.generation.saturating_add(1));
                }
            }
            if !failed.is_empty() && may_start.is_empty() {
                let reason = format!(
                    "what has failed in the job `{job_id}` depends on tasks that are not completed: resume it after them"
                );
                return Err(DispatchError::Refused(reason));
            }
            if tasks.is_empty() && !failed.is_empty() {
                let reason = format!("the failed tasks of the job `{job_id}` have been started again");
                return Err(DispatchError::Refused(reason));
            }
            if tasks.is_empty() {
                let state = job.state();
                return Err(DispatchError::Refused(format!(
                    "no task of the job `{job_id}` has failed: it is {}",
                    state.as_str()
                )));
            }
            let resumed = failed.iter().filter(|end| tasks.contains_key(end.task_id.as_str()));
            let resumed: Vec<Name> = resumed.map(|end| end.task_id.clone()).collect();
            let generation = job.generation + 1;
            let properties = JobResumed { job_id: job_id.to_owned(), generation, tasks };
            let emitter = emitter.within(|origin| origin.app = job.app_name.clone());
            let event = emitter.catalogued(job_id, properties).build_plain()?;
            let effects = Effects { events: vec![emitter.seal(event).await?], ..Effects::default() };
            let key = keys::job_resume_claim(&tenant, job_id, generation);
            let intent = Intent { key: key.clone(), effects, started: None, ttl: job.ttl };
            let claim = self.pending(&intent).await?;
            let put = self
                .control
                .put_for_transaction(&key, &claim)?
                .condition_expression("attribute_not_exists(PK)")
                .build()
                .map_err(built)?;
            let update = self
                .control
                .update_for_transaction(&keys::job(&tenant, job_id))
                .update_expression("SET generation = :next")
                .condition_expression("generation = :generation AND attribute_not_exists(completedAt)")
                .expression_attribute_values(":next", number(generation.into()))
                .expression_attribute_values(":generation", number(job.generation.into()))
                .build()
                .map_err(built)?;
            let transaction = self
                .control
                .transaction()
                .transact_items(TransactWriteItem::builder().put(put).build())
                .transact_items(TransactWriteItem::builder().update(update).build())
                .send()
                .await;
            match cancelled(transaction)? {
                None => {
                    self.repeat(&key).await?;
                    return Ok(resumed);
                }
                // It was done, and only the answer was lost.
                Some(Cancelled::Refused(_)) if self.is_claimed_by(&key, &claim).await? => {
                    self.repeat(&key).await?;
                    return Ok(resumed);
                }
                // The job may have changed since it was read: the next iteration looks up again what is left
                // to resume.
                Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
                Some(Cancelled::Refused(_)) => busy(&mut patience, Hindrance::Behind).await?,
            }
        }
    }

    /// Those of some tasks whose parents are completed. Another system may have ended a task that waited for its parents:
    /// such a one starts after them.
    async fn startable<'t>(
        &self,
        tenant: &Name,
        job_id: &Name,
        tasks: impl Iterator<Item = &'t str>,
    ) -> Result<Vec<JobNode>, DispatchError> {
        let mut nodes = self.nodes(tenant, job_id, tasks).await?;
        let parents = nodes.iter().flat_map(|node| node.depends_on.iter().map(String::as_str)).collect();
        let completed = self.completed(tenant, job_id, parents).await?;
        nodes.retain(|node| node.depends_on.iter().all(|parent| completed.contains(parent)));
        Ok(nodes)
    }

    /// Starts what a resume is about, once.
    pub(crate) async fn job_resumed(&self, event: &Event) -> Result<(), DispatchError> {
        let resumed = JobResumed::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &resumed.job_id)?;
        let tenant = &event.tenant_id;
        let ids = || resumed.tasks.keys().map(String::as_str);
        let ends = self.ends(tenant, &job_id, ids()).await?;
        let nodes = self.startable(tenant, &job_id, ids()).await?;
        let ready = nodes.into_iter().filter_map(|node| {
            let generation = *resumed.tasks.get(node.task_id.as_str())?;
            let failed = ends.iter().find(|end| end.task_id == node.task_id)?;
            let is_next = failed.outcome == Outcome::Failed
                && failed.counted
                && failed.generation.checked_add(1) == Some(generation);
            is_next.then_some(Ready { node, generation })
        });
        Box::pin(self.start_tasks(&job_id, ready.collect(), event)).await?;
        Box::pin(self.complete_or_list(&job_id, event)).await
    }
}
