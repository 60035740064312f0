//! How an operator retries or drops a parked start. The cursor does not move: the start gets the claim that the drainer would
//! have made, so it is made once. Only the drainer changes a start that waits in a block: the operator leaves it a request.

use std::time::Duration;

use ledgerline_event::Name;
use ledgerline_store::{OperatorAction, keys};
use ledgerline_subscription::{Matcher, Verdict};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    Drains, ParkedStart, ParkedState, Triggered,
    start_plan::{Origin, PlanError, caused_by},
};
use ledgerline_outbox::{Claimed, ComponentError, start_claim_ttl};

/// What became of a retry.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Retried {
    /// The id of the task, job, run or sent event.
    pub started: Option<Name>,
    /// It had been started before; nothing was started now.
    pub already_started: bool,
    /// The drainer is at work in another process, and does it in its next pass.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
}

/// A visit on request takes at most this long: API Gateway waits half a minute for an answer.
const VISIT_TIMEOUT: Duration = Duration::from_secs(20);

impl Drains {
    /// Starts a parked start after all.
    pub async fn retry(&self, tenant: &Name, id: &str) -> Result<Retried, ComponentError> {
        let parked = self.parked.parked_start(tenant, id).await?;
        if let Some(block) = blocked_in(&parked) {
            return self.retry_blocked(tenant, &parked, &block).await;
        }
        let event = self.timeline.at(tenant, &parked.event_place).await?.ok_or_else(|| {
            ComponentError::Refused(format!("the event {} is no longer in the ledger", parked.event_id))
        })?;
        let subscription = match self.registry.subscription(tenant, &parked.subscription_id).await {
            Err(ComponentError::Unknown { id, .. }) => {
                return Err(ComponentError::Refused(format!(
                    "the subscription {id} is gone: drop the start"
                )));
            }
            other => other?,
        };
        let wanted = subscription.workflow_type.clone();
        let matcher = Matcher::new(vec![subscription]);
        let input = match matcher.decide_one(&parked.subscription_id, &event) {
            Some(Verdict::Start { input } | Verdict::Loop { input } | Verdict::Capped { input }) => input,
            Some(Verdict::Failed { reason }) => return self.failed_again(tenant, parked, reason).await,
            Some(Verdict::Filtered | Verdict::Lacking { .. } | Verdict::InVia) | None => {
                let reason = "the subscription does not want this event any more; drop it".to_owned();
                return self.failed_again(tenant, parked, reason).await;
            }
        };
        let types = self.registry.types_of(tenant).await?;
        let Some(workflow_type) = types.get(&wanted) else {
            let reason = format!("the workflow type `{wanted}` is not registered");
            return self.failed_again(tenant, parked, reason).await;
        };
        let origin = Origin {
            emitter: caused_by(&self.emitter, &event, &parked.subscription_id),
            drainer: &parked.drainer_id,
            claim: self.claim_of(tenant, &parked),
            ttl: start_claim_ttl(event.ttl),
        };
        let pending = match Box::pin(self.planner.plan(origin, workflow_type, input)).await {
            Ok(pending) => pending,
            Err(PlanError::Invalid(reason) | PlanError::Unregistered(reason)) => {
                return self.failed_again(tenant, parked, reason).await;
            }
            Err(PlanError::Dropped) => return Err(ComponentError::Refused("it was dropped before".into())),
            Err(PlanError::Trouble(error)) => return Err(error),
        };
        let claimed = self.outbox.execute(&pending).await?;
        self.parked.records.delete(tenant, id).await?;
        Ok(match claimed {
            Claimed::Before(claim) => Retried { started: claim.started, already_started: true, asked: false },
            Claimed::New | Claimed::Recorded => {
                Retried { started: pending.started, already_started: false, asked: false }
            }
        })
    }

    /// Drops a parked start: it will not start in this epoch.
    pub async fn drop_parked(&self, tenant: &Name, id: &str) -> Result<ParkedStart, ComponentError> {
        let parked = self.parked.parked_start(tenant, id).await?;
        if let Some(block) = blocked_in(&parked) {
            let drained = self.ask(tenant, &parked, &block, OperatorAction::Drop, deadline()).await?;
            let there = self.parked.records.get(tenant, id).await?;
            if there.is_some_and(|there| there.block.is_some()) && !drained.skipped_due_to_lock {
                let reason = "it is started, and what it sends is still on its way: it cannot be dropped";
                return Err(ComponentError::Refused(reason.into()));
            }
            return Ok(parked);
        }
        let claim = self.claim_of(tenant, &parked);
        let claimed = self.outbox.drop_start(&claim, start_claim_ttl(parked.ttl)).await?;
        let dropped = matches!(claimed, Claimed::New) || self.outbox.is_dropped(&claim).await?;
        // Either way nothing is left to decide about it.
        self.parked.records.delete(tenant, id).await?;
        if dropped {
            return Ok(parked);
        }
        let claim = self.outbox.claim_at(&claim).await?;
        let started = claim.and_then(|claim| claim.started).map(|started| format!(" as {started}"));
        let started = started.unwrap_or_default();
        Err(ComponentError::Refused(format!(
            "it was started{started} in the meantime: there is nothing to drop"
        )))
    }

    /// Has the drainer try the block that a start waits in.
    async fn retry_blocked(
        &self,
        tenant: &Name,
        start: &ParkedStart,
        block: &str,
    ) -> Result<Retried, ComponentError> {
        let drained = self.ask(tenant, start, block, OperatorAction::Retry, deadline()).await?;
        let ours = |made: &&Triggered| {
            made.event_id == start.event_id && made.subscription_id == start.subscription_id
        };
        if let Some(made) = drained.triggered.iter().find(ours) {
            let started = Some(made.started.clone());
            return Ok(Retried { started, already_started: false, asked: false });
        }
        match self.parked.parked_start(tenant, &start.id).await {
            Ok(_) if drained.skipped_due_to_lock => {
                Ok(Retried { started: None, already_started: false, asked: true })
            }
            Ok(there) => Err(ComponentError::Refused(format!("it failed again: {}", there.reason))),
            Err(ComponentError::Unknown { .. }) => {
                let claim = self.outbox.claim_at(&self.claim_of(tenant, start)).await?;
                match claim.and_then(|claim| claim.started) {
                    Some(started) => {
                        Ok(Retried { started: Some(started), already_started: true, asked: false })
                    }
                    None => Err(ComponentError::Refused(
                        "the subscription does not want this event any more: nothing is left to start".into(),
                    )),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn claim_of(&self, tenant: &Name, parked: &ParkedStart) -> keys::ControlKey {
        keys::start_claim(
            tenant,
            &parked.event_place,
            &parked.drainer_id,
            parked.epoch,
            &parked.subscription_id,
        )
    }

    async fn failed_again(
        &self,
        tenant: &Name,
        parked: ParkedStart,
        reason: String,
    ) -> Result<Retried, ComponentError> {
        let again = ParkedStart { reason: reason.clone(), attempts: parked.attempts + 1, ..parked };
        // This fails too if the drain has written the row since, or if the row is gone.
        if let Err(error) = self.parked.records.note_attempt(tenant, &again).await {
            tracing::warn!(%error, "could not store the failed attempt of a parked start");
        }
        Err(ComponentError::Refused(format!("it failed again: {reason}")))
    }
}

/// The block that a start waits in.
fn blocked_in(start: &ParkedStart) -> Option<String> {
    start.block.clone().filter(|_| start.state == ParkedState::Retrying)
}

fn deadline() -> Option<Instant> {
    Some(Instant::now() + VISIT_TIMEOUT)
}
