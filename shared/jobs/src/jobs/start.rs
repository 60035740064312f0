//! Starting tasks of a job: the record of each is put if there is none, with what it will send inside, and the
//! job counts it as active in the same transaction.

use futures::future::try_join_all;
use ledgerline_event::{
    Event, Millis, Name,
    catalogue::{ErrorCategory, FailureSource, TaskFailed, TaskPending},
    dag::task_entity,
};
use ledgerline_ledger::Emitter;
use ledgerline_outbox::{ComponentError, Effects, PendingEffects};
use ledgerline_store::{
    Fault, JobNode, Phase, RequestRetry, StartsClaim, StoreError, TaskRecord, TaskStartRow, back_off, keys,
};
use serde_json::Value;

use super::dependency_outputs::Outputs;
use crate::{
    JobDriver,
    tasks::{MessageStorage, TaskStart, seal},
};

/// The most starts of one transaction…
const AT_ONCE: usize = 40;
/// …and their bytes: DynamoDB takes 4 MB.
const MAX_BYTES: usize = 2_000_000;

/// A task that nothing keeps from starting.
#[derive(Clone, Debug)]
pub struct Ready {
    pub node: JobNode,
    pub generation: u32,
}

/// A start, ready to be claimed.
struct Planned {
    effects: Effects,
    row: TaskStartRow,
}

impl JobDriver {
    /// Starts tasks, each once. `cause` is the event that led to it.
    pub async fn start_tasks(
        &self,
        job_id: &Name,
        ready: Vec<Ready>,
        cause: &Event,
    ) -> Result<(), ComponentError> {
        let emitter = self.emitter.handling(cause).with_scope(|scope| scope.app = cause.app_name.clone());
        for some in ready.chunks(AT_ONCE) {
            let mut outputs = self.inputs.outputs_for(&cause.tenant_id, job_id, some).await?;
            let mut bytes = 0;
            let mut batch: Vec<Planned> = Vec::new();
            for ready in some {
                let planned = Box::pin(self.plan_start(&emitter, job_id, ready, &mut outputs, cause)).await?;
                bytes += planned.effects.size();
                batch.push(planned);
                if bytes > MAX_BYTES {
                    self.start_together(&cause.tenant_id, job_id, std::mem::take(&mut batch)).await?;
                    bytes = 0;
                }
            }
            self.start_together(&cause.tenant_id, job_id, batch).await?;
        }
        Ok(())
    }

    /// Plans a start. A task that can never start is planned as failed at once: the job shows the failure, a resume
    /// retries it, and the other tasks start.
    async fn plan_start(
        &self,
        emitter: &Emitter,
        job_id: &Name,
        ready: &Ready,
        outputs: &mut Outputs,
        cause: &Event,
    ) -> Result<Planned, ComponentError> {
        match self.plan_sound_start(emitter, job_id, ready, outputs, cause).await {
            Err(ComponentError::Invalid(invalid)) => {
                self.plan_failed_start(emitter, job_id, ready, cause, invalid.to_string()).await
            }
            Err(ComponentError::Store(error)) if error.fault == Fault::Rejected => {
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
    ) -> Result<Planned, ComponentError> {
        let Ready { node, generation } = ready;
        let mut input = self.inputs.node_input(&cause.tenant_id, job_id, node).await?;
        if !node.depends_on.is_empty() {
            let given = self.inputs.outputs_of(&cause.tenant_id, &node.depends_on, outputs).await?;
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
            message_storage: MessageStorage::InRecord,
        };
        let (message, effects) = self.tasks.task_effects(emitter, start).await?;
        let record = self.tasks.new_record(&message, None, self.emitter.now()).await?;
        self.planned(cause, request_id, *generation, effects, record).await
    }

    async fn plan_failed_start(
        &self,
        emitter: &Emitter,
        job_id: &Name,
        ready: &Ready,
        cause: &Event,
        reason: String,
    ) -> Result<Planned, ComponentError> {
        let Ready { node, generation } = ready;
        let request_id = task_entity(job_id, &node.task_id)?;
        let emitter = emitter.with_scope(|scope| scope.context.generation = Some(*generation));
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
        let record = failed_at_once(failed.event_id().clone(), self.emitter.now());
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
    ) -> Result<Planned, ComponentError> {
        record.in_job = true;
        let key = keys::task_record(&cause.tenant_id, &request_id, generation);
        // A task may wait for its worker for longer than its cause is kept: its end says how long the record is kept.
        let ttl = cause.ttl.filter(|_| record.phase == Phase::Ended);
        let pending = PendingEffects { key, effects, started: Some(request_id), ttl };
        let claim = self.outbox.new_claim(&pending).await?;
        let row = TaskStartRow { key: pending.key, record, claim, again: generation > 1 };
        Ok(Planned { effects: pending.effects, row })
    }

    /// Claims starts with the job's count of active tasks, and sends what they send.
    async fn start_together(
        &self,
        tenant: &Name,
        job_id: &Name,
        mut starts: Vec<Planned>,
    ) -> Result<(), ComponentError> {
        let mut retries = RequestRetry::default();
        while !starts.is_empty() {
            let rows: Vec<&TaskStartRow> = starts.iter().map(|planned| &planned.row).collect();
            match self.records.start_tasks(tenant, job_id, &rows).await? {
                StartsClaim::Applied => break,
                StartsClaim::JobMissing => {
                    return Err(StoreError::unreadable("TransactWriteItems", "the job is missing").into());
                }
                StartsClaim::StartedBefore(positions) => {
                    let mut rest = Vec::new();
                    for (position, start) in starts.into_iter().enumerate() {
                        match positions.contains(&position) {
                            // Another process started it, and may have died before it sent the effects.
                            true => drop(self.outbox.resume(&start.row.key).await?),
                            false => rest.push(start),
                        }
                    }
                    starts = rest;
                }
                StartsClaim::Busy(why) => back_off(&mut retries, why).await?,
            }
        }
        let mut all = Effects::default();
        for planned in &mut starts {
            let effects = std::mem::take(&mut planned.effects);
            all.events.extend(effects.events);
            all.messages.extend(effects.messages);
        }
        self.outbox.send(all).await?;
        let finish = starts
            .iter()
            .map(|Planned { row, .. }| self.outbox.finish(&row.key, row.claim.claim_id.as_deref()));
        try_join_all(finish).await?;
        Ok(())
    }
}

/// The record of a task that failed before it could start.
fn failed_at_once(end_event: Name, now: Millis) -> TaskRecord {
    TaskRecord {
        phase: Phase::Ended,
        end_event: Some(end_event),
        created_at: Some(now),
        ..TaskRecord::default()
    }
}
