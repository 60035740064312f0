//! Handling some events in the order of the time line: which subscriptions they start, and how
//! far everything is finished.
//!
//! Events of different entities are handled side by side; those of one entity one after the
//! other. What counts is the finished prefix: an event that stops the drain stops what comes
//! after it, and nothing before it is left undone.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use ledgerline_event::{Event, Name, overflow};
use ledgerline_ledger::{Fault, Place, control::keys::ControlKey};
use ledgerline_subscription::{FAN_OUT, MAX_VIA, Matcher, Subscription, Verdict, WorkflowType};
use serde::Serialize;
use serde_json::json;
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    Dispatch, DispatchError, Epochs, Halted, ParkedBecause,
    claim::{Claimed, Intent},
    notice::{About, Notice},
    record::Lease,
    start::{Input, NoPlan, Origin, caused_by},
};

/// Entities that are handled side by side.
const LANES: u64 = 8;
/// Events of one lane whose effects are sent together.
const BATCH: usize = 10;
/// Effects that are planned before they are sent: they are all held in memory.
const PORTION_BYTES: usize = 8_000_000;
/// What is planned so far is sent after this long.
const PORTION_TIME: Duration = Duration::from_secs(2);
/// Characters of a reason that are kept.
const MAX_REASON: usize = 1_000;

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

/// What one pass handles events with.
pub(crate) struct Handler<'a> {
    pub(crate) dispatch: &'a Dispatch,
    pub(crate) tenant: Name,
    pub(crate) drainer: Name,
    pub(crate) epochs: Epochs,
    pub(crate) matcher: &'a Matcher,
    /// The event that the drain stood before when the lease was taken.
    halted_before: Option<Name>,
    types: OnceCell<BTreeMap<Name, WorkflowType>>,
    made: Mutex<Made>,
}

/// What was made along the way.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) triggered: Vec<Triggered>,
    pub(crate) alerts: Vec<ControlKey>,
}

/// How far it went.
pub(crate) struct Handled {
    /// The length of the finished prefix.
    pub(crate) finished: usize,
    /// Why it is not everything.
    pub(crate) stop: Option<Stop>,
}

pub(crate) enum Stop {
    OutOfTime,
    Halted(Halted),
    Trouble(DispatchError),
}

/// One event with what it leads to.
struct Work {
    index: usize,
    event: Event,
    sk: String,
    starts: Vec<(Intent, Triggered)>,
    troubles: Troubles,
}

/// The first index at which something stopped, and why.
#[derive(Default)]
struct Stopped(Mutex<Option<(usize, Stop)>>);

impl Stopped {
    fn at(&self, index: usize, stop: Stop) {
        let mut stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stopped.as_ref().is_none_or(|(first, _)| index < *first) {
            *stopped = Some((index, stop));
        }
    }

    fn before(&self, index: usize) -> bool {
        let stopped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.as_ref().is_some_and(|(first, _)| *first <= index)
    }
}

impl<'a> Handler<'a> {
    pub(crate) fn new(dispatch: &'a Dispatch, lease: &Lease, matcher: &'a Matcher) -> Self {
        Self {
            dispatch,
            tenant: lease.tenant.clone(),
            drainer: lease.drainer.clone(),
            epochs: lease.record.epochs.clone(),
            matcher,
            halted_before: lease.record.halted_on_event_id.clone(),
            types: OnceCell::new(),
            made: Mutex::default(),
        }
    }

    pub(crate) fn made(self) -> Made {
        self.made.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles `places`, which are in order, except those that `finished_before` knows.
    pub(crate) async fn handle(
        &self,
        places: &[Place],
        finished_before: impl Fn(&str) -> bool,
        deadline: Option<Instant>,
    ) -> Handled {
        let touched = places.iter().enumerate().filter(|(_, place)| {
            self.matcher.touches(&place.event.event_type) && !finished_before(&place.sk)
        });
        let mut touched = touched.collect::<Vec<_>>().into_iter();
        loop {
            // Whether an event can start everything is known before anything is sent. So what comes
            // before one that cannot is started first, and nothing after it before it is parked.
            let mut works: Vec<Work> = Vec::new();
            let mut troubled = None;
            let mut bytes = 0;
            let began = Instant::now();
            for (index, place) in touched.by_ref() {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    let stop = self.start_all(works).await.unwrap_or((index, Stop::OutOfTime));
                    return Handled::stopped(stop);
                }
                // A costly filter must not keep the lease from being renewed, or others from their turn.
                tokio::task::consume_budget().await;
                match Box::pin(self.prepare(index, place)).await {
                    Ok(work) if work.troubles.setbacks.is_empty() => {
                        bytes += work.starts.iter().map(|(intent, _)| intent.effects.size()).sum::<usize>();
                        works.push(work);
                        if bytes > PORTION_BYTES || began.elapsed() > PORTION_TIME {
                            break;
                        }
                    }
                    Ok(work) => {
                        troubled = Some(work);
                        break;
                    }
                    Err(error) => {
                        let stop = self.start_all(works).await.unwrap_or((index, Stop::Trouble(error)));
                        return Handled::stopped(stop);
                    }
                }
            }
            if let Some(stop) = self.start_all(works).await {
                return Handled::stopped(stop);
            }
            let Some(work) = troubled else {
                match touched.len() {
                    0 => return Handled { finished: places.len(), stop: None },
                    _ => continue,
                }
            };
            let index = work.index;
            match Box::pin(self.start(vec![work])).await {
                Ok(None) => {}
                Ok(Some(halted)) => return Handled::stopped((index, Stop::Halted(halted))),
                Err(error) => return Handled::stopped((index, Stop::Trouble(error))),
            }
        }
    }

    /// Decides what an event starts, and plans it.
    async fn prepare(&self, index: usize, place: &Place) -> Result<Work, DispatchError> {
        let mut event = place.event.clone();
        let unreadable = match self.dispatch.timeline.restore(&mut event).await {
            Err(error) if error.fault == Fault::Rejected => Some(error.to_string()),
            Err(error) => return Err(error.into()),
            Ok(()) if overflow::marker(&event.properties).is_some() => {
                Some("the part of the event that overflowed to S3 is missing or is not what was sent".into())
            }
            Ok(()) => None,
        };
        let mut starts = Vec::new();
        let mut troubles = Troubles::default();
        for decision in self.matcher.decide(&event) {
            let subscription = decision.subscription;
            match decision.verdict {
                Verdict::InVia => {}
                _ if unreadable.is_some() => {
                    troubles.setbacks.push((subscription.clone(), unreadable.clone().unwrap_or_default()));
                }
                Verdict::Filtered | Verdict::Lacking { .. } => {}
                Verdict::Failed { reason } => troubles.setbacks.push((subscription.clone(), reason)),
                Verdict::Loop { .. } => troubles.loops.push(subscription.clone()),
                Verdict::Capped { .. } => troubles.capped.push(subscription.clone()),
                Verdict::Start { input } => match self.plan(&event, &place.sk, subscription, input).await {
                    Ok(intent) => {
                        let id = &subscription.subscription_id;
                        let triggered = Triggered {
                            event_id: event.event_id.clone(),
                            subscription_id: id.clone(),
                            workflow_type: subscription.workflow_type.clone(),
                            started: intent.started.clone().unwrap_or_else(|| id.clone()),
                        };
                        starts.push((intent, triggered));
                    }
                    Err(NoPlan::Dropped) => {}
                    Err(NoPlan::Unfit(reason)) => troubles.setbacks.push((subscription.clone(), reason)),
                    Err(NoPlan::Trouble(error)) => return Err(error),
                },
            }
        }
        Ok(Work { index, event, sk: place.sk.clone(), starts, troubles })
    }

    /// Starts side by side what belongs to different entities. Answers where it stopped, if it did.
    async fn start_all(&self, works: Vec<Work>) -> Option<(usize, Stop)> {
        let mut lanes: BTreeMap<u64, Vec<Work>> = BTreeMap::new();
        for work in works {
            lanes.entry(lane(&work.event)).or_default().push(work);
        }
        let stopped = Stopped::default();
        join_all(lanes.into_values().map(|works| self.start_lane(works, &stopped))).await;
        // Every lane went on up to there, so everything before is finished.
        stopped.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start_lane(&self, works: Vec<Work>, stopped: &Stopped) {
        let mut works = works.into_iter().peekable();
        while let Some(first) = works.peek().map(|work| work.index) {
            if stopped.before(first) {
                return;
            }
            match Box::pin(self.start(works.by_ref().take(BATCH).collect())).await {
                Ok(None) => {}
                Ok(Some(halted)) => return stopped.at(first, Stop::Halted(halted)),
                Err(trouble) => return stopped.at(first, Stop::Trouble(trouble)),
            }
        }
    }

    /// Claims and sends the starts of some events together, and then deals with what went wrong.
    async fn start(&self, works: Vec<Work>) -> Result<Option<Halted>, DispatchError> {
        // Two starts of one batch may have the same idempotency key: the second finds the claim of the first.
        let (mut first, mut again): (Vec<&(Intent, Triggered)>, Vec<Intent>) = (Vec::new(), Vec::new());
        for start in works.iter().flat_map(|work| &work.starts) {
            match first.iter().any(|(other, _)| other.key == start.0.key) {
                true => again.push(start.0.clone()),
                false => first.push(start),
            }
        }
        let intents: Vec<Intent> = first.iter().map(|(intent, _)| intent.clone()).collect();
        let claimed = self.dispatch.carry_out(&intents).await?;
        self.dispatch.carry_out(&again).await?;
        let new = first.iter().zip(claimed).filter(|(_, claimed)| matches!(claimed, Claimed::New));
        let new = new.map(|((_, triggered), _)| triggered.clone());
        self.made.lock().unwrap_or_else(PoisonError::into_inner).triggered.extend(new);
        let mut halted = None;
        for work in &works {
            if self.halted_before.as_ref() == Some(&work.event.event_id) {
                self.no_longer_retrying(work).await?;
            }
            let stop = Box::pin(self.deal_with(work)).await?;
            halted = halted.or(stop);
        }
        Ok(halted)
    }

    async fn plan(
        &self,
        event: &Event,
        sk: &str,
        subscription: &Subscription,
        input: Input,
    ) -> Result<Intent, NoPlan> {
        let types = self.types.get_or_try_init(|| self.dispatch.types_of(&self.tenant)).await?;
        let Some(workflow_type) = types.get(&subscription.workflow_type) else {
            let reason = format!("the workflow type `{}` is not registered", subscription.workflow_type);
            return Err(NoPlan::Unfit(reason));
        };
        let about = self.about(event, sk, &subscription.subscription_id);
        // Elsewhere the claim itself says so; here it is the key's.
        if workflow_type.idempotency_key.is_some() && self.dispatch.is_dropped(&about.start_claim()).await? {
            return Err(NoPlan::Dropped);
        }
        let origin = Origin {
            emitter: caused_by(&self.dispatch.emitter, event, &subscription.subscription_id),
            drainer: &self.drainer,
            claim: about.start_claim(),
            ttl: event.ttl,
        };
        self.dispatch.plan(origin, workflow_type, input).await
    }

    fn about<'e>(&'e self, event: &'e Event, sk: &'e str, subscription: &'e str) -> About<'e> {
        About { drainer: &self.drainer, epoch: self.epochs.of(sk), subscription, event, sk }
    }

    /// What did not start before has started now.
    async fn no_longer_retrying(&self, work: &Work) -> Result<(), DispatchError> {
        for (_, triggered) in &work.starts {
            let about = self.about(&work.event, &work.sk, &triggered.subscription_id);
            self.dispatch.no_longer_retrying(about).await?;
        }
        Ok(())
    }

    /// Parks, retries, tells. Answers whether the drain stops before this event.
    async fn deal_with(&self, work: &Work) -> Result<Option<Halted>, DispatchError> {
        let Work { event, sk, troubles, .. } = work;
        if troubles.are_none() {
            return Ok(None);
        }
        let mut alerts = Vec::new();
        for subscription in &troubles.loops {
            let about = self.about(event, sk, &subscription.subscription_id);
            let reason =
                format!("{MAX_VIA} subscriptions have led here already: {}", event.context.via.join(", "));
            let reason: String = reason.chars().take(MAX_REASON).collect();
            let told =
                self.dispatch.tell_parked(about, subscription, ParkedBecause::Loop, &reason, 0).await?;
            alerts.extend(told);
            self.dispatch.park(about, subscription, ParkedBecause::Loop, reason).await?;
        }
        if !troubles.capped.is_empty() {
            alerts.extend(self.cap(event, sk, &troubles.capped).await?);
        }
        let mut halted = None;
        for (subscription, reason) in &troubles.setbacks {
            let about = self.about(event, sk, &subscription.subscription_id);
            let reason = reason.chars().take(MAX_REASON).collect();
            let stop = self.dispatch.setback(about, subscription, reason, &mut alerts).await?;
            halted = halted.or(stop);
        }
        self.made.lock().unwrap_or_else(PoisonError::into_inner).alerts.extend(alerts);
        Ok(halted)
    }

    /// More subscriptions than may start: the rest are parked, and told of together.
    async fn cap(
        &self,
        event: &Event,
        sk: &str,
        capped: &[Subscription],
    ) -> Result<Option<ControlKey>, DispatchError> {
        let about = self.about(event, sk, "");
        let ids: Vec<&Name> = capped.iter().map(|subscription| &subscription.subscription_id).collect();
        let matched = FAN_OUT + capped.len();
        let reason = format!("{matched} subscriptions match this event and at most {FAN_OUT} start");
        let details = json!({ "subscriptionIds": ids, "matched": matched, "started": FAN_OUT });
        self.dispatch.notify(Notice::Capped, about, details).await?;
        let text = format!(
            ":warning: *Too many subscriptions for one event*\n*Event* {} {} ({}/{})\n*Tenant* {}\n{reason}; the other \
             {} are parked.\n`ledgerline {} --tenant '{}' parked list`",
            event.event_type,
            event.event_id,
            event.entity_type,
            event.entity_id,
            event.tenant_id,
            capped.len(),
            self.dispatch.ledger_flag,
            event.tenant_id,
        );
        let alert = self.dispatch.alert(Notice::Capped, about, text).await?;
        for subscription in capped {
            let about = self.about(event, sk, &subscription.subscription_id);
            self.dispatch.park(about, subscription, ParkedBecause::FanoutCap, reason.clone()).await?;
        }
        Ok(alert)
    }
}

/// What is wrong with an event's starts.
#[derive(Default)]
struct Troubles {
    setbacks: Vec<(Subscription, String)>,
    loops: Vec<Subscription>,
    capped: Vec<Subscription>,
}

impl Troubles {
    fn are_none(&self) -> bool {
        self.setbacks.is_empty() && self.loops.is_empty() && self.capped.is_empty()
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
