//! Starts begin to wait: the first opens a block, the others join it at its end.
//!
//! The rows are written before the cursor passes the events, and a start that waits already, was made, or is parked
//! changes nothing: so a page may be handled again at any point.

use std::collections::{BTreeMap, HashMap, HashSet};

use aws_sdk_dynamodb::types::TransactWriteItem;
use ledgerline_event::Event;
use ledgerline_ledger::control::{Item, keys, read};
use ledgerline_subscription::{OnFailure, Subscription};

use crate::{
    ParkedBecause, ParkedStart, ParkedState,
    block::{Block, Cause, Member, Setback, pause},
    blocks::{Blocks, CHUNK, Hindered},
    claim::{Claim, ClaimState},
    notice::About,
    parked::{MAX_ATTEMPTS, id, parked_start},
    transaction::built,
};

/// A start that has to wait.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) event: Event,
    pub(crate) sk: String,
    pub(crate) epoch: u64,
    pub(crate) subscription: Subscription,
    /// Why, unless it only waits behind another.
    pub(crate) setback: Option<(Cause, String)>,
    /// Its claim is written: that it has one does not mean that it is done.
    pub(crate) claimed: bool,
    /// The block that it leaves, and its place in it.
    pub(crate) from: Option<(String, Member)>,
}

/// What is known of a start that has to wait.
struct Found {
    parked: Option<ParkedStart>,
    /// Its claim is done or dropped. A pending one is of a process that died before it sent the effects: its start waits
    /// like the others, and the release resumes the claim.
    settled: bool,
}

/// What is to be written for one start.
enum Step {
    /// It is settled, or waits already.
    Nothing,
    Open(Box<Block>),
    Join(String),
    Park(u32),
}

impl Wait {
    fn about<'w>(&'w self, drainer: &'w str) -> About<'w> {
        About {
            drainer,
            epoch: self.epoch,
            subscription: &self.subscription.subscription_id,
            event: &self.event,
            sk: &self.sk,
        }
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

impl Blocks<'_> {
    /// Lets starts wait, in their order.
    pub(crate) async fn wait(
        &self,
        waits: &[Wait],
        alerts: &mut Vec<keys::ControlKey>,
    ) -> Result<(), Hindered> {
        // The late lane may lead to an event twice.
        let mut seen = HashSet::new();
        let waits: Vec<&Wait> = waits
            .iter()
            .filter(|wait| seen.insert((wait.sk.clone(), wait.subscription.subscription_id.clone())))
            .collect();
        for chunk in waits.chunks(CHUNK) {
            self.wait_together(chunk, alerts).await?;
        }
        Ok(())
    }

    async fn wait_together(
        &self,
        waits: &[&Wait],
        alerts: &mut Vec<keys::ControlKey>,
    ) -> Result<(), Hindered> {
        let found = self.find(waits).await?;
        let mut changed: BTreeMap<String, Block> = BTreeMap::new();
        let mut opened = 0;
        let mut writes = Vec::new();
        for (wait, found) in waits.iter().zip(found) {
            let about = wait.about(&self.drainer);
            let start_id = id(&about);
            let step = self.step(wait, &found, &changed);
            let name = match step {
                Step::Nothing => continue,
                Step::Park(attempts) => {
                    let reason = wait.setback.as_ref().map(|(_, reason)| reason.clone()).unwrap_or_default();
                    let parked = self
                        .dispatch
                        .parked_for_good(about, &wait.subscription, &reason, attempts, Some(alerts))
                        .await?;
                    writes.push(self.put_parked(&parked, found.parked.is_some())?);
                    continue;
                }
                Step::Open(block) => {
                    self.dispatch.notify_failed(about, &wait.subscription, &block.reason).await?;
                    opened += 1;
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
            let member = wait.member(start_id, block.next);
            block.next += 1;
            let start = self.waiting_start(wait, about, block, &member);
            let key = keys::block_member(&self.tenant, &self.drainer, &name, member.place);
            let put = self.dispatch.control.put_for_transaction(&key, &member)?.build().map_err(built)?;
            writes.push(TransactWriteItem::builder().put(put).build());
            writes.push(self.put_parked(&start, found.parked.is_some())?);
            if let Some((left, member)) = &wait.from {
                writes.push(self.delete_member(left, member)?);
            }
        }
        if writes.is_empty() {
            return Ok(());
        }
        for block in changed.values() {
            let put = self.dispatch.control.put_for_transaction(&self.key(&block.name), block)?;
            let condition = match self.open().contains_key(&block.name) {
                true => "attribute_exists(PK)",
                false => "attribute_not_exists(PK)",
            };
            let put = put.condition_expression(condition).build().map_err(built)?;
            writes.push(TransactWriteItem::builder().put(put).build());
        }
        self.fenced(opened, writes).await?;
        self.open().extend(changed);
        Ok(())
    }

    /// Decides what is written for one start; `changed` is what those before it changed.
    fn step(&self, wait: &Wait, found: &Found, changed: &BTreeMap<String, Block>) -> Step {
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
        if found.settled && !wait.claimed {
            return Step::Nothing;
        }
        // What leaves the block of the whole subscription waits with its entity.
        let names = [(moves.is_none()).then_some(&whole), Some(&entity)];
        if let Some(name) = names.into_iter().flatten().find(|name| is_open(name)) {
            return Step::Join(name.clone());
        }
        let Some((cause, reason)) = &wait.setback else {
            // It was to wait behind a start that has been settled: the next attempt is its own.
            return self.opening(wait, found, Cause::Unavailable, "waited for an earlier start", entity);
        };
        let name = if cause.is_of_entity() || moves.is_some() { entity } else { whole };
        self.opening(wait, found, *cause, reason, name)
    }

    fn opening(&self, wait: &Wait, found: &Found, cause: Cause, reason: &str, name: String) -> Step {
        let now = self.dispatch.now();
        // Attempts that the version before has counted.
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
            head: wait.member(id(&about), 0),
            next: 0,
            rewinds: self.rewinds,
            version: self.version,
        }))
    }

    fn waiting_start(&self, wait: &Wait, about: About<'_>, block: &Block, member: &Member) -> ParkedStart {
        let start = parked_start(
            &about,
            &wait.subscription,
            ParkedBecause::Failed,
            block.reason.clone(),
            self.dispatch.now(),
        );
        ParkedStart {
            state: ParkedState::Retrying,
            block: Some(block.name.clone()),
            place_in_block: Some(member.place),
            ..start
        }
    }

    fn put_parked(&self, start: &ParkedStart, replaces: bool) -> Result<TransactWriteItem, Hindered> {
        let key = keys::parked_start(&self.tenant, &start.id);
        let put = self.dispatch.control.put_for_transaction(&key, start)?;
        let put = match replaces {
            false => put.condition_expression("attribute_not_exists(PK)"),
            true => put
                .condition_expression("#state = :retrying")
                .expression_attribute_names("#state", "state")
                .expression_attribute_values(":retrying", crate::conditional::text("retrying")),
        };
        Ok(TransactWriteItem::builder().put(put.build().map_err(built)?).build())
    }

    /// Rows and claims of the starts, in their order.
    async fn find(&self, waits: &[&Wait]) -> Result<Vec<Found>, Hindered> {
        let keys_of = |wait: &&Wait| {
            let about = wait.about(&self.drainer);
            [keys::parked_start(&self.tenant, &id(&about)), about.start_claim()]
        };
        let wanted: Vec<_> = waits.iter().flat_map(keys_of).collect();
        let mut rows: HashMap<(String, String), Item> = HashMap::new();
        for row in self.dispatch.control.get_all(&wanted).await? {
            let text = |name: &str| row.get(name).and_then(|value| value.as_s().ok()).cloned();
            rows.insert((text("PK").unwrap_or_default(), text("SK").unwrap_or_default()), row);
        }
        waits
            .iter()
            .map(|wait| {
                let [parked, claim] = keys_of(wait);
                let parked = rows.remove(&(parked.pk, parked.sk)).map(read).transpose()?;
                let claim = rows.remove(&(claim.pk, claim.sk)).map(Claim::in_row).transpose()?.flatten();
                Ok(Found { parked, settled: claim.is_some_and(|claim| claim.state != ClaimState::Pending) })
            })
            .collect()
    }
}

impl Setback {
    pub(crate) fn permanent(reason: impl Into<String>) -> Self {
        Self { class: crate::block::Class::Permanent, reason: reason.into() }
    }

    pub(crate) fn transient(cause: Cause, reason: impl Into<String>) -> Self {
        Self { class: crate::block::Class::Transient(cause), reason: reason.into() }
    }
}
