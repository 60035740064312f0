//! Handling a page of events in the order of the time line: which subscriptions they start, and how far the page is finished.
//!
//! Events of different entities are handled at the same time; those of one entity one after the other. A start that fails is
//! parked, or waits in a block with the later ones of its entity, and holds up nothing else. The result is the finished
//! prefix of the page: an event that stops the drain stops everything after it, and nothing before it is left undone.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use ledgerline_event::{Event, Name};
use ledgerline_ledger::TimelineEvent;
use ledgerline_store::{Block, Cause, Epochs, Halted, Member, keys::ControlKey};
use ledgerline_subscription::{Matcher, OnFailure, WorkflowType};
use serde::Serialize;
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    Drains,
    block_retry::{Class, cause_of_send, is_of_entity},
    lease::Lease,
    open_blocks::{BlockError, OpenBlocks},
    park_or_halt::NotStarted,
    start_decision::{Start, StartDecision},
    waiting_starts::WaitingStart,
};
use ledgerline_outbox::{About, ClaimOrder, Claimed, ComponentError, PendingEffects, Sent};

/// So many lanes run at the same time. Each entity belongs to one lane.
const LANES: u64 = 8;
/// So many events of one lane are started together.
const BATCH: usize = 10;
/// When the planned effects have so many bytes, they are sent: they are all held in memory.
const PORTION_BYTES: usize = 8_000_000;
/// After this long, what is planned so far is sent.
const PORTION_TIME: Duration = Duration::from_secs(2);
/// When so many starts of one page could not be sent, a service is down: the pass ends.
const MAX_UNSENT: usize = 20;

/// A start that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Triggered {
    pub event_id: Name,
    pub subscription_id: Name,
    pub workflow_type: Name,
    /// The id of the task, job, run or sent event.
    pub started: Name,
}

/// What one page is handled with.
pub(crate) struct EventHandler<'a> {
    pub(crate) drains: &'a Drains,
    pub(crate) tenant: Name,
    pub(crate) drainer: Name,
    pub(crate) epochs: Epochs,
    pub(crate) matcher: &'a Matcher,
    pub(crate) blocks: &'a OpenBlocks<'a>,
    types: OnceCell<BTreeMap<Name, WorkflowType>>,
    unsent: AtomicUsize,
    made: Mutex<Made>,
}

/// What was made while the page was handled.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) triggered: Vec<Triggered>,
    pub(crate) alerts: Vec<ControlKey>,
    /// Members of a block whose starts were made.
    pub(crate) released: Vec<Member>,
}

/// How far a page is handled.
pub(crate) struct Handled {
    /// The length of the finished prefix.
    pub(crate) finished: usize,
    /// Why it is not the whole page.
    pub(crate) stop: Option<Stop>,
}

pub(crate) enum Stop {
    OutOfTime,
    Halted(Halted),
    Trouble(ComponentError),
    /// The lease has another holder.
    LeaseLost,
}

impl From<BlockError> for Stop {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::LeaseLost => Self::LeaseLost,
            BlockError::Failed(error) => Self::Trouble(error),
        }
    }
}

/// One event with what it leads to.
pub(crate) struct Work {
    pub(crate) index: usize,
    pub(crate) event: Event,
    pub(crate) sk: String,
    pub(crate) starts: Vec<Start>,
    pub(crate) troubles: NotStarted,
}

/// What became of starting some events together.
pub(crate) struct Started {
    pub(crate) halted: Option<Halted>,
    /// Starts that have to wait, in their order, and what a service said of the last that failed.
    pub(crate) unsent: Vec<WaitingStart>,
    pub(crate) error: Option<ComponentError>,
}

/// Events that are planned and not yet started.
#[derive(Default)]
struct Portion {
    works: Vec<Work>,
    /// The starts that have to wait, each with the index of its event.
    waits: Vec<(usize, WaitingStart)>,
    /// The names of their blocks: later starts of these blocks wait too.
    waiting: BTreeSet<String>,
    bytes: usize,
}

/// The first index at which something stopped, and why.
#[derive(Default)]
pub(crate) struct Stopped(Mutex<Option<(usize, Stop)>>);

impl Stopped {
    fn record(&self, index: usize, stop: Stop) {
        let mut stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stopped.as_ref().is_none_or(|(first, _)| index < *first) {
            *stopped = Some((index, stop));
        }
    }

    fn is_at_or_before(&self, index: usize) -> bool {
        let stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.as_ref().is_some_and(|(first, _)| *first <= index)
    }
}

impl<'a> EventHandler<'a> {
    pub(crate) fn new(
        drains: &'a Drains,
        lease: &Lease,
        matcher: &'a Matcher,
        blocks: &'a OpenBlocks<'a>,
    ) -> Self {
        Self {
            drains,
            tenant: lease.tenant.clone(),
            drainer: lease.drainer.clone(),
            epochs: lease.state.epochs.clone(),
            matcher,
            blocks,
            types: OnceCell::new(),
            unsent: AtomicUsize::new(0),
            made: Mutex::default(),
        }
    }

    pub(crate) fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tenant's workflow types as they were when the first was needed.
    pub(crate) async fn types(&self) -> Result<&BTreeMap<Name, WorkflowType>, ComponentError> {
        self.types.get_or_try_init(|| self.drains.registry.types_of(&self.tenant)).await
    }

    /// Handles `places`, which are in order, except those that `finished_before` knows.
    pub(crate) async fn handle(
        &self,
        places: &[TimelineEvent],
        finished_before: impl Fn(&str) -> bool,
        deadline: Option<Instant>,
    ) -> Handled {
        let touched = places.iter().enumerate().filter(|(_, place)| {
            self.matcher.touches(&place.event.event_type) && !finished_before(&place.sk)
        });
        let mut touched = touched.collect::<Vec<_>>().into_iter();
        loop {
            // Planning tells whether an event halts the drain. What comes before such an event is started first, and nothing
            // after it.
            let mut portion = Portion::default();
            let mut halting = None;
            let began = Instant::now();
            for (index, place) in touched.by_ref() {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    let stop = self.finish(portion).await.unwrap_or((index, Stop::OutOfTime));
                    return Handled::stopped(stop);
                }
                // A costly filter must not delay the renewal of the lease or the other tasks of this process.
                tokio::task::consume_budget().await;
                let work = match Box::pin(self.prepare(index, place, &mut portion)).await {
                    Ok(work) => work,
                    Err(error) => {
                        let stop = self.finish(portion).await.unwrap_or((index, Stop::Trouble(error)));
                        return Handled::stopped(stop);
                    }
                };
                if !work.troubles.halts.is_empty() {
                    halting = Some(work);
                    break;
                }
                portion.bytes += work.starts.iter().map(|start| start.pending.effects.size()).sum::<usize>();
                portion.works.push(work);
                if portion.bytes > PORTION_BYTES || began.elapsed() > PORTION_TIME {
                    break;
                }
            }
            if let Some(stop) = self.finish(portion).await {
                return Handled::stopped(stop);
            }
            let Some(work) = halting else {
                match touched.len() {
                    0 => return Handled { finished: places.len(), stop: None },
                    _ => continue,
                }
            };
            let index = work.index;
            match Box::pin(self.start_or_wait(vec![work])).await {
                Ok(Started { halted: None, .. }) => {}
                Ok(Started { halted: Some(halted), .. }) => {
                    return Handled::stopped((index, Stop::Halted(halted)));
                }
                Err(error) => return Handled::stopped((index, error.into())),
            }
        }
    }

    /// Decides what an event starts, and plans it.
    async fn prepare(
        &self,
        index: usize,
        place: &TimelineEvent,
        portion: &mut Portion,
    ) -> Result<Work, ComponentError> {
        let mut event = place.event.clone();
        let sk = place.sk.clone();
        let unreadable = self.restore(&mut event).await;
        let mut starts = Vec::new();
        let mut troubles = NotStarted::default();
        let mut waits = Vec::new();
        for decision in self.matcher.decide(&event) {
            let subscription = decision.subscription;
            let halts = subscription.on_failure == OnFailure::Halt;
            let setback =
                match Box::pin(self.decide_start(&event, &sk, decision, unreadable.as_ref())).await? {
                    StartDecision::Nothing => continue,
                    StartDecision::Loop => {
                        troubles.loops.push(subscription.clone());
                        continue;
                    }
                    StartDecision::Capped => {
                        troubles.capped.push(subscription.clone());
                        continue;
                    }
                    StartDecision::Fails(setback) if halts => {
                        troubles.halts.push((subscription.clone(), setback.reason));
                        continue;
                    }
                    StartDecision::Fails(setback) => match setback.class {
                        Class::Permanent => {
                            troubles.permanent.push((subscription.clone(), setback.reason));
                            continue;
                        }
                        Class::Transient(cause) => Some((cause, setback.reason)),
                    },
                    StartDecision::Start(start) => {
                        let [whole, entity] =
                            Block::names(&subscription.subscription_id, &event.entity_type, &event.entity_id);
                        let waits = portion.waiting.contains(&whole) || portion.waiting.contains(&entity);
                        if !waits && !self.is_blocked(&start, &event) {
                            starts.push(*start);
                            continue;
                        }
                        None
                    }
                };
            waits.push(WaitingStart {
                event: event.clone(),
                sk: sk.clone(),
                epoch: self.epochs.of(&sk),
                subscription: subscription.clone(),
                setback,
                claimed: false,
                from: None,
            });
        }
        for wait in waits {
            let [whole, entity] = wait.names();
            let of_entity = wait.setback.as_ref().is_none_or(|(cause, _)| is_of_entity(*cause));
            portion.waiting.insert(if of_entity { entity } else { whole });
            portion.waits.push((index, wait));
        }
        Ok(Work { index, event, sk, starts, troubles })
    }

    /// Makes the planned starts, then puts those that have to wait into blocks. Returns where it stopped, if it did.
    async fn finish(&self, portion: Portion) -> Option<(usize, Stop)> {
        let first_wait = portion.waits.first().map(|(index, _)| *index);
        if let Some((index, stop)) = self.start_all(portion.works).await {
            return Some((first_wait.map_or(index, |first| first.min(index)), stop));
        }
        let waits: Vec<WaitingStart> = portion.waits.into_iter().map(|(_, wait)| wait).collect();
        self.wait(&waits).await.err().map(|error| (first_wait.unwrap_or(0), error.into()))
    }

    pub(crate) async fn wait(&self, waits: &[WaitingStart]) -> Result<(), BlockError> {
        let mut alerts = Vec::new();
        let waited = Box::pin(self.blocks.wait(waits, &mut alerts)).await;
        self.made().alerts.extend(alerts);
        waited
    }

    /// Whether a start has to wait behind another.
    fn is_blocked(&self, start: &Start, event: &Event) -> bool {
        let subscription = &start.subscription.subscription_id;
        match &start.from {
            None => self.blocks.block_of(subscription, &event.entity_type, &event.entity_id).is_some(),
            // It is released from that block: only the entity's own block can still hold it up.
            Some((name, _)) => {
                let [_, entity] = Block::names(subscription, &event.entity_type, &event.entity_id);
                *name != entity && self.blocks.open().contains_key(&entity)
            }
        }
    }

    /// Starts events, those of different entities at the same time. Returns where it stopped, if it did.
    pub(crate) async fn start_all(&self, works: Vec<Work>) -> Option<(usize, Stop)> {
        let mut lanes: BTreeMap<u64, Vec<Work>> = BTreeMap::new();
        for work in works {
            lanes.entry(lane(&work.event)).or_default().push(work);
        }
        let stopped = Stopped::default();
        join_all(lanes.into_values().map(|works| self.start_lane(works, &stopped))).await;
        // Every lane went on up to the first index that stopped, so everything before it is finished.
        stopped.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start_lane(&self, works: Vec<Work>, stopped: &Stopped) {
        let mut works = works.into_iter().peekable();
        while let Some(first) = works.peek().map(|work| work.index) {
            if stopped.is_at_or_before(first) {
                return;
            }
            let error = match Box::pin(self.start_or_wait(works.by_ref().take(BATCH).collect())).await {
                Ok(Started { halted: Some(halted), .. }) => {
                    return stopped.record(first, Stop::Halted(halted));
                }
                Ok(started) => started.error,
                Err(error) => return stopped.record(first, error.into()),
            };
            if let (Some(error), Some(next)) = (error, works.peek())
                && self.unsent.load(Ordering::Relaxed) >= MAX_UNSENT
            {
                return stopped.record(next.index, Stop::Trouble(error));
            }
        }
    }

    /// Starts some events, and puts the starts that were not sent into blocks.
    async fn start_or_wait(&self, works: Vec<Work>) -> Result<Started, BlockError> {
        let started = self.start(works).await?;
        self.wait(&started.unsent).await?;
        Ok(started)
    }

    /// Claims and sends the starts of some events together. Then parks starts, or halts, where an event asks for it.
    pub(crate) async fn start(&self, works: Vec<Work>) -> Result<Started, BlockError> {
        let mut unsent: Vec<(usize, WaitingStart)> = Vec::new();
        // Two starts of one batch may have the same idempotency key: the second finds the claim of the first.
        let (mut first, mut again): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        for (order, (work, start)) in
            works.iter().flat_map(|work| work.starts.iter().map(move |start| (work, start))).enumerate()
        {
            if self.is_blocked(start, &work.event) {
                unsent.push((order, self.waiting(work, start, None, false)));
                continue;
            }
            let known = |(_, _, other): &(usize, &Work, &Start)| other.pending.key == start.pending.key;
            if first.iter().any(known) { &mut again } else { &mut first }.push((order, work, start));
        }
        let mut failure = None;
        for batch in [first, again] {
            let pending: Vec<PendingEffects> =
                batch.iter().map(|(_, _, start)| start.pending.clone()).collect();
            let group = |position: usize| {
                let (_, work, start) = &batch[position];
                let subscription = &start.subscription.subscription_id;
                let [_, entity] = Block::names(subscription, &work.event.entity_type, &work.event.entity_id);
                entity
            };
            // No start may overtake one that has waited longer.
            let released = batch.iter().any(|(_, _, start)| start.from.is_some());
            let claim_order = if released { ClaimOrder::InGroups } else { ClaimOrder::AllAtOnce };
            let executed = self.drains.outbox.execute_each(&pending, group, claim_order).await?;
            for ((order, work, start), executed) in batch.into_iter().zip(executed) {
                let setback = match executed.sent {
                    Sent::Yes => {
                        let mut made = self.made();
                        if matches!(executed.claimed, Claimed::New) {
                            made.triggered.push(start.triggered.clone());
                        }
                        made.released.extend(start.from.as_ref().map(|(_, member)| member.clone()));
                        continue;
                    }
                    Sent::BlockedByEarlier => None,
                    // Nothing more is recorded: the pass ends, and the next one finds the claim.
                    Sent::Failed(error) if start.subscription.on_failure == OnFailure::Halt => {
                        return Err(error.into());
                    }
                    Sent::Failed(error) => {
                        let setback = (cause_of_send(&error), error.to_string());
                        failure = Some(error);
                        Some(setback)
                    }
                };
                self.unsent.fetch_add(1, Ordering::Relaxed);
                unsent.push((order, self.waiting(work, start, setback, true)));
            }
        }
        unsent.sort_by_key(|(order, _)| *order);
        let unsent = unsent.into_iter().map(|(_, wait)| wait).collect();
        let mut halted = None;
        for work in &works {
            if self.blocks.halted_at().contains(&work.sk) {
                self.delete_halted_starts(work).await?;
            }
            let stop = Box::pin(self.park_or_halt(work)).await?;
            halted = halted.or(stop);
        }
        Ok(Started { halted, unsent, error: failure })
    }

    fn waiting(
        &self,
        work: &Work,
        start: &Start,
        setback: Option<(Cause, String)>,
        claimed: bool,
    ) -> WaitingStart {
        WaitingStart {
            event: work.event.clone(),
            sk: work.sk.clone(),
            epoch: self.epochs.of(&work.sk),
            subscription: start.subscription.clone(),
            setback,
            claimed,
            from: start.from.clone(),
        }
    }

    pub(crate) fn about<'e>(&'e self, event: &'e Event, sk: &'e str, subscription: &'e str) -> About<'e> {
        About { drainer: &self.drainer, epoch: self.epochs.of(sk), subscription, event, sk }
    }
}

impl Handled {
    fn stopped((finished, stop): (usize, Stop)) -> Self {
        Self { finished, stop: Some(stop) }
    }
}

fn lane(event: &Event) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&*event.entity_type, &*event.entity_id).hash(&mut hasher);
    hasher.finish() % LANES
}
