//! Visits of many tenants within a time: a few side by side, each for a slice of the time, those that need more of it
//! again after all other tenants. A visit that takes long does not keep the next one from beginning: a tenant in trouble costs
//! the others a quarter of a second.

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
use ledgerline_outbox::{ComponentError, Course, in_turn};

/// Visits that begin side by side.
const AT_ONCE: usize = 4;
/// A visit that has taken longer does not count among those any more…
const PROMPT: Duration = Duration::from_millis(250);
/// …as long as there are no more than this under way.
const MOST_AT_ONCE: usize = 64;
/// Marks that are put at the same time.
const MARKED_AT_ONCE: usize = 16;
/// How long a tenant is visited before the others have been…
const FIRST_SLICE: Duration = Duration::from_secs(5);
/// …and after that, as long as there is time.
const SLICE: Duration = Duration::from_secs(20);
/// The first slice of a wake-up: the next batch of the stream waits for its end.
const WAKE_SLICE: Duration = Duration::from_secs(1);
/// A visit that begins has this long, whatever the deadline is: else it would do nothing.
const LEAST_SLICE: Duration = Duration::from_secs(2);
/// A visit that takes this much longer than it may is given up: its lease ends, and its mark or its round brings a
/// process back.
const OVERRUN: Duration = Duration::from_secs(30);
/// The same at the end of the time of all visits…
const LAST_OVERRUN: Duration = Duration::from_secs(5);
/// …of a wake-up that has not acquired its lease…
const WAKE_OVERRUN: Duration = Duration::from_millis(1_500);
/// …and of one that has: its tenant can be worked on, and a lease that is given up keeps the next wake-ups away for a minute.
const LEASED_WAKE_OVERRUN: Duration = Duration::from_secs(10);
/// How long it may take to mark a visit that failed or was not made, in each of the two partitions.
const MARK_WITHIN: Duration = Duration::from_secs(1);
/// How often a sweep writes how far it is.
const NOTED_EVERY: Duration = Duration::from_secs(5);

/// What is visited, and how far that is.
#[derive(Default)]
pub(crate) struct Tour {
    pub(crate) marked: Marked,
    /// The first course is of no round; each of the others belongs to a round.
    pub(crate) courses: Vec<Course<Visit>>,
    pub(crate) rounds: Vec<Round>,
    /// Whether the place in the first course is written down.
    pub(crate) keeps_place: bool,
    pub(crate) place_is_stored: bool,
    /// Whether a wake-up makes these visits: the events of other tenants wait for its end.
    pub(crate) is_wake: bool,
    /// Whether several tenants are woken together: what takes long is left to the sweep.
    pub(crate) has_company: bool,
}

/// One visit, for every step that it is.
struct Turn {
    visit: Visit,
    steps: Vec<(usize, usize)>,
    is_first: bool,
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
        Self { courses: vec![Course::new(visits)], is_wake: true, has_company, ..Self::default() }
    }

    fn turns(&self) -> VecDeque<Turn> {
        let lengths: Vec<usize> = self.courses.iter().map(|course| course.steps().len()).collect();
        let mut known: BTreeMap<&Visit, usize> = BTreeMap::new();
        let mut turns: Vec<Turn> = Vec::new();
        for (course, step) in in_turn(&lengths) {
            let visit = &self.courses[course].steps()[step];
            match known.get(visit) {
                Some(turn) => turns[*turn].steps.push((course, step)),
                None => {
                    known.insert(visit, turns.len());
                    turns.push(Turn { visit: visit.clone(), steps: vec![(course, step)], is_first: true });
                }
            }
        }
        turns.into()
    }

    /// A visit has ended, well or not.
    fn note(&mut self, turn: &Turn, finished: bool, marked: bool) {
        for (course, step) in &turn.steps {
            self.courses[*course].finish(*step);
            if let Some(round) = course.checked_sub(1).and_then(|round| self.rounds.get_mut(round)) {
                // A mark brings a prompt drainer back; one with a schedule waits for its round.
                let comes_back = marked && round.drainer.every.is_none();
                round.note(&turn.visit.0, finished || comes_back);
            }
        }
    }
}

/// A visit that failed, and whether a mark says so.
struct Unfinished {
    error: String,
    marked: bool,
}

/// The time of a visit.
#[derive(Clone, Copy)]
struct Time {
    /// Until then it begins something new.
    until: Instant,
    /// Then it is given up if it has no lease yet…
    given_up_at: Instant,
    /// …and then in any case.
    ended_at: Instant,
}

impl Time {
    fn of_wake(now: Instant) -> Self {
        let until = now + WAKE_SLICE;
        Self { until, given_up_at: until + WAKE_OVERRUN, ended_at: until + LEASED_WAKE_OVERRUN }
    }

    fn of_visit(now: Instant, deadline: Instant, slice: Duration) -> Self {
        let until = deadline.min(now + slice).max(now + LEAST_SLICE);
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
        prompt < AT_ONCE && self.began.len() < MOST_AT_ONCE
    }

    /// Waits until a visit has taken so long that the next one may begin; for ever if none will.
    async fn free_up(&self) {
        let now = Instant::now();
        let next = self.began.values().map(|began| *began + PROMPT).filter(|at| *at > now).min();
        match next.filter(|_| self.began.len() < MOST_AT_ONCE) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

impl Sweep {
    /// Visits until `deadline`. Whatever the deadline is, some are visited. Answers the visits that were not made.
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
        let (mut begun, mut noted) = (0, Instant::now());
        loop {
            while slots.has_room(Instant::now()) && (begun < AT_ONCE || !passed(deadline)) {
                let Some(turn) = waiting.pop_front() else { break };
                begun += 1;
                let slot = slots.take(Instant::now());
                let now = Instant::now();
                let time = deadline.map(|deadline| match turn.is_first {
                    // Only a visit that gets on in this time has more of it.
                    true if is_wake => Time::of_wake(now),
                    true => Time::of_visit(now, deadline, FIRST_SLICE),
                    false => Time::of_visit(now, deadline, SLICE),
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
                    // A lease that another process holds may be that of a dead one.
                    tour.note(&turn, !drained.out_of_time && !drained.skipped_due_to_lock, true);
                    match drained.out_of_time && !has_company && !passed(deadline) {
                        true => waiting.push_back(Turn { is_first: false, ..turn }),
                        false => swept.again(tenant.clone(), drained.again_at),
                    }
                }
                Err(Unfinished { error, marked }) => {
                    tracing::error!(%tenant, %drainer, error, "a visit failed; the next sweep comes back to it");
                    swept.trouble += 1;
                    if !marked {
                        swept.unmarked.insert(tenant.clone());
                    }
                    tour.note(&turn, false, marked);
                    swept.again(tenant.clone(), Some(self.emitter.now().plus(crate::SETTLE_MS)));
                }
            }
            if noted.elapsed() >= NOTED_EVERY {
                self.note_tour(tour, false).await;
                noted = Instant::now();
            }
        }
        self.metrics.count(self.emitter.now(), &[("DrainTrouble", swept.trouble)]);
        waiting.into_iter().filter(|turn| turn.is_first).map(|turn| turn.visit).collect()
    }

    /// One visit, given up when its time is over. One that fails is marked, here and not by the caller, which has others
    /// to look after.
    async fn visit_in_time(
        &self,
        visit: &Visit,
        marks: &[Mark],
        time: Option<Time>,
    ) -> Result<Drained, Unfinished> {
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
                let marked = self.marks.mark_unread(visit, MARK_WITHIN).await;
                Err(Unfinished { error, marked })
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

    /// Marks visits for which there was no time. Answers the tenants of those that could not be marked.
    pub(crate) async fn mark_unvisited(&self, visits: Vec<Visit>) -> BTreeSet<Name> {
        let marks: Vec<_> = visits
            .into_iter()
            .map(|visit| {
                async move { (!self.marks.mark_unread(&visit, MARK_WITHIN).await).then_some(visit.0) }.boxed()
            })
            .collect();
        let unmarked = stream::iter(marks).buffer_unordered(MARKED_AT_ONCE);
        unmarked.filter_map(|tenant| async move { tenant }).collect().await
    }

    /// Writes how far a sweep is. If that fails, the next one begins further back.
    pub(crate) async fn note_tour(&self, tour: &mut Tour, end: bool) {
        let Tour { courses, rounds, place_is_stored, keeps_place, .. } = tour;
        for (course, round) in courses.iter().skip(1).zip(rounds) {
            if let Err(error) = self.note_round(round, course, end).await {
                tracing::warn!(drainer = %round.drainer.id, %error, "it is not written how far the round is");
            }
        }
        let Some(course) = courses.first().filter(|_| *keeps_place) else { return };
        let is_over = end && course.is_over();
        let written = match course.place() {
            _ if is_over && !*place_is_stored => return,
            _ if is_over => self.marks.records.forget_swept_up_to().await,
            None => return,
            Some((tenant, _)) => self.marks.records.note_swept_up_to(tenant).await,
        };
        match written {
            Ok(()) => *place_is_stored = !is_over,
            Err(error) => tracing::warn!(%error, "it is not written how far the sweep is"),
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
        (0..AT_ONCE).for_each(|_| _ = slots.take(began));
        assert!(!slots.has_room(Instant::now()));
        slots.free_up().await;
        assert_eq!(began.elapsed(), PROMPT);
        assert!(slots.has_room(Instant::now()));
        while slots.began.len() < MOST_AT_ONCE {
            slots.take(began);
        }
        assert!(!slots.has_room(Instant::now()));
        slots.give_back(1);
        assert!(slots.has_room(Instant::now()));
    }
}
