//! The end of a task. A generation has at most one, even if a worker wakes up late: a process writes the
//! exact terminal event into the record on condition of the attempt, and only then sends it.

use ledgerline_event::{
    Event, MAX_AHEAD_MS, Millis, Name,
    catalogue::{ErrorCategory, FailureSource, Signal, TaskCompleted, TaskFailed, TaskTimeout, Usage},
};
use ledgerline_ledger::SealedEvent;
use ledgerline_outbox::{ComponentError, Effects, PendingEffects, idempotency_expires_at};
use ledgerline_store::{
    Conditional, EndCondition, Phase, TaskRecord,
    keys::{self, ControlKey},
};
use serde_json::{Value, json};

use super::{TaskLease, message::seal};
use crate::Tasks;

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

/// What became of the claim of an end.
#[derive(Debug)]
pub(super) enum EndClaim {
    /// The record has ended by the event, and the event is sent.
    Made,
    /// The record as it is, if there is one: the condition does not hold.
    Refused(Option<Box<TaskRecord>>),
}

/// What to do after the table's answer to an end.
#[derive(Debug)]
enum EndStep {
    /// The record has ended by this event: send it.
    Send,
    /// An earlier request with this event has ended the record, and only the answer was lost: resume its claim.
    Resume,
    /// The record still holds an earlier claim: resume that, then try again.
    ResumeThenRetry,
    /// The condition does not hold.
    Refused(Option<Box<TaskRecord>>),
}

/// What follows from the answer to an end by the event `end_event`.
fn end_step(answer: Conditional<TaskRecord>, end_event: &Name) -> EndStep {
    match answer {
        Conditional::Done(_) => EndStep::Send,
        Conditional::Refused(Some(record)) if record.end_event.as_ref() == Some(end_event) => EndStep::Resume,
        Conditional::Refused(Some(record)) if record.phase != Phase::Ended && record.has_pending_claim() => {
            EndStep::ResumeThenRetry
        }
        Conditional::Refused(there) => EndStep::Refused(there.map(Box::new)),
    }
}

/// What an observed terminal event means for the record of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObservedEnd {
    /// Another event has ended the generation.
    EndedOtherwise,
    /// The record has noted this end already.
    Noted,
    /// The record has to note this end.
    ToNote,
}

/// Compares a terminal event with the record of its generation.
fn observed_end(record: Option<&TaskRecord>, event: &Event) -> ObservedEnd {
    match record.and_then(|record| record.end_event.as_ref().map(|end| (record, end))) {
        Some((_, end)) if *end != event.event_id => ObservedEnd::EndedOtherwise,
        // Only the saved event has the expiry: a record that ended without one gets it.
        Some((record, _)) if record.ttl.is_some() || event.ttl.is_none() => ObservedEnd::Noted,
        Some(_) | None => ObservedEnd::ToNote,
    }
}

/// The generation that a terminal event without one belongs to: the newest of `records` that had begun by then, or, if
/// that has ended by another event, the last one that is open.
fn generation_by_time(records: &[(u32, TaskRecord)], event: &Event) -> Option<u32> {
    // Clocks differ, by no more than an event may be ahead.
    let latest = event.timestamp.plus(MAX_AHEAD_MS);
    let begun = |record: &TaskRecord, by: Millis| record.created_at.is_none_or(|at| at <= by);
    let by_time = records.iter().rev().find(|(_, record)| begun(record, event.timestamp));
    let by_time = by_time.or(records.first());
    let ended_otherwise =
        |record: &TaskRecord| record.end_event.as_ref().is_some_and(|end| *end != event.event_id);
    let chosen = match by_time {
        Some((_, record)) if ended_otherwise(record) => {
            let open = records.last().filter(|(_, record)| !ended_otherwise(record) && begun(record, latest));
            open.or(by_time)
        }
        other => other,
    };
    chosen.map(|(generation, _)| *generation)
}

impl Tasks {
    /// Ends a task that this attempt holds, and emits its terminal event.
    pub async fn end(&self, lease: &TaskLease, end: TaskEnd) -> Result<EndAnswer, ComponentError> {
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
        let key = keys::task_record(&message.tenant_id, &message.request_id, message.generation);
        let held = EndCondition::HeldBy { attempt: lease.attempt };
        let there = match self.claim_end(&key, held, event).await? {
            EndClaim::Made => return Ok(EndAnswer::Done),
            EndClaim::Refused(there) => there,
        };
        // This very attempt ended it: the answer to an earlier call was lost, or that call did not come to sending.
        if there.as_ref().is_some_and(|record| record.end_attempt == Some(lease.attempt)) {
            self.outbox.resume(&key).await?;
            return Ok(EndAnswer::Done);
        }
        self.emit_refused_end(lease, Some(event_type), there.as_deref()).await?;
        Ok(EndAnswer::Refused)
    }

    /// Emits that a worker has lost its lease: the result of its attempt is discarded.
    pub async fn emit_lease_lost(&self, lease: &TaskLease) -> Result<(), ComponentError> {
        let message = &lease.message;
        let key = keys::task_record(&message.tenant_id, &message.request_id, message.generation);
        let there = self.records.get(&key).await?;
        self.emit_refused_end(lease, None, there.as_ref()).await
    }

    async fn emit_refused_end(
        &self,
        lease: &TaskLease,
        outcome: Option<&str>,
        there: Option<&TaskRecord>,
    ) -> Result<(), ComponentError> {
        let request_id = &lease.message.request_id;
        let taken_over = there.filter(|record| record.attempt != lease.attempt);
        let refused = json!({
            "requestId": request_id,
            "outcome": outcome,
            "attempt": lease.attempt,
            "workerId": lease.worker_id,
            "endedBy": there.and_then(|record| record.end_event.clone()),
            "takenOverBy": taken_over.and_then(|record| record.worker_id.clone()),
        });
        let emitter = self.task_emitter(lease);
        let draft = emitter.event("Task End Refused").entity("TASK", request_id.as_str());
        draft.properties(refused).emit().await?;
        Ok(())
    }

    /// Ends a record on a condition and sends the event.
    pub(super) async fn claim_end(
        &self,
        key: &ControlKey,
        condition: EndCondition,
        event: SealedEvent,
    ) -> Result<EndClaim, ComponentError> {
        let event_id = event.event_id().clone();
        let effects = Effects { events: vec![event], ..Effects::default() };
        let pending = PendingEffects { key: key.clone(), effects, started: None, ttl: None };
        let claim = self.outbox.new_claim(&pending).await?;
        loop {
            let answer = self.records.end(key, condition, &event_id, &claim).await?;
            match end_step(answer, &event_id) {
                EndStep::Send => {
                    self.outbox.send(pending.effects).await?;
                    self.outbox.finish(key, claim.claim_id.as_deref()).await?;
                    return Ok(EndClaim::Made);
                }
                EndStep::Resume => {
                    self.outbox.resume(key).await?;
                    return Ok(EndClaim::Made);
                }
                EndStep::ResumeThenRetry => drop(self.outbox.resume(key).await?),
                EndStep::Refused(there) => return Ok(EndClaim::Refused(there)),
            }
        }
    }

    /// Ends the record of a task by a terminal event of the ledger, unless another event has ended it.
    /// Returns the record if this event is the end of its generation.
    pub async fn observe_end(
        &self,
        event: &Event,
        generation: u32,
    ) -> Result<Option<TaskRecord>, ComponentError> {
        let key = keys::task_record(&event.tenant_id, &event.entity_id, generation);
        let record = self.records.get(&key).await?;
        if record.is_none() && !self.may_begin(event, generation).await? {
            return Ok(None);
        }
        match observed_end(record.as_ref(), event) {
            ObservedEnd::EndedOtherwise => return Ok(None),
            ObservedEnd::Noted => return Ok(record),
            ObservedEnd::ToNote => {}
        }
        // The id is a key that holds for 30 days, however soon events go.
        let ttl = event.ttl.map(|ttl| ttl.max(idempotency_expires_at(self.emitter.now())));
        Ok(match self.records.note_end(&key, &event.event_id, ttl).await? {
            Conditional::Done(record) => Some(record),
            Conditional::Refused(_) => None,
        })
    }

    /// Whether a task that has no record of this generation may have one: only if it has none at all, and then it is the
    /// first. A task of a job begins with generation 1: only the job opens others.
    async fn may_begin(&self, event: &Event, generation: u32) -> Result<bool, ComponentError> {
        let in_job = ledgerline_event::dag::split_task_entity(&event.entity_id).is_some();
        Ok(generation == 1 || {
            let known = self.records.generations(&event.tenant_id, &event.entity_id).await?;
            known.is_empty() && generation > 0 && !in_job
        })
    }

    /// The generation that a terminal event belongs to: the one it names, or the newest that had begun by then.
    pub async fn generation_of(&self, event: &Event) -> Result<u32, ComponentError> {
        if let Some(generation) = event.context.generation {
            return Ok(generation);
        }
        let records = self.records.generations(&event.tenant_id, &event.entity_id).await?;
        Ok(generation_by_time(&records, event).unwrap_or(1))
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_store::ClaimState;

    use super::*;

    const AT: u64 = 1_767_453_739_000;

    fn event(id: &str, ttl: Option<u64>) -> Event {
        let event = json!({
            "eventId": id, "tenantId": "t", "appName": "app", "entityType": "TASK", "entityId": "req-1",
            "eventType": "Task Completed", "timestamp": AT, "properties": {}, "ttl": ttl,
        });
        serde_json::from_value(event).unwrap()
    }

    fn name(text: &str) -> Name {
        Name::stored("eventId", text).unwrap()
    }

    fn ended_by(id: &str) -> TaskRecord {
        TaskRecord { phase: Phase::Ended, end_event: Some(name(id)), ..TaskRecord::default() }
    }

    fn begun(at: u64) -> TaskRecord {
        TaskRecord { created_at: Some(Millis::try_from(at).unwrap()), ..TaskRecord::default() }
    }

    #[test]
    fn an_end_whose_answer_was_lost_is_resumed_and_that_of_another_is_refused() {
        let refused = |record| end_step(Conditional::Refused(record), &name("e1"));
        assert!(matches!(end_step(Conditional::Done(ended_by("e1")), &name("e1")), EndStep::Send));
        assert!(matches!(refused(Some(ended_by("e1"))), EndStep::Resume));
        assert!(matches!(refused(Some(ended_by("e2"))), EndStep::Refused(Some(_))));
        assert!(matches!(refused(None), EndStep::Refused(None)));
        let pending = TaskRecord { claim_state: Some(ClaimState::Pending), ..TaskRecord::default() };
        assert!(matches!(refused(Some(pending)), EndStep::ResumeThenRetry));
        let sending = TaskRecord { claim_state: Some(ClaimState::Pending), ..ended_by("e2") };
        assert!(matches!(refused(Some(sending)), EndStep::Refused(Some(_))));
    }

    #[test]
    fn a_saved_end_is_noted_once_and_gives_its_record_an_expiry() {
        let observed = |record: Option<TaskRecord>, ttl| observed_end(record.as_ref(), &event("e1", ttl));
        assert_eq!(observed(None, None), ObservedEnd::ToNote);
        assert_eq!(observed(Some(begun(AT)), None), ObservedEnd::ToNote);
        assert_eq!(observed(Some(ended_by("e2")), Some(AT)), ObservedEnd::EndedOtherwise);
        assert_eq!(observed(Some(ended_by("e1")), None), ObservedEnd::Noted);
        assert_eq!(observed(Some(ended_by("e1")), Some(AT / 1_000)), ObservedEnd::ToNote);
        let expiring = TaskRecord { ttl: event("e1", Some(AT / 1_000)).ttl, ..ended_by("e1") };
        assert_eq!(observed(Some(expiring), Some(AT / 1_000)), ObservedEnd::Noted);
    }

    #[test]
    fn an_end_without_a_generation_belongs_to_the_newest_that_had_begun_or_to_the_open_one() {
        let chosen = |records: &[(u32, TaskRecord)]| generation_by_time(records, &event("e1", None));
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[(1, begun(AT - 2)), (2, begun(AT))]), Some(2));
        assert_eq!(chosen(&[(1, begun(AT - 2)), (2, begun(AT + 1))]), Some(1));
        // The clock of its sender is behind: the first generation had another end before.
        assert_eq!(chosen(&[(1, ended_by("e0")), (2, begun(AT + 1))]), Some(2));
        assert_eq!(chosen(&[(1, ended_by("e1")), (2, begun(AT + 1))]), Some(1));
        assert_eq!(chosen(&[(1, ended_by("e0")), (2, begun(AT + 2 * MAX_AHEAD_MS))]), Some(1));
    }
}
