//! Claims: a process stores the effects of everything that must happen once before it sends any of them.
//!
//! A process puts a claim only if the key is free. The claim holds the exact effects, and is `pending` until
//! they are sent. A process that finds a pending claim sends its effects again, and so does the sweep once
//! the claim is overdue. So a process may die at any point: either there is no claim and nothing was sent, or
//! a later process finishes the claim. The saver stores an event once, however often it is sent; a message
//! may be delivered twice, and carries what its consumer needs to notice that.

use ledgerline_event::{Name, Seconds};
use ledgerline_store::{
    Claim, ClaimState, Claimed, StoreError,
    keys::{self, ControlKey},
};
use serde::Serialize;

use crate::{ComponentError, Effects, Outbox};

/// Larger effects are kept in the payload bucket: an item has 400 KB.
const INLINE_BYTES: usize = 100_000;
/// The claim of a start expires this long after its event. DynamoDB deletes expired rows days late and in no order: an event
/// that is still there must not have lost its claim, or `rewind --missing-only` would start it again.
const CLAIM_OUTLIVES_EVENT_SECONDS: u64 = 30 * 24 * 60 * 60;

/// Expiry of a start's claim: 30 days after that of its event.
pub fn start_claim_ttl(event_ttl: Option<Seconds>) -> Option<Seconds> {
    event_ttl.map(|ttl| ttl.plus(CLAIM_OUTLIVES_EVENT_SECONDS))
}

/// The process that makes a claim has this long to finish it; then a sweep resumes it.
pub const RESUMED_AFTER_MS: u64 = 60_000;

/// How long a claim that could not be finished is postponed.
pub const POSTPONED_MS: u64 = 5 * 60_000;

/// A claim that is about to be made.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct PendingEffects {
    pub key: ControlKey,
    pub effects: Effects,
    pub started: Option<Name>,
    /// When the claim expires: with what it is about, or later for the claim of a start ([`start_claim_ttl`]).
    pub ttl: Option<Seconds>,
}

impl Outbox {
    /// Makes the claim unless there is one.
    pub async fn claim(&self, pending: &PendingEffects) -> Result<Claimed, ComponentError> {
        self.put_claim(&pending.key, &self.new_claim(pending).await?).await
    }

    /// A claim as it is before its effects are sent.
    pub async fn new_claim(&self, pending: &PendingEffects) -> Result<Claim, ComponentError> {
        let now = self.emitter.now();
        let json = serde_json::to_string(&pending.effects)
            .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
        let claim_id = self.emitter.new_event_id();
        let mut claim = Claim {
            state: ClaimState::Pending,
            claim_id: Some(claim_id.clone()),
            started: pending.started.clone(),
            effects: None,
            effects_key: None,
            due_shard: Some(match pending.effects.alert {
                Some(_) => keys::alert_due_shard_of(&pending.key),
                None => keys::due_shard_of(&pending.key),
            }),
            // Then a sweep resumes it.
            due_at: Some(now.plus(RESUMED_AFTER_MS)),
            claimed_at: now,
            ttl: pending.ttl,
        };
        if json.len() <= INLINE_BYTES {
            claim.effects = Some(json);
        } else {
            // A name of its own: two processes that claim at once must not overwrite each other's effects.
            let key = format!("claims/{claim_id}.json");
            self.payloads.put(&key, json.into_bytes()).await?;
            claim.effects_key = Some(key);
        }
        Ok(claim)
    }

    /// Drops a start: makes its claim without effects, so that no process ever makes the start. Returns [`Claimed::New`] if there was no claim before.
    pub async fn drop_start(
        &self,
        key: &ControlKey,
        ttl: Option<Seconds>,
    ) -> Result<Claimed, ComponentError> {
        let claim = Claim {
            state: ClaimState::Dropped,
            claim_id: None,
            started: None,
            effects: None,
            effects_key: None,
            due_shard: None,
            due_at: None,
            claimed_at: self.emitter.now(),
            ttl,
        };
        self.put_claim(key, &claim).await
    }

    /// Whether an operator has dropped the start.
    pub async fn is_dropped(&self, key: &ControlKey) -> Result<bool, ComponentError> {
        Ok(self.claim_at(key).await?.is_some_and(|claim| claim.state == ClaimState::Dropped))
    }

    /// Whether there is a claim, in whatever state.
    pub async fn claim_exists(&self, key: &ControlKey) -> Result<bool, ComponentError> {
        Ok(self.claim_at(key).await?.is_some())
    }

    /// The claim of a record; `None` if there is no record, or if it holds no claim.
    pub async fn claim_at(&self, key: &ControlKey) -> Result<Option<Claim>, ComponentError> {
        Ok(self.claims.get(key).await?)
    }

    /// Whether the claim of the record is this one, and not another with the same key.
    pub async fn is_claimed_by(&self, key: &ControlKey, claim: &Claim) -> Result<bool, ComponentError> {
        Ok(self.claim_at(key).await?.is_some_and(|there| there.claim_id == claim.claim_id))
    }

    /// Postpones a pending claim by [`POSTPONED_MS`], so that the sweep comes to the claims after it.
    pub async fn postpone(&self, key: &ControlKey) -> Result<(), ComponentError> {
        self.postpone_for(key, POSTPONED_MS).await
    }

    /// Postpones a pending claim by `ms` from now.
    pub async fn postpone_for(&self, key: &ControlKey, ms: u64) -> Result<(), ComponentError> {
        self.claims.postpone(key, self.emitter.now().plus(ms)).await?;
        Ok(())
    }

    /// Puts a record that is a claim, unless the key has a record.
    pub async fn put_claim(
        &self,
        key: &ControlKey,
        claim: &impl Serialize,
    ) -> Result<Claimed, ComponentError> {
        Ok(self.claims.put_new(key, claim).await?)
    }

    /// Marks a claim as done once its effects are sent. `id` must match: the record may be another claim by now.
    pub async fn finish(&self, key: &ControlKey, id: Option<&str>) -> Result<(), ComponentError> {
        // If the change is superseded, another process has finished it, or the record is another claim by now.
        self.claims.finish(key, id).await?;
        Ok(())
    }
}
