//! What an operator does about a parked start. The cursor is never touched: the start has the
//! claim that the drain would have made, so whoever comes first makes it, once.

use ledgerline_event::Name;
use ledgerline_ledger::{StoreError, control::keys};
use ledgerline_subscription::{Matcher, Verdict};
use serde::Serialize;

use crate::{
    Dispatch, DispatchError, ParkedStart, ParkedState,
    claim::Claimed,
    conditional::{number, text},
    start::{NoPlan, Origin, caused_by},
};

/// What became of a retry.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Retried {
    /// The id of the task, job, run or sent event.
    pub started: Option<Name>,
    /// It had been started before; nothing was started now.
    pub already_started: bool,
}

impl Dispatch {
    /// Starts a parked start after all.
    pub async fn retry(&self, tenant: &Name, id: &str) -> Result<Retried, DispatchError> {
        let parked = self.parked_start(tenant, id).await?;
        let event = self.timeline.at(tenant, &parked.event_place).await?.ok_or_else(|| {
            DispatchError::Refused(format!("the event {} is no longer in the ledger", parked.event_id))
        })?;
        let subscription = match self.subscription(tenant, &parked.subscription_id).await {
            Err(DispatchError::Unknown { id, .. }) => {
                return Err(DispatchError::Refused(format!("the subscription {id} is gone: drop the start")));
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
        let types = self.types_of(tenant).await?;
        let Some(workflow_type) = types.get(&wanted) else {
            let reason = format!("the workflow type `{wanted}` is not registered");
            return self.failed_again(tenant, parked, reason).await;
        };
        let origin = Origin {
            emitter: caused_by(&self.emitter, &event, &parked.subscription_id),
            drainer: &parked.drainer_id,
            claim: self.claim_of(tenant, &parked),
            ttl: event.ttl,
        };
        let intent = match self.plan(origin, workflow_type, input).await {
            Ok(intent) => intent,
            Err(NoPlan::Unfit(reason)) => return self.failed_again(tenant, parked, reason).await,
            Err(NoPlan::Dropped) => return Err(DispatchError::Refused("it was dropped before".into())),
            Err(NoPlan::Trouble(error)) => return Err(error),
        };
        let claimed = self.carry_out(std::slice::from_ref(&intent)).await?;
        self.forget(tenant, id).await?;
        Ok(match claimed.into_iter().next() {
            Some(Claimed::Before(claim)) => Retried { started: claim.started, already_started: true },
            _ => Retried { started: intent.started, already_started: false },
        })
    }

    /// Gives a parked start up: it will not start in this epoch.
    pub async fn drop_parked(&self, tenant: &Name, id: &str) -> Result<ParkedStart, DispatchError> {
        let parked = self.parked_start(tenant, id).await?;
        self.claim_nothing(&self.claim_of(tenant, &parked), parked.ttl).await?;
        self.forget(tenant, id).await?;
        Ok(parked)
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
    ) -> Result<Retried, DispatchError> {
        let key = keys::parked_start(tenant, &parked.id);
        let again = ParkedStart { reason: reason.clone(), attempts: parked.attempts + 1, ..parked };
        // Unless the drain has written there since.
        let put = self
            .control
            .put(&key, &again)?
            .condition_expression("#state = :state AND attempts = :attempts")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(
                ":state",
                text(match again.state {
                    ParkedState::Retrying => "retrying",
                    ParkedState::Parked => "parked",
                }),
            )
            .expression_attribute_values(":attempts", number(u64::from(again.attempts - 1)));
        // Gone in the meantime: there is nothing left to note it on.
        let _ = put.send().await.map_err(|error| tracing::warn!(%error, "the attempt was not noted"));
        Err(DispatchError::Refused(format!("it failed again: {reason}")))
    }

    async fn forget(&self, tenant: &Name, id: &str) -> Result<(), DispatchError> {
        let delete = self.control.delete(&keys::parked_start(tenant, id)).send().await;
        delete.map_err(|error| StoreError::new("DeleteItem", error))?;
        Ok(())
    }
}
