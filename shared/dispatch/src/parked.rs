//! Starts that did not work: retried with growing pauses, then parked, so that the drain goes
//! on and an operator can see why, mend the cause, and start them after all.
//!
//! One record per start and epoch, while there is something to do about it. What was started
//! or dropped after all has a claim, as every start has.

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::{Event, Millis, Name, Seconds};
use ledgerline_ledger::{
    Fault, StoreError,
    control::{Item, key_item, keys, read},
};
use ledgerline_subscription::{OnFailure, Subscription};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    Dispatch, DispatchError, Halted,
    claim::Claim,
    conditional::{number, text},
    notice::{About, Notice},
};

/// After so many attempts a start is parked.
pub const MAX_ATTEMPTS: u32 = 5;
const FIRST_PAUSE_MS: u64 = 10_000;
const LONGEST_PAUSE_MS: u64 = 15 * 60_000;

/// Why a start is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParkedBecause {
    /// It failed too often.
    Failed,
    /// More subscriptions matched than may start.
    FanoutCap,
    /// Too many subscriptions led to it.
    Loop,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParkedState {
    /// The drain stands before it and tries again.
    Retrying,
    /// The drain has gone on without it.
    Parked,
}

/// A start that did not work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct ParkedStart {
    pub id: String,
    pub state: ParkedState,
    pub because: ParkedBecause,
    /// What went wrong last.
    pub reason: String,
    pub attempts: u32,
    pub drainer_id: Name,
    pub epoch: u64,
    pub subscription_id: Name,
    pub workflow_type: Name,
    pub event_id: Name,
    pub event_type: Name,
    pub entity_type: Name,
    pub entity_id: Name,
    /// The event's place in the tenant's time line.
    pub event_place: String,
    pub first_failed_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Seconds>,
}

/// Some of a tenant's parked starts.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct ParkedPage {
    pub items: Vec<ParkedStart>,
    pub cursor: Option<String>,
}

/// The same start always has the same id.
fn id(about: &About<'_>) -> String {
    let epoch = about.epoch.to_string();
    let digest = digest(&[about.drainer, &epoch, about.subscription, about.sk]);
    format!("{}-{}", about.event.timestamp, &digest[..16])
}

/// A short name for several texts together.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The pause after the `attempts`th attempt.
fn pause(attempts: u32) -> u64 {
    FIRST_PAUSE_MS.saturating_mul(3_u64.saturating_pow(attempts.saturating_sub(1))).min(LONGEST_PAUSE_MS)
}

impl Dispatch {
    /// One more failure of a start. `None`: it is parked (or was settled otherwise) and the drain goes on.
    pub(crate) async fn setback(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        reason: String,
        alerts: &mut Vec<keys::ControlKey>,
    ) -> Result<Option<Halted>, DispatchError> {
        let now = self.now();
        let key = keys::parked_start(&about.event.tenant_id, &id(&about));
        let before: Option<ParkedStart> = self.control.get(&key).await?;
        let halted =
            |until, reason| Ok(Some(Halted { event_id: about.event.event_id.clone(), until, reason }));
        match &before {
            Some(before) if before.state == ParkedState::Parked => return Ok(None),
            Some(before) if before.next_attempt_at.is_some_and(|next| next > now) => {
                return halted(before.next_attempt_at.unwrap_or(now), reason);
            }
            Some(_) => {}
            // Started or dropped by hand in the meantime.
            None if self.control.get::<Claim>(&about.start_claim()).await?.is_some() => return Ok(None),
            None => {}
        }
        let attempts = before.as_ref().map_or(0, |before| before.attempts) + 1;
        let first_failed_at = before.as_ref().map_or(now, |before| before.first_failed_at);
        let details = json!({
            "subscriptionId": subscription.subscription_id,
            "workflowType": subscription.workflow_type,
            "reason": reason,
        });
        // Each of these is done once, and again until all of them are: the record comes last.
        self.notify(Notice::Failed, about, details).await?;
        let parks = attempts >= MAX_ATTEMPTS && subscription.on_failure == OnFailure::Park;
        if parks {
            let told =
                self.tell_parked(about, subscription, ParkedBecause::Failed, &reason, attempts).await?;
            alerts.extend(told);
        }
        let next = now.plus(pause(attempts));
        let start = ParkedStart {
            attempts,
            first_failed_at,
            state: if parks { ParkedState::Parked } else { ParkedState::Retrying },
            next_attempt_at: (!parks).then_some(next),
            parked_at: parks.then_some(now),
            ..parked_start(&about, subscription, ParkedBecause::Failed, reason.clone(), now)
        };
        let put = self
            .control
            .put(&key, &start)?
            .condition_expression("attribute_not_exists(PK) OR (#state = :retrying AND attempts = :seen)")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"))
            .expression_attribute_values(":seen", number(u64::from(attempts - 1)));
        match put.send().await.map_err(|error| StoreError::new("PutItem", error)) {
            Ok(_) if parks => Ok(None),
            Ok(_) => halted(next, reason),
            // Somebody else counted this attempt; the next pass reads what they wrote.
            Err(error) if error.fault == Fault::Conflict => halted(now.plus(pause(1)), reason),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes away the record of a start that was still being retried.
    pub(crate) async fn no_longer_retrying(&self, about: About<'_>) -> Result<(), DispatchError> {
        let delete = self
            .control
            .delete(&keys::parked_start(&about.event.tenant_id, &id(&about)))
            .condition_expression("#state = :retrying")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"));
        match delete.send().await.map_err(|error| StoreError::new("DeleteItem", error)) {
            Err(error) if error.fault == Fault::Conflict => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }

    /// Parks a start at once: nothing about it will be different the next time.
    pub(crate) async fn park(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        because: ParkedBecause,
        reason: String,
    ) -> Result<(), DispatchError> {
        let now = self.now();
        let key = keys::parked_start(&about.event.tenant_id, &id(&about));
        let start =
            ParkedStart { parked_at: Some(now), ..parked_start(&about, subscription, because, reason, now) };
        // An operator may have started or dropped it since.
        if self.control.get::<Claim>(&about.start_claim()).await?.is_none() {
            self.control.put_new(&key, &start).await?;
        }
        Ok(())
    }

    pub(crate) async fn tell_parked(
        &self,
        about: About<'_>,
        subscription: &Subscription,
        because: ParkedBecause,
        reason: &str,
        attempts: u32,
    ) -> Result<Option<keys::ControlKey>, DispatchError> {
        let id = id(&about);
        let details = json!({
            "subscriptionId": subscription.subscription_id,
            "workflowType": subscription.workflow_type,
            "because": because,
            "reason": reason,
            "attempts": attempts,
            "parkedId": id,
        });
        self.notify(Notice::Parked, about, details).await?;
        let event = about.event;
        let text = format!(
            ":warning: *A start is parked*\n*Workflow* {}\n*Event* {} {} ({}/{})\n*Tenant* {}\n*Reason* {reason}\n\
             `ledgerline {} --tenant '{}' parked show {id}`",
            subscription.workflow_type,
            event.event_type,
            event.event_id,
            event.entity_type,
            event.entity_id,
            event.tenant_id,
            self.ledger_flag,
            event.tenant_id,
        );
        self.alert(Notice::Parked, about, text).await
    }

    /// A tenant's parked starts, by the time of their events, newest first.
    pub async fn parked(
        &self,
        tenant: &Name,
        with_retrying: bool,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<ParkedPage, DispatchError> {
        let partition = keys::parked(tenant);
        let mut start: Option<Item> = cursor.map(|id| key_item(&keys::parked_start(tenant, id)));
        let mut items: Vec<ParkedStart> = Vec::new();
        loop {
            let mut query =
                self.control.partition(&partition).scan_index_forward(false).set_exclusive_start_key(start);
            if !with_retrying {
                query = query
                    .filter_expression("#state = :parked")
                    .expression_attribute_names("#state", "state")
                    .expression_attribute_values(":parked", AttributeValue::S("parked".into()));
            }
            let page = query.send().await.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                if items.len() == limit {
                    let cursor = items.last().map(|last| last.id.clone());
                    return Ok(ParkedPage { items, cursor });
                }
                items.push(read(item)?);
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(ParkedPage { items, cursor: None });
            }
        }
    }

    /// One parked start.
    pub async fn parked_start(&self, tenant: &Name, id: &str) -> Result<ParkedStart, DispatchError> {
        let found = match id.len() {
            1..=64 => self.control.get(&keys::parked_start(tenant, id)).await?,
            _ => None,
        };
        found.ok_or_else(|| DispatchError::Unknown {
            what: "parked",
            id: id.to_owned(),
            hint: "; `ledgerline parked list` shows those that there are".into(),
        })
    }
}

fn parked_start(
    about: &About<'_>,
    subscription: &Subscription,
    because: ParkedBecause,
    reason: String,
    now: Millis,
) -> ParkedStart {
    let event: &Event = about.event;
    ParkedStart {
        id: id(about),
        state: ParkedState::Parked,
        because,
        reason,
        attempts: 0,
        drainer_id: subscription.drainer_id.clone(),
        epoch: about.epoch,
        subscription_id: subscription.subscription_id.clone(),
        workflow_type: subscription.workflow_type.clone(),
        event_id: event.event_id.clone(),
        event_type: event.event_type.clone(),
        entity_type: event.entity_type.clone(),
        entity_id: event.entity_id.clone(),
        event_place: about.sk.to_owned(),
        first_failed_at: now,
        next_attempt_at: None,
        parked_at: None,
        ttl: event.ttl,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_at_a_quarter_of_an_hour() {
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 50].map(pause),
            [10_000, 30_000, 90_000, 270_000, 810_000, 900_000, 900_000]
        );
    }

    #[test]
    fn texts_that_join_alike_have_different_digests() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
