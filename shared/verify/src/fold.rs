//! What the ledger tells of every task, job and run: one pass over the time line, page by page. What is kept is in
//! proportion to tasks, jobs and runs, not to events.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use ledgerline_event::{
    Event, JobEvent, JobHistory, Millis, Name, Seconds, TaskEvent, TaskHistory, TaskSummary,
};
use ledgerline_ledger::TimelineEvent;
use ledgerline_store::StoreError;

use crate::Verify;
use crate::{
    VerifyProgress,
    compare::Progress,
    runs::{RunFold, run_of},
};
use ledgerline_jobs::{TaskOutcome, names_own_job, outcome_of};
use ledgerline_outbox::ComponentError;

/// Events of one read.
const PAGE: i32 = 1_000;
/// Late events that are fetched at the same time.
const FETCHED_AT_ONCE: usize = 16;

/// How far the drainer `jobs` had come before anything was read.
pub(crate) struct SettledUpTo {
    /// Everything up to here was handled, except for what the two last fields exclude.
    pub(crate) cursor: String,
    /// The same among the late arrivals.
    pub(crate) late_cursor: String,
    /// Late arrivals that it had not handled.
    pub(crate) undrained: BTreeSet<String>,
    /// What was saved at this time or after may be a late arrival whose saver has not put the pointer yet.
    pub(crate) saved_before: Millis,
}

/// Whether an event must be in the rows by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventStatus {
    /// `jobs` has handled it.
    Settled,
    /// `jobs` may not have handled it yet.
    InFlight,
}

impl SettledUpTo {
    fn status_of(&self, place: &TimelineEvent) -> EventStatus {
        let is_handled = place.sk <= self.cursor
            && !self.undrained.contains(&place.sk)
            && place.event.received_at.is_none_or(|at| at < self.saved_before);
        if is_handled { EventStatus::Settled } else { EventStatus::InFlight }
    }
}

/// Everything that the ledger tells of tasks, jobs and runs.
#[derive(Default)]
pub(crate) struct Folded {
    pub(crate) tasks: BTreeMap<Name, TaskFold>,
    pub(crate) jobs: BTreeMap<Name, JobFold>,
    pub(crate) runs: BTreeMap<String, RunFold>,
    pub(crate) events: u64,
    /// When the first event that is still there happened.
    first: Option<Millis>,
    /// The shortest time that an event is kept, if any is not kept for ever.
    kept_ms: Option<u64>,
}

/// One task.
#[derive(Default)]
pub(crate) struct TaskFold {
    /// The settled events: they must be in its row.
    settled: TaskHistory,
    /// The events in flight: they may be in its row.
    newer: Option<Box<TaskHistory>>,
    pub(crate) ends: Vec<TaskEnded>,
    pub(crate) ttl: Option<Seconds>,
}

/// An event that says that a task has ended.
pub(crate) struct TaskEnded {
    pub(crate) event_id: Name,
    pub(crate) sk: String,
    pub(crate) at: Millis,
    pub(crate) outcome: TaskOutcome,
    /// `None` if the event names none.
    pub(crate) generation: Option<u32>,
    /// Whether its properties name the job in its entity id.
    pub(crate) in_job: bool,
    pub(crate) settled: bool,
}

/// One job.
#[derive(Default)]
pub(crate) struct JobFold {
    pub(crate) events: Vec<FoldedJobEvent>,
}

/// One event of a job. Each is folded on its own, because those that were refused count for nothing.
pub(crate) struct FoldedJobEvent {
    pub(crate) kind: JobEvent,
    pub(crate) event_id: Name,
    pub(crate) sk: String,
    pub(crate) at: Millis,
    pub(crate) settled: bool,
    pub(crate) history: JobHistory,
}

impl TaskFold {
    pub(crate) fn settled(&self) -> &TaskHistory {
        &self.settled
    }

    /// The history of all events, also of those in flight.
    pub(crate) fn whole(&self) -> Cow<'_, TaskHistory> {
        match &self.newer {
            None => Cow::Borrowed(&self.settled),
            Some(newer) => {
                let mut whole = self.settled.clone();
                whole.join(newer);
                Cow::Owned(whole)
            }
        }
    }

    fn add(&mut self, place: &TimelineEvent, status: EventStatus) {
        let event = &place.event;
        let history = match status {
            EventStatus::Settled => &mut self.settled,
            EventStatus::InFlight => self.newer.get_or_insert_default().as_mut(),
        };
        history.add(event);
        self.ttl = self.ttl.max(event.ttl);
        let Some(outcome) = outcome_of(event) else { return };
        if self.ends.iter().all(|end| end.event_id != event.event_id) {
            self.ends.push(TaskEnded {
                event_id: event.event_id.clone(),
                sk: place.sk.clone(),
                at: event.timestamp,
                outcome,
                // Generations count from 1: a sender's 0 names none.
                generation: event.context.generation.filter(|generation| *generation > 0),
                in_job: names_own_job(event),
                settled: status == EventStatus::Settled,
            });
        }
    }
}

impl JobFold {
    fn add(&mut self, kind: JobEvent, place: &TimelineEvent, status: EventStatus) {
        let event = &place.event;
        if self.events.iter().any(|known| known.event_id == event.event_id) {
            return;
        }
        let mut history = JobHistory::default();
        history.add(event);
        self.events.push(FoldedJobEvent {
            kind,
            event_id: event.event_id.clone(),
            sk: place.sk.clone(),
            at: event.timestamp,
            settled: status == EventStatus::Settled,
            history,
        });
    }
}

impl Folded {
    /// Whether some events of an entity may have expired, so that the rest does not tell everything. `began` is when
    /// the entity began, `ttl` the expiry of what is stored of it: without one, its events are kept for ever too.
    pub(crate) fn may_have_lost(&self, began: Millis, ttl: Option<Seconds>, now: Millis) -> bool {
        let expired = self.kept_ms.is_some_and(|kept_ms| began < now.minus(kept_ms));
        let before_all = self.first.is_none_or(|first| began < first);
        expired || ((ttl.is_some() || self.kept_ms.is_some()) && before_all)
    }

    fn add(&mut self, place: &TimelineEvent, status: EventStatus) {
        let event = &place.event;
        self.first = Some(self.first.map_or(event.timestamp, |first| first.min(event.timestamp)));
        if let Some(ttl) = event.ttl {
            let saved = event.received_at.unwrap_or(event.timestamp);
            let kept_ms = (ttl.get() * 1_000).saturating_sub(saved.get());
            self.kept_ms = Some(self.kept_ms.map_or(kept_ms, |least| least.min(kept_ms)));
        }
        if TaskEvent::of(event).is_some() {
            self.tasks.entry(event.entity_id.clone()).or_default().add(place, status);
        } else if let Some(kind) = JobEvent::of(event) {
            self.jobs.entry(event.entity_id.clone()).or_default().add(kind, place, status);
        } else if let Some(run_id) = run_of(event) {
            self.add_run_event(run_id, &event.event_id);
        }
    }
}

/// When a task began, as far as anything tells.
pub(crate) fn began(summary: &TaskSummary) -> Millis {
    let known = [summary.pending_at, summary.started_at, summary.ended_at];
    known.into_iter().flatten().fold(summary.entered_at, Millis::min)
}

impl Verify {
    /// Passes over the time line from a place on.
    pub(crate) async fn fold_ledger(
        &self,
        tenant: &Name,
        after: &str,
        settled: &SettledUpTo,
        folded: &mut Folded,
        progress: Progress<'_>,
    ) -> Result<(), ComponentError> {
        let mut position = after.to_owned();
        loop {
            let (places, more) = self.timeline.after(tenant, &position, PAGE).await?;
            let Some(last) = places.last() else { return Ok(()) };
            position = last.sk.clone();
            folded.events += places.len() as u64;
            let at = last.event.timestamp;
            for place in places {
                self.fold_event(place, settled, folded).await?;
            }
            progress(VerifyProgress::Events { read: folded.events, at });
            if !more {
                return Ok(());
            }
        }
    }

    /// Everything that may have come since `settled` was asked for: after the cursor, or as a late arrival.
    pub(crate) async fn fold_since(
        &self,
        tenant: &Name,
        settled: &SettledUpTo,
        folded: &mut Folded,
    ) -> Result<(), ComponentError> {
        let read = folded.events;
        Box::pin(self.fold_ledger(tenant, &settled.cursor, settled, folded, &mut |_| {})).await?;
        folded.events = read;
        let late = self.late_arrivals.events_after(tenant, &settled.late_cursor).await?;
        let fetches = late.into_iter().filter(|sk| *sk <= settled.cursor).map(|sk| {
            async move {
                let event = self.timeline.stored_at(tenant, &sk).await?;
                Ok::<_, StoreError>(event.map(|event| TimelineEvent { sk, event }))
            }
            .boxed()
        });
        let fetches: Vec<_> = fetches.collect();
        let mut places = stream::iter(fetches).buffered(FETCHED_AT_ONCE);
        while let Some(place) = places.try_next().await? {
            if let Some(place) = place {
                self.fold_event(place, settled, folded).await?;
            }
        }
        Ok(())
    }

    async fn fold_event(
        &self,
        mut place: TimelineEvent,
        settled: &SettledUpTo,
        folded: &mut Folded,
    ) -> Result<(), ComponentError> {
        if defines_tasks(&place.event) {
            self.timeline.restore(&mut place.event).await?;
        }
        // Rows are folded from task events as they are stored, so those are not restored here either.
        folded.add(&place, settled.status_of(&place));
        Ok(())
    }
}

/// Whether an event lists tasks of a job, which may have overflowed.
fn defines_tasks(event: &Event) -> bool {
    matches!(JobEvent::of(event), Some(JobEvent::Created | JobEvent::TasksAdded))
}
