//! The end of a task. A generation has at most one, even if a worker wakes up late: a process writes the
//! exact terminal event into the record on condition of the attempt, and only then sends it.

use ledgerline_event::{
    Event, MAX_AHEAD_MS, Millis, Name,
    catalogue::{ErrorCategory, FailureSource, Signal, TaskCompleted, TaskFailed, TaskTimeout, Usage},
};
use ledgerline_ledger::{
    SealedEvent,
    control::keys::{self, ControlKey},
};
use serde_json::{Value, json};

use super::{
    TaskLease,
    message::seal,
    record::{Phase, TaskRecord},
};
use crate::{
    Dispatch, DispatchError,
    claim::{Claim, Effects, Intent},
    conditional::{Answer, conditionally, number, text},
    idempotency::free_at,
};

/// How an attempt ended for good.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum TaskEnd {
    Completed { output: Value, duration_ms: u64, exit_code: i32, usage: Option<Usage> },
    Failed { error: String, category: ErrorCategory },
    TimedOut { timeout_ms: u64, elapsed_ms: u64, signal: Signal },
}

impl TaskEnd {
    const fn event_type(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "Task Completed",
            Self::Failed { .. } => "Task Failed",
            Self::TimedOut { .. } => "Task Timeout",
        }
    }
}

/// What became of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndAnswer {
    /// It is the end of the task, and its event is sent.
    Done,
    /// This attempt did not hold the task any more, or the task had ended. A `Task End Refused` event says so.
    Refused,
}

/// On what condition a record may end, and the end's event.
pub(super) struct Ending<'a> {
    pub(super) key: ControlKey,
    pub(super) event: SealedEvent,
    pub(super) condition: &'a str,
    /// What else is set.
    pub(super) also: &'a str,
    pub(super) values: Vec<(&'a str, aws_sdk_dynamodb::types::AttributeValue)>,
}

impl Dispatch {
    /// Ends a task that this attempt holds, and emits its terminal event.
    pub async fn end(&self, lease: &TaskLease, end: TaskEnd) -> Result<EndAnswer, DispatchError> {
        let message = &lease.message;
        let emitter = self.task_emitter(lease);
        let request_id = message.request_id.to_string();
        let job_id = message.job_id.as_ref().map(ToString::to_string);
        let event_type = end.event_type();
        let event = match end {
            TaskEnd::Completed { output, duration_ms, exit_code, usage } => {
                let completed = TaskCompleted { request_id, job_id, output, duration_ms, exit_code, usage };
                seal(&emitter, &message.request_id, completed).await?
            }
            TaskEnd::Failed { error, category } => {
                let failed = TaskFailed {
                    request_id,
                    job_id,
                    error,
                    error_category: category,
                    retry_count: lease.counted,
                    source: FailureSource::Worker,
                };
                seal(&emitter, &message.request_id, failed).await?
            }
            TaskEnd::TimedOut { timeout_ms, elapsed_ms, signal } => {
                let timeout = TaskTimeout { request_id, job_id, timeout_ms, elapsed_ms, signal };
                seal(&emitter, &message.request_id, timeout).await?
            }
        };
        let ending = Ending {
            key: keys::task_record(&message.tenant_id, &message.request_id, message.generation),
            event,
            condition: "phase = :running AND attempt = :attempt",
            values: vec![(":running", text("running")), (":attempt", number(lease.attempt.into()))],
            also: ", endAttempt = :attempt",
        };
        let key = ending.key.clone();
        let Err(there) = self.claim_end(ending).await? else { return Ok(EndAnswer::Done) };
        // This very attempt ended it: the answer to an earlier call was lost, or that call did not come to sending.
        if there.as_ref().is_some_and(|record| record.end_attempt == Some(lease.attempt)) {
            self.repeat(&key).await?;
            return Ok(EndAnswer::Done);
        }
        self.tell_refused_end(lease, Some(event_type), there).await?;
        Ok(EndAnswer::Refused)
    }

    /// Emits that a worker has lost its task: whatever that attempt did counts for nothing.
    pub async fn tell_lost(&self, lease: &TaskLease) -> Result<(), DispatchError> {
        let message = &lease.message;
        let key = keys::task_record(&message.tenant_id, &message.request_id, message.generation);
        let there = self.control.get(&key).await?;
        self.tell_refused_end(lease, None, there).await
    }

    async fn tell_refused_end(
        &self,
        lease: &TaskLease,
        outcome: Option<&str>,
        there: Option<TaskRecord>,
    ) -> Result<(), DispatchError> {
        let request_id = &lease.message.request_id;
        let taken_over = there.as_ref().filter(|record| record.attempt != lease.attempt);
        let refused = json!({
            "requestId": request_id,
            "outcome": outcome,
            "attempt": lease.attempt,
            "workerId": lease.worker_id,
            "endedBy": there.as_ref().and_then(|record| record.end_event.clone()),
            "takenOverBy": taken_over.and_then(|record| record.worker_id.clone()),
        });
        let emitter = self.task_emitter(lease);
        let draft = emitter.event("Task End Refused").entity("TASK", request_id.as_str());
        draft.properties(refused).emit().await?;
        Ok(())
    }

    /// Ends a record on a condition and sends the event; the record as it is if the condition does not hold.
    pub(super) async fn claim_end(
        &self,
        ending: Ending<'_>,
    ) -> Result<Result<(), Option<TaskRecord>>, DispatchError> {
        let Ending { key, event, condition, also, values } = ending;
        let event_id = event.event_id().clone();
        let effects = Effects { events: vec![event], ..Effects::default() };
        let intent = Intent { key: key.clone(), effects, started: None, ttl: None };
        let claim = self.pending(&intent).await?;
        loop {
            let update = self
                .control
                .update(&key)
                .update_expression(format!(
                    "SET phase = :ended, endEvent = :endEvent{also}, {} REMOVE leaseUntil, takenBy, message, messageKey",
                    Claim::SET
                ))
                .condition_expression(format!(
                    "{condition} AND (attribute_not_exists(#state) OR #state <> :pending)"
                ))
                .expression_attribute_names("#state", "state")
                .expression_attribute_values(":ended", text("ended"))
                .expression_attribute_values(":endEvent", text(&event_id));
            let values = values.iter().cloned().chain(claim.values());
            let update =
                values.fold(update, |update, (name, value)| update.expression_attribute_values(name, value));
            match conditionally::<TaskRecord>(update).await? {
                Answer::Done(_) => {
                    self.send(intent.effects).await?;
                    self.finish(&key, claim.claim_id.as_deref()).await?;
                    return Ok(Ok(()));
                }
                // Ours, and only the answer was lost.
                Answer::Refused(Some(record)) if record.end_event.as_ref() == Some(&event_id) => break,
                // Something that it claimed before has not been sent: that comes first.
                Answer::Refused(Some(record))
                    if record.phase != Phase::Ended && record.has_pending_claim() =>
                {
                    self.repeat(&key).await?;
                }
                Answer::Refused(there) => return Ok(Err(there)),
            }
        }
        self.repeat(&key).await?;
        Ok(Ok(()))
    }

    /// Ends the record of a task by a terminal event of the ledger, unless another event has ended it.
    /// Answers the record if this event is the end of its generation.
    pub(crate) async fn observe_end(
        &self,
        event: &Event,
        generation: u32,
    ) -> Result<Option<TaskRecord>, DispatchError> {
        let key = keys::task_record(&event.tenant_id, &event.entity_id, generation);
        let is_it = |record: &TaskRecord| record.end_event.as_ref() == Some(&event.event_id);
        let record: Option<TaskRecord> = self.control.get(&key).await?;
        if record.is_none() && !self.may_begin(event, generation).await? {
            return Ok(None);
        }
        match record {
            Some(record) if record.end_event.is_some() && !is_it(&record) => return Ok(None),
            // Only the saved event has the expiry: a record that ended without one gets it below.
            Some(record) if record.end_event.is_some() && (record.ttl.is_some() || event.ttl.is_none()) => {
                return Ok(Some(record));
            }
            _ => {}
        }
        let mut set = "SET phase = :ended, endEvent = :endEvent".to_owned();
        let mut update = self
            .control
            .update(&key)
            .condition_expression("attribute_not_exists(endEvent) OR endEvent = :endEvent")
            .expression_attribute_values(":ended", text("ended"))
            .expression_attribute_values(":endEvent", text(&event.event_id));
        if let Some(ttl) = event.ttl {
            // The id is a key that holds for 30 days, however soon events go.
            let ttl = ttl.max(free_at(self.now()));
            set.push_str(", #ttl = if_not_exists(#ttl, :ttl)");
            update = update
                .expression_attribute_names("#ttl", "ttl")
                .expression_attribute_values(":ttl", number(ttl.get()));
        }
        let update =
            update.update_expression(format!("{set} REMOVE leaseUntil, takenBy, message, messageKey"));
        Ok(match conditionally::<TaskRecord>(update).await? {
            Answer::Done(record) => Some(record),
            Answer::Refused(_) => None,
        })
    }

    /// Whether a task that has no record of this generation may have one: only if it has none at all, and then it is the
    /// first. A task of a job begins with generation 1: only the job opens others.
    async fn may_begin(&self, event: &Event, generation: u32) -> Result<bool, DispatchError> {
        let in_job = ledgerline_event::dag::split_task_entity(&event.entity_id).is_some();
        Ok(generation == 1 || {
            let known = self.generations(&event.tenant_id, &event.entity_id).await?;
            known.is_empty() && generation > 0 && !in_job
        })
    }

    /// The generation that a terminal event belongs to: the one it names, or the newest that had begun by then.
    pub(crate) async fn generation_of(&self, event: &Event) -> Result<u32, DispatchError> {
        if let Some(generation) = event.context.generation {
            return Ok(generation);
        }
        let records = self.generations(&event.tenant_id, &event.entity_id).await?;
        // Clocks differ, by no more than an event may be ahead.
        let latest = event.timestamp.plus(MAX_AHEAD_MS);
        let begun = |record: &TaskRecord, by: Millis| record.created_at.is_none_or(|at| at <= by);
        let by_time = records.iter().rev().find(|(_, record)| begun(record, event.timestamp));
        let by_time = by_time.or(records.first());
        let ended_otherwise =
            |record: &TaskRecord| record.end_event.as_ref().is_some_and(|end| *end != event.event_id);
        let chosen = match by_time {
            Some((_, record)) if ended_otherwise(record) => {
                let open =
                    records.last().filter(|(_, record)| !ended_otherwise(record) && begun(record, latest));
                open.or(by_time)
            }
            other => other,
        };
        Ok(chosen.map_or(1, |(generation, _)| *generation))
    }

    /// The records of a task, by generation.
    pub(crate) async fn generations(
        &self,
        tenant: &Name,
        request_id: &str,
    ) -> Result<Vec<(u32, TaskRecord)>, DispatchError> {
        let mut pages = self
            .control
            .partition(&keys::task(tenant, request_id))
            .key_condition_expression("PK = :pk AND begins_with(SK, :generations)")
            .expression_attribute_values(":generations", text(keys::GENERATIONS))
            .into_paginator()
            .send();
        let mut records = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| ledgerline_ledger::StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                let generation =
                    item.get("SK").and_then(|sk| sk.as_s().ok()).and_then(|sk| keys::parse_generation(sk));
                records.extend(generation.zip(Some(ledgerline_ledger::control::read(item)?)));
            }
        }
        Ok(records)
    }
}
