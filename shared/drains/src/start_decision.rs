//! What one event means for one subscription: nothing, a start with its claim planned, or why there is none.

use ledgerline_event::{Event, overflow};
use ledgerline_store::{Cause, Fault, Member};
use ledgerline_subscription::{Decision, Subscription, Verdict};

use crate::{
    Triggered,
    block_retry::Setback,
    event_handler::EventHandler,
    start_plan::{Input, Origin, PlanError, caused_by},
};
use ledgerline_outbox::{ComponentError, PendingEffects, start_claim_ttl};

/// A reason is cut after so many characters.
pub(crate) const MAX_REASON: usize = 1_000;

/// A start that can be made.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) pending: PendingEffects,
    pub(crate) triggered: Triggered,
    pub(crate) subscription: Subscription,
    /// The block that it is released from, if it waited in one, and what it was there.
    pub(crate) from: Option<(String, Member)>,
}

/// What is to be done for one subscription.
pub(crate) enum StartDecision {
    Nothing,
    Start(Box<Start>),
    Fails(Setback),
    Loop,
    Capped,
}

impl EventHandler<'_> {
    /// Restores the overflowed properties of an event. If that fails, returns why.
    pub(crate) async fn restore(&self, event: &mut Event) -> Option<Setback> {
        match self.drains.timeline.restore(event).await {
            Err(error) if error.fault == Fault::Rejected => Some(Setback::permanent(error.to_string())),
            Err(error) => Some(Setback::transient(Cause::Unavailable, error.to_string())),
            Ok(()) => overflow::missing(&event.properties).map(Setback::permanent),
        }
    }

    /// Plans what a subscription starts on an event. `unreadable` says why the event could not be restored, if so.
    pub(crate) async fn decide_start(
        &self,
        event: &Event,
        sk: &str,
        decision: Decision<'_>,
        unreadable: Option<&Setback>,
    ) -> Result<StartDecision, ComponentError> {
        let subscription = decision.subscription;
        let planned = match (decision.verdict, unreadable) {
            (Verdict::InVia, _) => return Ok(StartDecision::Nothing),
            (_, Some(setback)) => return Ok(StartDecision::Fails(setback.clone())),
            (Verdict::Filtered | Verdict::Lacking { .. }, None) => return Ok(StartDecision::Nothing),
            (Verdict::Failed { reason }, None) => Err(PlanError::Invalid(reason)),
            (Verdict::Loop { .. }, None) => return Ok(StartDecision::Loop),
            (Verdict::Capped { .. }, None) => return Ok(StartDecision::Capped),
            (Verdict::Start { input }, None) => self.plan(event, sk, subscription, input).await,
        };
        let pending = match planned {
            Ok(pending) => pending,
            Err(PlanError::Dropped) => return Ok(StartDecision::Nothing),
            Err(PlanError::Unregistered(reason)) => {
                return Ok(StartDecision::Fails(Setback::transient(Cause::Unregistered, reason)));
            }
            Err(PlanError::Invalid(reason)) => {
                let reason: String = reason.chars().take(MAX_REASON).collect();
                return Ok(StartDecision::Fails(Setback::permanent(reason)));
            }
            Err(PlanError::Trouble(error)) => return Err(error),
        };
        let id = &subscription.subscription_id;
        let triggered = Triggered {
            event_id: event.event_id.clone(),
            subscription_id: id.clone(),
            workflow_type: subscription.workflow_type.clone(),
            started: pending.started.clone().unwrap_or_else(|| id.clone()),
        };
        Ok(StartDecision::Start(Box::new(Start {
            pending,
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
    ) -> Result<PendingEffects, PlanError> {
        let types = self.types().await?;
        let Some(workflow_type) = types.get(&subscription.workflow_type) else {
            let reason = format!("the workflow type `{}` is not registered", subscription.workflow_type);
            return Err(PlanError::Unregistered(reason));
        };
        let about = self.about(event, sk, &subscription.subscription_id);
        // With an idempotency key the claim is that of the key. Only the start's own claim says that it was dropped.
        if workflow_type.idempotency_key.is_some()
            && self.drains.outbox.is_dropped(&about.start_claim()).await?
        {
            return Err(PlanError::Dropped);
        }
        let origin = Origin {
            emitter: caused_by(&self.drains.emitter, event, &subscription.subscription_id),
            drainer: &self.drainer,
            claim: about.start_claim(),
            ttl: start_claim_ttl(event.ttl),
        };
        self.drains.planner.plan(origin, workflow_type, input).await
    }
}
