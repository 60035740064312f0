//! Starting tasks of a job: the record of each is put if there is none, with what it will send inside, and the
//! job counts it as active in the same transaction.

use aws_sdk_dynamodb::types::TransactWriteItem;
use futures::future::try_join_all;
use ledgerline_event::{
    Event, Name,
    catalogue::{ErrorCategory, FailureSource, TaskFailed, TaskPending},
    dag::task_entity,
};
use ledgerline_ledger::{
    Emitter, Fault, StoreError,
    control::{Item, item, keys},
};
use serde_json::Value;

use super::{output::Outputs, record::JobNode};
use crate::{
    Dispatch, DispatchError,
    claim::{Effects, Intent},
    conditional::number,
    tasks::{Phase, TaskRecord, TaskStart, WithClaim, seal},
    transaction::{Cancelled, Patience, built, busy, cancelled},
};

/// Starts of one transaction…
const AT_ONCE: usize = 40;
/// …and their bytes: DynamoDB takes 4 MB.
const MAX_BYTES: usize = 2_000_000;

/// A task that nothing keeps from starting.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) node: JobNode,
    pub(crate) generation: u32,
}

/// A start, ready to be claimed.
struct Planned {
    intent: Intent,
    row: Item,
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
        for some in ready.chunks(AT_ONCE) {
            let mut outputs = self.outputs_for(&cause.tenant_id, job_id, some).await?;
            let mut bytes = 0;
            let mut batch: Vec<(Planned, bool)> = Vec::new();
            for ready in some {
                let planned = Box::pin(self.plan_start(&emitter, job_id, ready, &mut outputs, cause)).await?;
                bytes += planned.intent.effects.size();
                batch.push((planned, ready.generation > 1));
                if bytes > MAX_BYTES {
                    self.start_together(&cause.tenant_id, job_id, std::mem::take(&mut batch)).await?;
                    bytes = 0;
                }
            }
            self.start_together(&cause.tenant_id, job_id, batch).await?;
        }
        Ok(())
    }

    /// Plans a start. One that can never be made becomes a task that has failed: the job says so, and a resume tries
    /// again; the others are not held up by it.
    async fn plan_start(
        &self,
        emitter: &Emitter,
        job_id: &Name,
        ready: &Ready,
        outputs: &mut Outputs,
        cause: &Event,
    ) -> Result<Planned, DispatchError> {
        match self.plan_sound_start(emitter, job_id, ready, outputs, cause).await {
            Err(DispatchError::Invalid(invalid)) => {
                self.plan_failed_start(emitter, job_id, ready, cause, invalid.to_string()).await
            }
            Err(DispatchError::Store(error)) if error.fault == Fault::Rejected => {
                self.plan_failed_start(emitter, job_id, ready, cause, error.to_string()).await
            }
            other => other,
        }
    }

    async fn plan_sound_start(
        &self,
        emitter: &Emitter,
        job_id: &Name,
        ready: &Ready,
        outputs: &mut Outputs,
        cause: &Event,
    ) -> Result<Planned, DispatchError> {
        let Ready { node, generation } = ready;
        let mut input = self.node_input(&cause.tenant_id, job_id, node).await?;
        if !node.depends_on.is_empty() {
            let given = self.given_by(&cause.tenant_id, &node.depends_on, outputs).await?;
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
            has_record: true,
        };
        let (message, effects) = self.task_effects(emitter, start).await?;
        let record = self.new_record(&message, None, self.now()).await?;
        self.planned(cause, request_id, *generation, effects, record).await
    }

    async fn plan_failed_start(
        &self,
        emitter: &Emitter,
        job_id: &Name,
        ready: &Ready,
        cause: &Event,
        reason: String,
    ) -> Result<Planned, DispatchError> {
        let Ready { node, generation } = ready;
        let request_id = task_entity(job_id, &node.task_id)?;
        let emitter = emitter.within(|origin| origin.context.generation = Some(*generation));
        let pending = TaskPending {
            request_id: request_id.to_string(),
            job_id: Some(job_id.to_string()),
            name: node.name.clone(),
            depends_on: Some(node.depends_on.clone()),
        };
        let failed = TaskFailed {
            request_id: request_id.to_string(),
            job_id: Some(job_id.to_string()),
            error: format!("it cannot be started: {reason}"),
            error_category: ErrorCategory::Validation,
            retry_count: 0,
            source: FailureSource::Worker,
        };
        let pending = seal(&emitter, &request_id, pending).await?;
        let failed = seal(&emitter, &request_id, failed).await?;
        let record = TaskRecord::failed_at_once(failed.event_id().clone(), self.now());
        let effects = Effects { events: vec![pending, failed], ..Effects::default() };
        self.planned(cause, request_id, *generation, effects, record).await
    }

    async fn planned(
        &self,
        cause: &Event,
        request_id: Name,
        generation: u32,
        effects: Effects,
        mut record: TaskRecord,
    ) -> Result<Planned, DispatchError> {
        record.in_job = true;
        let key = keys::task_record(&cause.tenant_id, &request_id, generation);
        // A task may wait for its worker for longer than its cause is kept: its end says how long the record is kept.
        let ttl = cause.ttl.filter(|_| record.phase == Phase::Ended);
        let intent = Intent { key, effects, started: Some(request_id), ttl };
        let claim = self.pending(&intent).await?;
        let row = item(&intent.key, &WithClaim { record: &record, claim: &claim })?;
        Ok(Planned { intent, row, claim_id: claim.claim_id })
    }

    /// Claims starts with the job's count of active tasks, and sends what they send.
    async fn start_together(
        &self,
        tenant: &Name,
        job_id: &Name,
        mut starts: Vec<(Planned, bool)>,
    ) -> Result<(), DispatchError> {
        let mut patience = Patience::default();
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
                            // It was started before, by a process that may have died before it sent the effects.
                            true => drop(self.repeat(&start.0.intent.key).await?),
                            false => rest.push(start),
                        }
                    }
                    starts = rest;
                }
                Some(Cancelled::Busy(why)) => busy(&mut patience, why).await?,
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
}
