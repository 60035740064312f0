//! The drainer `jobs` adds tasks to a job when it reads a `Job Tasks Added` event of that job, from any sender.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::{
    Event, Invalid, Name,
    catalogue::JobTasksAdded,
    dag::{Node, check_added},
};
use ledgerline_ledger::{Place, control::keys};
use serde::{Deserialize, Serialize};

use super::{create::same_job, record::kept_until};
use crate::transaction::{Cancelled, Patience, built, busy, cancelled};
use crate::{Dispatch, DispatchError, conditional::number};

/// An addition that came before its job.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EarlyAddition {
    event_sk: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl: Option<ledgerline_event::Seconds>,
}

#[derive(Serialize)]
struct Addition {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<ledgerline_event::Seconds>,
}

impl Dispatch {
    /// Puts added tasks in place and starts those that wait for nothing.
    pub(crate) async fn tasks_added(&self, event: &Event) -> Result<(), DispatchError> {
        let added = JobTasksAdded::deserialize(&event.properties)
            .map_err(|error| Invalid::new("properties", error.to_string()))?;
        let job_id = same_job(event, &added.job_id)?;
        let tenant = &event.tenant_id;
        let is_laid_out = async || {
            let job = self.job_record(tenant, &job_id).await?;
            Ok::<_, DispatchError>(job.is_some_and(|job| job.laid_out))
        };
        if !is_laid_out().await? {
            // Put the mark, then look again: the process that lays the job out sets `laidOut`, and then reads
            // the marks.
            let mark = EarlyAddition { event_sk: event.keys().sk().to_owned(), ttl: kept_until(event.ttl) };
            self.control.put_new(&keys::early_addition(tenant, &job_id, &event.event_id), &mark).await?;
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
        let there = self.nodes(tenant, &job_id, mentioned).await?;
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
    pub(crate) async fn early_additions(&self, tenant: &Name, job_id: &Name) -> Result<(), DispatchError> {
        let early: Vec<EarlyAddition> = self.job_rows(tenant, job_id, keys::EARLY_ADDITIONS).await?;
        for mark in early {
            let Some(event) = self.timeline.stored_at(tenant, &mark.event_sk).await? else { continue };
            let place = Place { sk: mark.event_sk, event };
            Box::pin(self.take_up(&place)).await?;
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
        let key = keys::job_addition(tenant, job_id, &event.event_id);
        if self.control.get::<serde_json::Value>(&key).await?.is_some() {
            return Ok(true);
        }
        let mut patience = Patience::default();
        loop {
            let put = self
                .control
                .put_for_transaction(&key, &Addition { ttl: kept_until(event.ttl) })?
                .condition_expression("attribute_not_exists(PK)")
                .build()
                .map_err(built)?;
            let job = self.more_tasks(tenant, job_id, count).build().map_err(built)?;
            let transaction = self
                .control
                .transaction()
                .transact_items(TransactWriteItem::builder().put(put).build())
                .transact_items(TransactWriteItem::builder().update(job).build())
                .send()
                .await;
            match cancelled(transaction)? {
                None => return Ok(true),
                Some(Cancelled::Refused(positions)) => return Ok(positions.contains(&0)),
                Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
            }
        }
    }

    /// The job gets more tasks, if it is open.
    pub(super) fn more_tasks(
        &self,
        tenant: &Name,
        job_id: &Name,
        count: usize,
    ) -> aws_sdk_dynamodb::types::builders::UpdateBuilder {
        self.control
            .update_for_transaction(&keys::job(tenant, job_id))
            .update_expression("SET #total = #total + :count")
            .condition_expression("attribute_exists(PK) AND attribute_not_exists(completedAt)")
            .expression_attribute_names("#total", "total")
            .expression_attribute_values(":count", number(count as u64))
    }
}
