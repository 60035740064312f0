//! Visits to many tenants until a deadline: a few at the same time, each for a slice of the time. A tenant that needs
//! more gets another slice after all other tenants had theirs. A visit that takes long does not keep the next one from
//! beginning: a tenant in trouble costs the others a quarter of a second.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream, stream::FuturesUnordered};
use ledgerline_event::Name;
use ledgerline_store::{Mark, keys::ControlKey};
use tokio::time::{Instant, timeout_at};

use crate::{
    Drained, Sweep, Swept,
    dirty_marks::{Marked, Visit},
    round::Round,
};
use ledgerline_outbox::{ComponentError, SweepProgress, round_robin};

/// At most so many visits run at the same time, not counting those that have run for [`PROMPT`].
const MAX_PROMPT_VISITS: usize = 4;
/// A visit that has run for this long is slow: the next one may begin beside it.
const PROMPT: Duration = Duration::from_millis(250);
/// At most so many visits run at the same time, slow ones included.
const MAX_VISITS: usize = 64;
/// At most so many marks are written at the same time.
const MAX_CONCURRENT_MARKS: usize = 16;
/// A tenant's first slice: the others have not had theirs.
const FIRST_SLICE: Duration = Duration::from_secs(5);
/// Each further slice, as long as there is time.
const SLICE: Duration = Duration::from_secs(20);
/// The first slice of a wake-up: the next batch of the stream waits for its end.
const WAKE_SLICE: Duration = Duration::from_secs(1);
/// The shortest slice, even if the deadline is nearer: in less time a visit would do nothing.
const MIN_SLICE: Duration = Duration::from_secs(2);
/// A visit that takes this much longer than its slice is given up: its lease expires, and its mark or its round brings
/// a process back.
const OVERRUN: Duration = Duration::from_secs(30);
/// The same for a visit that runs at the deadline of all visits.
const LAST_OVERRUN: Duration = Duration::from_secs(5);
/// The same for a visit of a wake-up that has not acquired its lease.
const WAKE_OVERRUN: Duration = Duration::from_millis(1_500);
/// The same for a visit of a wake-up that has: the drainer makes progress, and a lease that it gives up keeps the next
/// wake-ups away for a minute.
const LEASED_WAKE_OVERRUN: Duration = Duration::from_secs(10);
/// How long it may take to mark a visit that failed or was not made, in each of the two partitions.
const MARK_WITHIN: Duration = Duration::from_secs(1);
/// How often a sweep stores its position.
const STORE_INTERVAL: Duration = Duration::from_secs(5);

/// What a sweep or a wake-up visits, and how far it has come.
#[derive(Default)]
pub(crate) struct Tour {
    pub(crate) marked: Marked,
    /// The visits in order: first those of marked or woken tenants, then those of each round, in the order of `rounds`.
    pub(crate) sequences: Vec<SweepProgress<Visit>>,
    pub(crate) rounds: Vec<Round>,
    /// Whether the sweep stores its position among the marked tenants.
    pub(crate) stores_cursor: bool,
    /// Whether such a position is stored now.
    pub(crate) cursor_is_stored: bool,
    /// Whether a wake-up makes these visits: the events of other tenants wait for its end.
    pub(crate) is_wake: bool,
    /// Whether several tenants are woken together: what takes long is left to the sweep.
    pub(crate) has_company: bool,
}

/// One visit. It may be a step of several sequences.
struct Turn {
    visit: Visit,
    /// The positions of the sequence and of the step in it.
    steps: Vec<(usize, usize)>,
    /// Whether this is the first slice of the tenant.
    is_first: bool,
}

/// How a visit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnEnd {
    /// The drainer was not cut short.
    Finished,
    /// Something is left, and a mark says so.
    LeftMarked,
    /// Something is left, and no mark could be written.
    LeftUnmarked,
}

/// When a sweep stores its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweepStage {
    /// While it goes on.
    UnderWay,
    /// When it has ended.
    Ended,
}

impl Tour {
    /// Visits that belong to no sweep.
    pub(crate) fn of(visits: BTreeSet<Visit>) -> Self {
        let mut visits: Vec<Visit> = visits.into_iter().collect();
        if !visits.is_empty() {
            let first = fastrand::usize(..visits.len());
            visits.rotate_left(first);
        }
        let has_company = visits.windows(2).any(|two| two[0].0 != two[1].0);
        Self { sequences: vec![SweepProgress::new(visits)], is_wake: true, has_company, ..Self::default() }
    }

    fn turns(&self) -> VecDeque<Turn> {
        let lengths: Vec<usize> = self.sequences.iter().map(|sequence| sequence.steps().len()).collect();
        let mut known: BTreeMap<&Visit, usize> = BTreeMap::new();
        let mut turns: Vec<Turn> = Vec::new();
        for (sequence, step) in round_robin(&lengths) {
            let visit = &self.sequences[sequence].steps()[step];
            match known.get(visit) {
                Some(turn) => turns[*turn].steps.push((sequence, step)),
                None => {
                    known.insert(visit, turns.len());
                    turns.push(Turn { visit: visit.clone(), steps: vec![(sequence, step)], is_first: true });
                }
            }
        }
        turns.into()
    }

    /// Records the end of a visit in all sequences and rounds that it belongs to.
    fn end_turn(&mut self, turn: &Turn, end: TurnEnd) {
        for (sequence, step) in &turn.steps {
            self.sequences[*sequence].finish(*step);
            if let Some(round) = sequence.checked_sub(1).and_then(|round| self.rounds.get_mut(round)) {
                match end {
                    TurnEnd::Finished => round.set_finished(&turn.visit.0),
                    // The mark brings the drainer back, unless it has a period: then it waits for its round.
                    TurnEnd::LeftMarked if round.drainer.every.is_none() => round.set_finished(&turn.visit.0),
                    TurnEnd::LeftMarked | TurnEnd::LeftUnmarked => round.set_unfinished(&turn.visit.0),
                }
            }
        }
    }
}

/// A visit that failed, and whether a mark for it could be written.
struct FailedVisit {
    error: String,
    marked: bool,
}

/// The deadlines of a visit.
#[derive(Clone, Copy)]
struct Deadlines {
    /// After this it begins nothing new.
    until: Instant,
    /// Then it is given up if it has not acquired its lease.
    given_up_at: Instant,
    /// Then it is given up in any case.
    ended_at: Instant,
}

impl Deadlines {
    fn of_wake(now: Instant) -> Self {
        let until = now + WAKE_SLICE;
        Self { until, given_up_at: until + WAKE_OVERRUN, ended_at: until + LEASED_WAKE_OVERRUN }
    }

    fn of_visit(now: Instant, deadline: Instant, slice: Duration) -> Self {
        let until = deadline.min(now + slice).max(now + MIN_SLICE);
        let given_up_at = (until + OVERRUN).min(deadline + LAST_OVERRUN).max(until + LAST_OVERRUN);
        Self { until, given_up_at, ended_at: given_up_at }
    }
}

/// The visits that are under way, by number, and when they began.
#[derive(Default)]
struct Slots {
    began: BTreeMap<usize, Instant>,
    last: usize,
}

impl Slots {
    fn take(&mut self, now: Instant) -> usize {
        self.last += 1;
        self.began.insert(self.last, now);
        self.last
    }

    fn give_back(&mut self, slot: usize) {
        self.began.remove(&slot);
    }

    fn has_room(&self, now: Instant) -> bool {
        let prompt = self.began.values().filter(|began| now.duration_since(**began) < PROMPT).count();
        prompt < MAX_PROMPT_VISITS && self.began.len() < MAX_VISITS
    }

    /// Waits until a running visit has become slow, so that the next one may begin; for ever if none can.
    async fn free_up(&self) {
        let now = Instant::now();
        let next = self.began.values().map(|began| *began + PROMPT).filter(|at| *at > now).min();
        match next.filter(|_| self.began.len() < MAX_VISITS) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

impl Sweep {
    /// Visits until `deadline`, but makes at least a few visits. Returns the visits that it did not make.
    pub(crate) async fn visit_all(
        &self,
        tour: &mut Tour,
        deadline: Option<Instant>,
        swept: &mut Swept,
        alerts: &mut Vec<ControlKey>,
    ) -> Vec<Visit> {
        let mut waiting = tour.turns();
        let (is_wake, has_company) = (tour.is_wake, tour.has_company);
        let mut running = FuturesUnordered::new();
        let mut slots = Slots::default();
        let (mut begun, mut stored_at) = (0, Instant::now());
        loop {
            while slots.has_room(Instant::now()) && (begun < MAX_PROMPT_VISITS || !passed(deadline)) {
                let Some(turn) = waiting.pop_front() else { break };
                begun += 1;
                let slot = slots.take(Instant::now());
                let now = Instant::now();
                let time = deadline.map(|deadline| match turn.is_first {
                    // Only a visit that gets on in this time has more of it.
                    true if is_wake => Deadlines::of_wake(now),
                    true => Deadlines::of_visit(now, deadline, FIRST_SLICE),
                    false => Deadlines::of_visit(now, deadline, SLICE),
                });
                let marks = tour.marked.get(&turn.visit).cloned().unwrap_or_default();
                running.push(
                    async move {
                        let drained = Box::pin(self.visit_in_time(&turn.visit, &marks, time)).await;
                        (slot, turn, drained)
                    }
                    .boxed(),
                );
            }
            let more = !waiting.is_empty() && !passed(deadline);
            let ended = tokio::select! {
                biased;
                ended = running.next() => ended,
                () = slots.free_up(), if more => continue,
            };
            let Some((slot, turn, drained)) = ended else { break };
            slots.give_back(slot);
            swept.visited += usize::from(turn.is_first);
            let (tenant, drainer) = &turn.visit;
            match drained {
                Ok(mut drained) => {
                    alerts.append(&mut drained.alerts);
                    // A process that holds the lease may be dead.
                    let end = match drained.out_of_time || drained.skipped_due_to_lock {
                        true => TurnEnd::LeftMarked,
                        false => TurnEnd::Finished,
                    };
                    tour.end_turn(&turn, end);
                    match drained.out_of_time && !has_company && !passed(deadline) {
                        true => waiting.push_back(Turn { is_first: false, ..turn }),
                        false => swept.again(tenant.clone(), drained.again_at),
                    }
                }
                Err(FailedVisit { error, marked }) => {
                    tracing::error!(%tenant, %drainer, error, "a visit failed; the next sweep comes back to it");
                    swept.trouble += 1;
                    if !marked {
                        swept.unmarked.insert(tenant.clone());
                    }
                    tour.end_turn(&turn, if marked { TurnEnd::LeftMarked } else { TurnEnd::LeftUnmarked });
                    swept.again(tenant.clone(), Some(self.emitter.now().plus(crate::SETTLE_MS)));
                }
            }
            if stored_at.elapsed() >= STORE_INTERVAL {
                self.store_progress(tour, SweepStage::UnderWay).await;
                stored_at = Instant::now();
            }
        }
        self.metrics.count(self.emitter.now(), &[("DrainTrouble", swept.trouble)]);
        waiting.into_iter().filter(|turn| turn.is_first).map(|turn| turn.visit).collect()
    }

    /// One visit, given up at its deadlines. A visit that fails is marked here, so that the caller goes on with the
    /// others meanwhile.
    async fn visit_in_time(
        &self,
        visit: &Visit,
        marks: &[Mark],
        time: Option<Deadlines>,
    ) -> Result<Drained, FailedVisit> {
        let began = Instant::now();
        let has_lease = AtomicBool::new(false);
        let mut visiting = pin!(self.visit(visit, marks, time.map(|time| time.until), &has_lease));
        let too_long = || "it took too long and was given up".to_owned();
        let error = match time {
            None => visiting.await.map_err(|error| error.to_string()),
            Some(time) => match timeout_at(time.given_up_at, visiting.as_mut()).await {
                Ok(drained) => drained.map_err(|error| error.to_string()),
                Err(_) if has_lease.load(Ordering::Relaxed) => {
                    let drained = timeout_at(time.ended_at, visiting).await;
                    drained
                        .map_err(|_| too_long())
                        .and_then(|drained| drained.map_err(|error| error.to_string()))
                }
                Err(_) => Err(too_long()),
            },
        };
        match error {
            Ok(drained) => {
                self.slow_visits.note_success(visit);
                Ok(drained)
            }
            Err(error) => {
                self.slow_visits.note_failure(visit, began);
                let marked = self.marks.mark_without_fence(visit, MARK_WITHIN).await;
                Err(FailedVisit { error, marked })
            }
        }
    }

    async fn visit(
        &self,
        visit: &Visit,
        marks: &[Mark],
        deadline: Option<Instant>,
        has_lease: &AtomicBool,
    ) -> Result<Drained, ComponentError> {
        let drained = self.drains.drain_noting_lease(&visit.0, &visit.1, deadline, has_lease).await?;
        if drained.again_at.is_none() && !drained.skipped_due_to_lock {
            self.marks.clear_marks(marks, drained.fence).await?;
        }
        Ok(drained)
    }

    /// Marks visits for which there was no time. Returns the tenants of those that could not be marked.
    pub(crate) async fn mark_unvisited(&self, visits: Vec<Visit>) -> BTreeSet<Name> {
        let marks: Vec<_> = visits
            .into_iter()
            .map(|visit| {
                async move { (!self.marks.mark_without_fence(&visit, MARK_WITHIN).await).then_some(visit.0) }
                    .boxed()
            })
            .collect();
        let unmarked = stream::iter(marks).buffer_unordered(MAX_CONCURRENT_MARKS);
        unmarked.filter_map(|tenant| async move { tenant }).collect().await
    }

    /// Stores how far a sweep has come. If that fails, the next one begins further back.
    pub(crate) async fn store_progress(&self, tour: &mut Tour, stage: SweepStage) {
        let Tour { sequences, rounds, cursor_is_stored, stores_cursor, .. } = tour;
        for (progress, round) in sequences.iter().skip(1).zip(rounds) {
            if let Err(error) = self.store_round(round, progress, stage).await {
                tracing::warn!(drainer = %round.drainer.id, %error, "could not store the position of the round");
            }
        }
        let Some(progress) = sequences.first().filter(|_| *stores_cursor) else { return };
        let is_over = stage == SweepStage::Ended && progress.is_complete();
        let written = match progress.resume_after() {
            _ if is_over && !*cursor_is_stored => return,
            _ if is_over => self.marks.records.clear_sweep_cursor().await,
            None => return,
            Some((tenant, _)) => self.marks.records.set_sweep_cursor(tenant).await,
        };
        match written {
            Ok(()) => *cursor_is_stored = !is_over,
            Err(error) => tracing::warn!(%error, "could not store the position of the sweep"),
        }
    }
}

fn passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_visit_that_takes_long_makes_room_for_the_next_one_up_to_a_bound() {
        let mut slots = Slots::default();
        let began = Instant::now();
        (0..MAX_PROMPT_VISITS).for_each(|_| _ = slots.take(began));
        assert!(!slots.has_room(Instant::now()));
        slots.free_up().await;
        assert_eq!(began.elapsed(), PROMPT);
        assert!(slots.has_room(Instant::now()));
        while slots.began.len() < MAX_VISITS {
            slots.take(began);
        }
        assert!(!slots.has_room(Instant::now()));
        slots.give_back(1);
        assert!(slots.has_room(Instant::now()));
    }
}
