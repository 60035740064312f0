//! Starts begin to wait: the first opens a block, the others join it at its end.
//!
//! The rows are written before the cursor passes the events, and a start that waits already, was made, or is parked
//! changes nothing: so a page may be handled again at any point.

use std::collections::{BTreeMap, HashSet};

use ledgerline_event::Event;
use ledgerline_store::{
    Block, Cause, Member, ParkedBecause, ParkedStart, ParkedState, RowBefore, StartKeys, StoredStart, keys,
};
use ledgerline_subscription::{OnFailure, Subscription};

use crate::{
    block_retry::{is_of_entity, pause},
    open_blocks::{BlockError, MAX_STARTS_PER_TRANSACTION, OpenBlocks},
    park_start::{MAX_ATTEMPTS, parked_start, start_id},
};
use ledgerline_outbox::{About, Claim, ClaimState};

/// A start that has to wait.
#[derive(Clone, Debug)]
pub(crate) struct WaitingStart {
    pub(crate) event: Event,
    pub(crate) sk: String,
    pub(crate) epoch: u64,
    pub(crate) subscription: Subscription,
    /// Why, unless it only waits behind another.
    pub(crate) setback: Option<(Cause, String)>,
    /// Whether its claim is made already: then a claim does not mean that the start is done.
    pub(crate) claimed: bool,
    /// The block that it leaves, and its place in it.
    pub(crate) from: Option<(String, Member)>,
}

/// What is to be written for one start.
enum Step {
    /// Nothing: it is settled, or waits already.
    Nothing,
    /// This block, which it opens.
    Open(Box<Block>),
    /// A member of the block with this name.
    Join(String),
    /// A parked start, after so many attempts.
    Park(u32),
}

impl WaitingStart {
    fn about<'w>(&'w self, drainer: &'w str) -> About<'w> {
        About {
            drainer,
            epoch: self.epoch,
            subscription: &self.subscription.subscription_id,
            event: &self.event,
            sk: &self.sk,
        }
    }

    fn keys(&self, drainer: &str) -> StartKeys {
        let about = self.about(drainer);
        StartKeys { start_id: start_id(&about), claim: about.start_claim() }
    }

    fn member(&self, start_id: String, place: u64) -> Member {
        Member {
            place,
            start_id,
            epoch: self.epoch,
            event_id: self.event.event_id.clone(),
            event_place: self.sk.clone(),
            event_time: self.event.timestamp,
        }
    }

    /// The blocks that it may wait in.
    pub(crate) fn names(&self) -> [String; 2] {
        Block::names(&self.subscription.subscription_id, &self.event.entity_type, &self.event.entity_id)
    }
}

impl OpenBlocks<'_> {
    /// Puts starts into blocks, in their order.
    pub(crate) async fn wait(
        &self,
        waits: &[WaitingStart],
        alerts: &mut Vec<keys::ControlKey>,
    ) -> Result<(), BlockError> {
        // The late arrivals may lead to an event twice.
        let mut seen = HashSet::new();
        let waits: Vec<&WaitingStart> = waits
            .iter()
            .filter(|wait| seen.insert((wait.sk.clone(), wait.subscription.subscription_id.clone())))
            .collect();
        for chunk in waits.chunks(MAX_STARTS_PER_TRANSACTION) {
            self.wait_together(chunk, alerts).await?;
        }
        Ok(())
    }

    async fn wait_together(
        &self,
        waits: &[&WaitingStart],
        alerts: &mut Vec<keys::ControlKey>,
    ) -> Result<(), BlockError> {
        let keys: Vec<StartKeys> = waits.iter().map(|wait| wait.keys(&self.drainer)).collect();
        let found = self.drains.parked.records.get_with_claims::<Claim>(&self.tenant, &keys).await?;
        let mut changed: BTreeMap<String, Block> = BTreeMap::new();
        let mut transaction = self.begin_transaction();
        for (wait, found) in waits.iter().zip(found) {
            let about = wait.about(&self.drainer);
            let parked_id = start_id(&about);
            let step = self.step(wait, &found, &changed);
            let name = match step {
                Step::Nothing => continue,
                Step::Park(attempts) => {
                    let reason = wait.setback.as_ref().map(|(_, reason)| reason.clone()).unwrap_or_default();
                    let parked = self
                        .drains
                        .parked
                        .parked_for_good(about, &wait.subscription, &reason, attempts, Some(alerts))
                        .await?;
                    transaction.put_parked_over(&parked, row_before(&found))?;
                    continue;
                }
                Step::Open(block) => {
                    self.drains.parked.notify_failed(about, &wait.subscription, &block.reason).await?;
                    let name = block.name.clone();
                    changed.insert(name.clone(), *block);
                    name
                }
                Step::Join(name) => {
                    if !changed.contains_key(&name)
                        && let Some(block) = self.open().get(&name)
                    {
                        changed.insert(name.clone(), block.clone());
                    }
                    name
                }
            };
            let Some(block) = changed.get_mut(&name) else { continue };
            let member = wait.member(parked_id, block.next);
            block.next += 1;
            let start = self.waiting_start(wait, about, block, &member);
            transaction.put_member(&name, &member)?;
            transaction.put_parked_over(&start, row_before(&found))?;
            if let Some((left, member)) = &wait.from {
                transaction.delete_member(left, member)?;
            }
        }
        if transaction.is_empty() {
            return Ok(());
        }
        for block in changed.values() {
            match self.open().contains_key(&block.name) {
                true => transaction.replace_block(block)?,
                false => transaction.open_block(block)?,
            }
        }
        self.commit(transaction).await?;
        self.open().extend(changed);
        Ok(())
    }

    /// Decides what is written for one start; `changed` is what those before it changed.
    fn step(
        &self,
        wait: &WaitingStart,
        found: &StoredStart<Claim>,
        changed: &BTreeMap<String, Block>,
    ) -> Step {
        let open = self.open();
        let is_open = |name: &String| changed.contains_key(name) || open.contains_key(name);
        let [whole, entity] = wait.names();
        let moves = wait.from.as_ref().map(|(name, _)| name);
        match &found.parked {
            Some(parked) if parked.state == ParkedState::Parked => return Step::Nothing,
            Some(parked) if moves.is_none() && parked.block.as_ref().is_some_and(is_open) => {
                return Step::Nothing;
            }
            _ => {}
        }
        if is_settled(found) && !wait.claimed {
            return Step::Nothing;
        }
        // What leaves the block of the whole subscription waits with its entity.
        let names = [(moves.is_none()).then_some(&whole), Some(&entity)];
        if let Some(name) = names.into_iter().flatten().find(|name| is_open(name)) {
            return Step::Join(name.clone());
        }
        let Some((cause, reason)) = &wait.setback else {
            // The start that it waited for is settled: it becomes the head of a block of its own.
            return self.opening(wait, found, Cause::Unavailable, "waited for an earlier start", entity);
        };
        let name = if is_of_entity(*cause) || moves.is_some() { entity } else { whole };
        self.opening(wait, found, *cause, reason, name)
    }

    fn opening(
        &self,
        wait: &WaitingStart,
        found: &StoredStart<Claim>,
        cause: Cause,
        reason: &str,
        name: String,
    ) -> Step {
        let now = self.drains.emitter.now();
        // Versions before 0.1.0 counted attempts in the row of the start.
        let before = found.parked.as_ref().filter(|parked| parked.block.is_none());
        let early = before.and_then(|before| before.next_attempt_at).filter(|next| *next > now);
        let counted = before.map_or(0, |before| before.attempts);
        let attempts = if early.is_some() { counted.max(1) } else { counted + 1 };
        let parks = wait.subscription.on_failure == OnFailure::Park && cause != Cause::Unavailable;
        if parks && attempts >= MAX_ATTEMPTS && early.is_none() {
            return Step::Park(attempts);
        }
        let about = wait.about(&self.drainer);
        Step::Open(Box::new(Block {
            whole_subscription: !name.contains('#'),
            name,
            drainer_id: self.drainer.clone(),
            subscription_id: wait.subscription.subscription_id.clone(),
            cause,
            reason: reason.to_owned(),
            attempts,
            next_attempt_at: early.unwrap_or_else(|| now.plus(pause(attempts))),
            first_failed_at: before.map_or(now, |before| before.first_failed_at),
            head: wait.member(start_id(&about), 0),
            next: 0,
            rewinds: self.rewinds,
            version: self.version,
        }))
    }

    fn waiting_start(
        &self,
        wait: &WaitingStart,
        about: About<'_>,
        block: &Block,
        member: &Member,
    ) -> ParkedStart {
        let start = parked_start(
            &about,
            &wait.subscription,
            ParkedBecause::Failed,
            block.reason.clone(),
            self.drains.emitter.now(),
        );
        ParkedStart {
            state: ParkedState::Retrying,
            block: Some(block.name.clone()),
            place_in_block: Some(member.place),
            ..start
        }
    }
}

/// Whether the claim of a start is done or dropped. If it is pending, its process died before it sent the effects: the start
/// waits like the others, and the drainer resumes the claim when the start has its turn.
fn is_settled(found: &StoredStart<Claim>) -> bool {
    found.claim.as_ref().is_some_and(|claim| claim.state != ClaimState::Pending)
}

fn row_before(found: &StoredStart<Claim>) -> RowBefore {
    if found.parked.is_some() { RowBefore::Retrying } else { RowBefore::Missing }
}
