//! Starting tasks of a job: the record of each is put if there is none, with what it will send inside, and the
//! job counts it as active in the same transaction.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::types::TransactWriteItem;
use futures::future::try_join_all;
use ledgerline_event::{Event, Name, dag::task_entity, overflow};
use ledgerline_ledger::{Emitter, StoreError, control::keys};
use serde_json::{Map, Value};

use super::{
    outcome::{Cancelled, built, busy, cancelled},
    record::{JobNode, Outcome},
};
use crate::{
    Dispatch, DispatchError,
    claim::{Effects, Intent},
    conditional::number,
    tasks::{TaskStart, WithClaim, new_record},
};

/// Starts of one transaction…
const AT_ONCE: usize = 40;
/// …and their bytes: DynamoDB takes 4 MB.
const MAX_BYTES: usize = 2_000_000;
/// Outputs that are fetched at the same time.
const FETCHED_AT_ONCE: usize = 16;

/// A task that nothing keeps from starting.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) node: JobNode,
    pub(crate) generation: u32,
}

/// A start, ready to be claimed.
struct Planned {
    intent: Intent,
    row: ledgerline_ledger::control::Item,
    claim_id: Option<Name>,
}

impl Dispatch {
    /// Starts tasks, each once. `cause` is the event that led to it.
    pub(crate) async fn start_tasks(
        &self,
        job_id: &Name,
        ready: Vec<Ready>,
        cause: &Event,
    ) -> Result<(), DispatchError> {
        let emitter = self.emitter.handling(cause).within(|origin| origin.app = cause.app_name.clone());
        let mut ready = ready.into_iter().peekable();
        while ready.peek().is_some() {
            let some: Vec<Ready> = ready.by_ref().take(AT_ONCE).collect();
            let outputs = self.outputs(&cause.tenant_id, job_id, &some).await?;
            let plans = some.iter().map(|ready| self.plan_start(&emitter, job_id, ready, &outputs, cause));
            let plans = try_join_all(plans).await?;
            let mut bytes = 0;
            let mut batch: Vec<(Planned, bool)> = Vec::new();
            for (planned, ready) in plans.into_iter().zip(&some) {
                let size = planned.intent.effects.size();
                if bytes + size > MAX_BYTES && !batch.is_empty() {
                    self.start_together(&cause.tenant_id, job_id, std::mem::take(&mut batch)).await?;
                    bytes = 0;
                }
                bytes += size;
                batch.push((planned, ready.generation > 1));
            }
            self.start_together(&cause.tenant_id, job_id, batch).await?;
        }
        Ok(())
    }

    async fn plan_start(
        &self,
        emitter: &Emitter,
        job_id: &Name,
        ready: &Ready,
        outputs: &BTreeMap<String, Value>,
        cause: &Event,
    ) -> Result<Planned, DispatchError> {
        let Ready { node, generation } = ready;
        let mut input = self.node_input(node).await?;
        if !node.depends_on.is_empty() {
            let output = |parent: &String| {
                (parent.clone(), outputs.get(parent.as_str()).cloned().unwrap_or(Value::Null))
            };
            let given: Map<String, Value> = node.depends_on.iter().map(output).collect();
            input.insert("dependencyOutputs".into(), Value::Object(given));
        }
        let request_id = task_entity(job_id, &node.task_id)?;
        let start = TaskStart {
            request_id: request_id.clone(),
            job: Some((job_id.clone(), node.task_id.clone())),
            name: node.name.clone(),
            depends_on: Some(node.depends_on.clone()),
            input,
            generation: *generation,
            timeout_ms: node.timeout_ms,
            max_attempts: node.max_attempts,
        };
        let (message, effects) = self.task_effects(emitter, start).await?;
        let key = keys::task_record(&cause.tenant_id, &request_id, *generation);
        let intent = Intent { key, effects, started: Some(request_id), ttl: cause.ttl };
        let claim = self.pending(&intent).await?;
        let mut record = new_record(&message, None, self.now())?;
        record.in_job = true;
        let row =
            ledgerline_ledger::control::item(&intent.key, &WithClaim { record: &record, claim: &claim })?;
        Ok(Planned { intent, row, claim_id: claim.claim_id })
    }

    /// Claims starts with the job's count of active tasks, and sends what they send.
    async fn start_together(
        &self,
        tenant: &Name,
        job_id: &Name,
        mut starts: Vec<(Planned, bool)>,
    ) -> Result<(), DispatchError> {
        let mut attempt = 0;
        while !starts.is_empty() {
            let again = starts.iter().filter(|(_, again)| *again).count();
            let mut transaction = self.control.transaction();
            for (planned, _) in &starts {
                let put = self
                    .control
                    .put_row_for_transaction(planned.row.clone())
                    .condition_expression("attribute_not_exists(PK)")
                    .build()
                    .map_err(built)?;
                transaction = transaction.transact_items(TransactWriteItem::builder().put(put).build());
            }
            let job = self
                .control
                .update_for_transaction(&keys::job(tenant, job_id))
                .update_expression("SET active = active + :started, failed = failed - :again")
                .condition_expression("attribute_exists(PK)")
                .expression_attribute_values(":started", number(starts.len() as u64))
                .expression_attribute_values(":again", number(again as u64))
                .build()
                .map_err(built)?;
            let transaction =
                transaction.transact_items(TransactWriteItem::builder().update(job).build()).send().await;
            match cancelled(transaction)? {
                None => break,
                Some(Cancelled::Refused(positions)) if positions.contains(&starts.len()) => {
                    return Err(StoreError::unreadable("TransactWriteItems", "the job is gone").into());
                }
                Some(Cancelled::Refused(positions)) => {
                    let mut rest = Vec::new();
                    for (position, start) in starts.into_iter().enumerate() {
                        match positions.contains(&position) {
                            // Somebody started it, and may not have come to sending.
                            true => drop(self.repeat(&start.0.intent.key).await?),
                            false => rest.push(start),
                        }
                    }
                    starts = rest;
                }
                Some(Cancelled::Busy) => attempt = busy(attempt).await?,
            }
        }
        let mut all = Effects::default();
        for (planned, _) in &mut starts {
            let effects = std::mem::take(&mut planned.intent.effects);
            all.events.extend(effects.events);
            all.messages.extend(effects.messages);
        }
        self.send(all).await?;
        let finish =
            starts.iter().map(|(planned, _)| self.finish(&planned.intent.key, planned.claim_id.as_deref()));
        try_join_all(finish).await?;
        Ok(())
    }

    /// What the parents of some tasks have put out.
    async fn outputs(
        &self,
        tenant: &Name,
        job_id: &Name,
        ready: &[Ready],
    ) -> Result<BTreeMap<String, Value>, DispatchError> {
        let parents: BTreeSet<&str> =
            ready.iter().flat_map(|ready| ready.node.depends_on.iter().map(String::as_str)).collect();
        if parents.is_empty() {
            return Ok(BTreeMap::new());
        }
        let ends = self.ends(tenant, job_id, parents).await?;
        let completed: Vec<_> = ends.into_iter().filter(|end| end.outcome == Outcome::Completed).collect();
        let mut outputs = BTreeMap::new();
        for some in completed.chunks(FETCHED_AT_ONCE) {
            let fetched = try_join_all(some.iter().map(|end| self.output(tenant, &end.event_sk))).await?;
            outputs.extend(some.iter().map(|end| end.task_id.to_string()).zip(fetched));
        }
        Ok(outputs)
    }

    async fn output(&self, tenant: &Name, event_sk: &str) -> Result<Value, DispatchError> {
        let unreadable =
            |what: &str| StoreError::unreadable("reading an output", format!("{event_sk} {what}"));
        let event = self.timeline.stored_at(tenant, event_sk).await?;
        let mut event = event.ok_or_else(|| unreadable("is gone"))?;
        self.timeline.restore(&mut event).await?;
        if overflow::marker(&event.properties).is_some() {
            return Err(unreadable("has lost what overflowed to S3").into());
        }
        Ok(event.properties.remove("output").unwrap_or(Value::Null))
    }
}
