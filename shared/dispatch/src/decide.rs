//! What one event means for one subscription: nothing, a start with its claim planned, or why there is none.

use ledgerline_event::{Event, overflow};
use ledgerline_ledger::Fault;
use ledgerline_subscription::{Decision, Subscription, Verdict};

use crate::{
    DispatchError, Triggered,
    block::{Cause, Member, Setback},
    claim::{Intent, outliving},
    handle::Handler,
    start::{Input, NoPlan, Origin, caused_by},
};

/// Characters of a reason that are kept.
pub(crate) const MAX_REASON: usize = 1_000;

/// A start that can be made.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) intent: Intent,
    pub(crate) triggered: Triggered,
    pub(crate) subscription: Subscription,
    /// The block that it is released from, and its place in it.
    pub(crate) from: Option<(String, Member)>,
}

/// What is to be done for one subscription.
pub(crate) enum Outcome {
    Nothing,
    Start(Box<Start>),
    Fails(Setback),
    Loop,
    Capped,
}

impl Handler<'_> {
    /// Makes an event whole. The setback says why it cannot be.
    pub(crate) async fn restore(&self, event: &mut Event) -> Option<Setback> {
        match self.dispatch.timeline.restore(event).await {
            Err(error) if error.fault == Fault::Rejected => Some(Setback::permanent(error.to_string())),
            Err(error) => Some(Setback::transient(Cause::Unavailable, error.to_string())),
            Ok(()) => overflow::missing(&event.properties).map(Setback::permanent),
        }
    }

    /// Plans what a decision asks for. `unreadable` is why the event is not whole.
    pub(crate) async fn outcome(
        &self,
        event: &Event,
        sk: &str,
        decision: Decision<'_>,
        unreadable: Option<&Setback>,
    ) -> Result<Outcome, DispatchError> {
        let subscription = decision.subscription;
        let planned = match (decision.verdict, unreadable) {
            (Verdict::InVia, _) => return Ok(Outcome::Nothing),
            (_, Some(setback)) => return Ok(Outcome::Fails(setback.clone())),
            (Verdict::Filtered | Verdict::Lacking { .. }, None) => return Ok(Outcome::Nothing),
            (Verdict::Failed { reason }, None) => Err(NoPlan::Unfit(reason)),
            (Verdict::Loop { .. }, None) => return Ok(Outcome::Loop),
            (Verdict::Capped { .. }, None) => return Ok(Outcome::Capped),
            (Verdict::Start { input }, None) => self.plan(event, sk, subscription, input).await,
        };
        let intent = match planned {
            Ok(intent) => intent,
            Err(NoPlan::Dropped) => return Ok(Outcome::Nothing),
            Err(NoPlan::Unregistered(reason)) => {
                return Ok(Outcome::Fails(Setback::transient(Cause::Unregistered, reason)));
            }
            Err(NoPlan::Unfit(reason)) => {
                let reason: String = reason.chars().take(MAX_REASON).collect();
                return Ok(Outcome::Fails(Setback::permanent(reason)));
            }
            Err(NoPlan::Trouble(error)) => return Err(error),
        };
        let id = &subscription.subscription_id;
        let triggered = Triggered {
            event_id: event.event_id.clone(),
            subscription_id: id.clone(),
            workflow_type: subscription.workflow_type.clone(),
            started: intent.started.clone().unwrap_or_else(|| id.clone()),
        };
        Ok(Outcome::Start(Box::new(Start {
            intent,
            triggered,
            subscription: subscription.clone(),
            from: None,
        })))
    }

    async fn plan(
        &self,
        event: &Event,
        sk: &str,
        subscription: &Subscription,
        input: Input,
    ) -> Result<Intent, NoPlan> {
        let types = self.types().await?;
        let Some(workflow_type) = types.get(&subscription.workflow_type) else {
            let reason = format!("the workflow type `{}` is not registered", subscription.workflow_type);
            return Err(NoPlan::Unregistered(reason));
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
            ttl: outliving(event.ttl),
        };
        self.dispatch.plan(origin, workflow_type, input).await
    }
}
