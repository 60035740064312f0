//! Resuming a job: what failed runs again, in its next generation, and nothing else does.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{Event, Invalid, Name, catalogue::JobResumed};
use ledgerline_ledger::{Emitter, control::keys};
use serde::Deserialize;

use super::{
    create::same_job,
    record::{JobEnd, Outcome},
    start::Ready,
};
use crate::{
    Dispatch, DispatchError,
    claim::{Effects, Intent},
    conditional::number,
    transaction::{Cancelled, built, busy, cancelled},
};

impl Dispatch {
    /// Resumes a job in the context of `emitter`. Answers the tasks that run again.
    pub async fn resume_job(&self, emitter: &Emitter, job_id: &str) -> Result<Vec<Name>, DispatchError> {
        let tenant = emitter.origin().tenant.clone();
        let mut attempt = 0;
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
            for end in &failed {
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
                // Somebody else resumed it: what is left to resume is looked up again.
                Some(Cancelled::Refused(_) | Cancelled::Busy) => attempt = busy(attempt).await?,
            }
        }
    }

    /// Starts what a resume is about, once.
    pub(crate) async fn job_resumed(&self, event: &Event) -> Result<(), DispatchError> {
        let resumed = JobResumed::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &resumed.job_id)?;
        let tenant = &event.tenant_id;
        let ids = || resumed.tasks.keys().map(String::as_str);
        let ends = self.ends(tenant, &job_id, ids()).await?;
        let nodes = self.nodes(tenant, &job_id, ids()).await?;
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
