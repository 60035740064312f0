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
};

use futures::future::join_all;
use ledgerline_event::{Event, Name};
use ledgerline_ledger::{Place, control::keys::ControlKey};
use ledgerline_subscription::{FAN_OUT, MAX_VIA, Matcher, Subscription, Verdict, WorkflowType};
use serde::Serialize;
use serde_json::json;
use tokio::sync::OnceCell;

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
    Halted(Halted),
    Trouble(DispatchError),
}

/// One event with what it leads to.
struct Work<'p> {
    index: usize,
    place: &'p Place,
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
        finished_before: impl Fn(u64, &str) -> bool,
    ) -> Handled {
        let mut lanes: BTreeMap<u64, Vec<Work<'_>>> = BTreeMap::new();
        for (index, place) in places.iter().enumerate() {
            let touched = self.matcher.touches(&place.event.event_type);
            if touched && !finished_before(self.epochs.of(&place.sk), &place.sk) {
                lanes.entry(lane(&place.event)).or_default().push(Work { index, place });
            }
        }
        let stopped = Stopped::default();
        join_all(lanes.into_values().map(|works| self.handle_lane(works, &stopped))).await;
        match stopped.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Handled { finished: places.len(), stop: None },
            // Every lane went on up to here, so everything before is finished.
            Some((index, stop)) => Handled { finished: index, stop: Some(stop) },
        }
    }

    async fn handle_lane(&self, works: Vec<Work<'_>>, stopped: &Stopped) {
        let mut works = works.into_iter().peekable();
        while let Some(first) = works.peek().map(|work| work.index) {
            if stopped.before(first) {
                return;
            }
            match self.handle_some(&mut works, stopped).await {
                Ok(None) => {}
                Ok(Some((index, halted))) => return stopped.at(index, Stop::Halted(halted)),
                Err(trouble) => return stopped.at(first, Stop::Trouble(trouble)),
            }
        }
    }

    /// Takes as many events as go together: starts them all, and then looks at what went wrong with
    /// the last of them, if anything did.
    async fn handle_some(
        &self,
        works: &mut impl Iterator<Item = Work<'_>>,
        stopped: &Stopped,
    ) -> Result<Option<(usize, Halted)>, DispatchError> {
        let mut intents: Vec<Intent> = Vec::new();
        let mut starts: Vec<Triggered> = Vec::new();
        let mut taken = 0;
        let mut troubled = None;
        for work in works.by_ref() {
            if stopped.before(work.index) {
                break;
            }
            taken += 1;
            let mut event = work.place.event.clone();
            self.dispatch.timeline.restore(&mut event).await?;
            let mut plan = Plan::default();
            for decision in self.matcher.decide(&event) {
                let subscription = decision.subscription;
                let (id, workflow_type) = (&subscription.subscription_id, &subscription.workflow_type);
                match decision.verdict {
                    Verdict::Filtered | Verdict::InVia => {}
                    Verdict::Failed { reason } => plan.setbacks.push((subscription, reason)),
                    Verdict::Loop { .. } => plan.loops.push(subscription),
                    Verdict::Capped { .. } => plan.capped.push(subscription),
                    Verdict::Start { input } => {
                        match self.plan(&event, &work.place.sk, subscription, input).await {
                            Ok(intent) => {
                                starts.push(Triggered {
                                    event_id: event.event_id.clone(),
                                    subscription_id: id.clone(),
                                    workflow_type: workflow_type.clone(),
                                    started: intent.started.clone().unwrap_or_else(|| id.clone()),
                                });
                                intents.push(intent);
                            }
                            Err(NoPlan::Unfit(reason)) => plan.setbacks.push((subscription, reason)),
                            Err(NoPlan::Trouble(error)) => return Err(error),
                        }
                    }
                }
            }
            if !plan.is_plain() {
                troubled = Some((work, event, plan));
                break;
            }
            if taken == BATCH {
                break;
            }
        }
        // Two events of one batch may have the same idempotency key.
        let (mut first, mut again) = (Vec::new(), Vec::new());
        for (position, intent) in intents.iter().enumerate() {
            let repeated = intents[..position].iter().any(|other| other.key == intent.key);
            if repeated { again.push(intent.clone()) } else { first.push((position, intent.clone())) }
        }
        let (positions, first): (Vec<usize>, Vec<Intent>) = first.into_iter().unzip();
        let claimed = self.dispatch.carry_out(&first).await?;
        self.dispatch.carry_out(&again).await?;
        let new: Vec<Triggered> = positions
            .into_iter()
            .zip(claimed)
            .filter(|(_, claimed)| matches!(claimed, Claimed::New))
            .map(|(position, _)| starts[position].clone())
            .collect();
        self.made.lock().unwrap_or_else(PoisonError::into_inner).triggered.extend(new);
        match troubled {
            None => Ok(None),
            Some((work, event, plan)) => {
                let halted = self.troubles(&event, &work.place.sk, plan).await?;
                Ok(halted.map(|halted| (work.index, halted)))
            }
        }
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

    /// Parks, retries, tells. Answers whether the drain stops before this event.
    async fn troubles(
        &self,
        event: &Event,
        sk: &str,
        plan: Plan<'_>,
    ) -> Result<Option<Halted>, DispatchError> {
        let mut alerts = Vec::new();
        for subscription in plan.loops {
            let about = self.about(event, sk, &subscription.subscription_id);
            let reason =
                format!("{MAX_VIA} subscriptions have led here already: {}", event.context.via.join(", "));
            let told =
                self.dispatch.tell_parked(about, subscription, ParkedBecause::Loop, &reason, 0).await?;
            alerts.extend(told);
            self.dispatch.park(about, subscription, ParkedBecause::Loop, reason).await?;
        }
        if !plan.capped.is_empty() {
            alerts.extend(self.cap(event, sk, &plan.capped).await?);
        }
        let mut halted = None;
        for (subscription, reason) in plan.setbacks {
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
        capped: &[&Subscription],
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
struct Plan<'s> {
    setbacks: Vec<(&'s Subscription, String)>,
    loops: Vec<&'s Subscription>,
    capped: Vec<&'s Subscription>,
}

impl Plan<'_> {
    fn is_plain(&self) -> bool {
        self.setbacks.is_empty() && self.loops.is_empty() && self.capped.is_empty()
    }
}

fn lane(event: &Event) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&*event.entity_type, &*event.entity_id).hash(&mut hasher);
    hasher.finish() % LANES
}
