//! The drainer tries the open blocks again: once the head is started, dropped or parked, it decides the starts behind the head
//! anew, in order.
//!
//! The drainer claims a start before it deletes the row in the block. If the process dies in between, a row stays; its claim
//! then says that there is nothing to do.

use std::collections::BTreeSet;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use ledgerline_event::Event;
use ledgerline_store::{
    Block, Cause, Member, OperatorAction, OperatorRequest, ParkedStart, ParkedState, StartKeys, StoredStart,
    keys,
};
use ledgerline_subscription::{Decision, OnFailure, Subscription, Verdict};
use tokio::time::Instant;

use crate::{
    Triggered,
    block_retry::{Class, Failed, after_failure, cause_of_send, is_of_entity},
    event_handler::{EventHandler, Work},
    open_blocks::{BlockError, MAX_STARTS_PER_TRANSACTION, ParkedRowChange},
    park_or_halt::NotStarted,
    start_decision::StartDecision,
    waiting_starts::WaitingStart,
};
use ledgerline_outbox::{Claim, ClaimState, Claimed, start_claim_ttl};

/// So many events of members are read at the same time.
const MAX_CONCURRENT_READS: usize = 16;

/// How trying a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Closed,
    Waits(Cause),
    OutOfTime,
}

/// A member with its claim, its row among the parked starts, and its event.
struct Candidate {
    member: Member,
    claim: Option<Claim>,
    parked: Option<ParkedStart>,
    event: Option<Event>,
}

/// What became of the first members of a block, after they had their turn.
#[derive(Default)]
struct Turns {
    leaving: Vec<(Member, ParkedRowChange)>,
    moved: usize,
    stopped: Option<Box<FailedMember>>,
}

/// The first member that stays, and why.
struct FailedMember {
    member: Member,
    event: Option<Event>,
    subscription: Option<Subscription>,
    cause: Cause,
    reason: String,
}

impl EventHandler<'_> {
    /// Tries the open blocks, the oldest first. Returns whether there was time for all of them.
    pub(crate) async fn release(&self, deadline: Option<Instant>) -> Result<bool, BlockError> {
        let mut wanted = self.drop_asked().await?;
        let retries: Vec<&OperatorRequest> =
            self.blocks.requests.iter().filter(|asked| asked.action == OperatorAction::Retry).collect();
        wanted.extend(retries.iter().map(|asked| asked.block_name.clone()));
        let mut outage = false;
        for name in self.blocks.oldest_first() {
            if passed(deadline) {
                return Ok(false);
            }
            let Some(mut block) = self.blocks.open().get(&name).cloned() else { continue };
            if block.rewinds != self.blocks.rewinds {
                block = self.purge(block).await?;
            }
            let asked = wanted.contains(&name);
            // While a service is down, the other blocks that wait for a service are not tried.
            let in_vain = outage && block.cause == Cause::Unavailable && !asked;
            if in_vain || (!asked && self.is_still_unregistered(&block).await?) {
                continue;
            }
            match Box::pin(self.release_block(&name, asked, deadline)).await? {
                Tried::Closed => {}
                Tried::Waits(cause) => outage |= cause == Cause::Unavailable,
                Tried::OutOfTime => return Ok(false),
            }
        }
        // Deleted last: if this process dies before, the requests stay for the next one.
        let done: Vec<OperatorRequest> = retries.into_iter().cloned().collect();
        for asked in done.chunks(MAX_STARTS_PER_TRANSACTION) {
            self.blocks.delete_requests(asked).await?;
        }
        Ok(true)
    }

    /// Whether nothing can have changed for a block: its subscription is as it was, and its type is missing.
    async fn is_still_unregistered(&self, block: &Block) -> Result<bool, BlockError> {
        if block.cause != Cause::Unregistered
            || block.next_attempt_at <= self.drains.emitter.now()
            || block.version != self.blocks.version
        {
            return Ok(false);
        }
        let Some(subscription) = self.matcher.get(&block.subscription_id) else { return Ok(false) };
        Ok(!self.types().await?.contains_key(&subscription.workflow_type))
    }

    async fn release_block(
        &self,
        name: &str,
        mut asked: bool,
        deadline: Option<Instant>,
    ) -> Result<Tried, BlockError> {
        let mut limit = 1;
        let mut parked = None;
        loop {
            let Some(block) = self.blocks.open().get(name).cloned() else { return Ok(Tried::Closed) };
            let members = self.blocks.members(name, 0, limit).await?;
            if members.is_empty() {
                self.blocks.close_block(name).await?;
                return Ok(Tried::Closed);
            }
            let turns = Box::pin(self.take_turns(&block, members, parked)).await?;
            let progress = turns.moved + turns.leaving.len();
            if !turns.leaving.is_empty() {
                self.blocks.remove_members(name, turns.leaving).await?;
            }
            match turns.stopped {
                Some(failed) => {
                    let cause = failed.cause;
                    match Box::pin(self.failed(&block, *failed, asked)).await? {
                        // The members behind it have their turn; those that fail for the same cause are parked with it.
                        Some(member) => {
                            self.blocks.remove_members(name, vec![member]).await?;
                            parked = Some(cause);
                        }
                        None => return Ok(Tried::Waits(cause)),
                    }
                }
                None if progress == 0 => return Ok(Tried::Waits(block.cause)),
                None => {}
            }
            (limit, asked) = (MAX_STARTS_PER_TRANSACTION, false);
            if passed(deadline) {
                return Ok(Tried::OutOfTime);
            }
        }
    }

    /// Records that the first member has failed. If that parks it, returns how it leaves the block.
    async fn failed(
        &self,
        block: &Block,
        failed: FailedMember,
        asked: bool,
    ) -> Result<Option<(Member, ParkedRowChange)>, BlockError> {
        let FailedMember { member, event, subscription, cause, reason } = failed;
        let parks =
            subscription.as_ref().is_none_or(|subscription| subscription.on_failure == OnFailure::Park);
        let now = self.drains.emitter.now();
        let about = event.as_ref().zip(subscription.as_ref()).map(|(event, subscription)| {
            (self.about(event, &member.event_place, &subscription.subscription_id), subscription)
        });
        match (after_failure(block, &member, cause, &reason, parks, (now, asked)), about) {
            (Failed::Early, _) => Ok(None),
            (Failed::Park(attempts), Some((about, subscription))) => {
                let mut alerts = Vec::new();
                let parked = self
                    .drains
                    .parked
                    .parked_for_good(about, subscription, &reason, attempts, Some(&mut alerts))
                    .await?;
                self.made().alerts.extend(alerts);
                Ok(Some((member, ParkedRowChange::Put(Box::new(parked)))))
            }
            // Its event or subscription is gone: the sweep resumes its claim.
            (Failed::Park(_), None) => Ok(Some((member, ParkedRowChange::Delete))),
            (Failed::Retry(next), about) => {
                if let Some((about, subscription)) = about {
                    self.drains.parked.notify_failed(about, subscription, &reason).await?;
                }
                self.blocks.replace_block(Block { version: self.blocks.version, ..*next }).await?;
                Ok(None)
            }
        }
    }

    /// Gives some members of a block their turn. If the head was parked, `parked` is why.
    async fn take_turns(
        &self,
        block: &Block,
        members: Vec<Member>,
        parked: Option<Cause>,
    ) -> Result<Turns, BlockError> {
        let mut turns = Turns::default();
        let mut works: Vec<Work> = Vec::new();
        let mut moves: Vec<WaitingStart> = Vec::new();
        for (index, candidate) in self.candidates(block, members).await?.into_iter().enumerate() {
            let Candidate { member, claim, parked: row, event } = candidate;
            let is_parked = row.is_some_and(|row| row.state == ParkedState::Parked);
            let settled = if is_parked { ParkedRowChange::Keep } else { ParkedRowChange::Delete };
            let subscription = self.matcher.get(&block.subscription_id).cloned();
            let stop = |member: Member, event, subscription, cause, reason| {
                Some(Box::new(FailedMember { member, event, subscription, cause, reason }))
            };
            match claim.map(|claim| (claim.state, claim.started)) {
                Some((ClaimState::Done | ClaimState::Dropped, _)) => {
                    turns.leaving.push((member, settled));
                    continue;
                }
                // The starts that are planned for the members before it are sent first.
                Some((ClaimState::Pending, _)) if !works.is_empty() || !moves.is_empty() => break,
                Some((ClaimState::Pending, started)) => {
                    let key = self.claim_of(block, &member);
                    let Err(error) = self.drains.outbox.resume(&key).await else {
                        if let (Some(started), Some(subscription)) = (started, subscription) {
                            self.made().triggered.push(Triggered {
                                event_id: member.event_id.clone(),
                                subscription_id: block.subscription_id.clone(),
                                workflow_type: subscription.workflow_type,
                                started,
                            });
                        }
                        turns.leaving.push((member, settled));
                        continue;
                    };
                    let (cause, reason) = (cause_of_send(&error), error.to_string());
                    match (event, subscription) {
                        // It moves to the block of its entity: only that has to wait for it.
                        (Some(event), Some(subscription)) if block.whole_subscription => {
                            moves.push(moved(block, member, event, subscription, (cause, reason), true));
                        }
                        (event, subscription) => {
                            turns.stopped = stop(member, event, subscription, cause, reason);
                        }
                    }
                    break;
                }
                None => {}
            }
            // Its start is parked already, or its event has expired.
            let Some(mut event) = event.filter(|_| !is_parked) else {
                turns.leaving.push((member, settled));
                continue;
            };
            let unreadable = self.restore(&mut event).await;
            let decision = self
                .matcher
                .decide(&event)
                .into_iter()
                .find(|decision| decision.subscription.subscription_id == block.subscription_id);
            let (Some(decision), Some(subscription)) = (decision, subscription) else {
                turns.leaving.push((member, settled));
                continue;
            };
            // The limit of starts per event was applied when the start began to wait.
            let decision = match decision.verdict {
                Verdict::Capped { input } => Decision { verdict: Verdict::Start { input }, ..decision },
                _ => decision,
            };
            let sk = member.event_place.clone();
            let outcome = Box::pin(self.decide_start(&event, &sk, decision, unreadable.as_ref())).await?;
            let about = self.about(&event, &sk, &block.subscription_id);
            match outcome {
                StartDecision::Nothing | StartDecision::Loop | StartDecision::Capped => {
                    turns.leaving.push((member, settled))
                }
                StartDecision::Start(mut start) => {
                    start.from = Some((block.name.clone(), member));
                    let troubles = NotStarted::default();
                    works.push(Work { index, sk, starts: vec![*start], troubles, event });
                }
                StartDecision::Fails(setback) => match setback.class {
                    Class::Permanent => {
                        let mut alerts = Vec::new();
                        let start = self
                            .drains
                            .parked
                            .parked_for_good(about, &subscription, &setback.reason, 1, Some(&mut alerts))
                            .await?;
                        self.made().alerts.extend(alerts);
                        turns.leaving.push((member, ParkedRowChange::Put(Box::new(start))));
                    }
                    Class::Transient(cause)
                        if parked == Some(cause) && subscription.on_failure == OnFailure::Park =>
                    {
                        let start = self
                            .drains
                            .parked
                            .parked_for_good(about, &subscription, &setback.reason, 1, None)
                            .await?;
                        turns.leaving.push((member, ParkedRowChange::Put(Box::new(start))));
                    }
                    // It moves to the block of its entity: only that has to wait for it.
                    Class::Transient(cause) if block.whole_subscription && is_of_entity(cause) => {
                        let setback = (cause, setback.reason);
                        moves.push(moved(block, member, event, subscription, setback, false));
                        // The next members may be of the same entity.
                        break;
                    }
                    Class::Transient(cause) => {
                        turns.stopped = stop(member, Some(event), Some(subscription), cause, setback.reason);
                        break;
                    }
                },
            }
        }
        self.start_members(block, works, &mut turns).await?;
        turns.moved += moves.len();
        self.wait(&moves).await?;
        Ok(turns)
    }

    /// Starts members whose turn it is.
    async fn start_members(
        &self,
        block: &Block,
        works: Vec<Work>,
        turns: &mut Turns,
    ) -> Result<(), BlockError> {
        if works.is_empty() {
            return Ok(());
        }
        self.made().released.clear();
        if block.whole_subscription {
            // A start that is not sent moves to the block of its entity.
            let count = works.len();
            if let Some((_, stop)) = self.start_all(works).await {
                use crate::event_handler::Stop;
                return Err(match stop {
                    Stop::LeaseLost => BlockError::LeaseLost,
                    Stop::Trouble(error) => BlockError::Failed(error),
                    // Starting alone neither runs out of time nor halts.
                    Stop::OutOfTime | Stop::Halted(_) => return Ok(()),
                });
            }
            let released = std::mem::take(&mut self.made().released);
            turns.moved += count - released.len();
            turns.leaving.extend(released.into_iter().map(|member| (member, ParkedRowChange::Delete)));
            return Ok(());
        }
        let started = Box::pin(self.start(works)).await?;
        let released = std::mem::take(&mut self.made().released);
        turns.leaving.extend(released.into_iter().map(|member| (member, ParkedRowChange::Delete)));
        if let Some(WaitingStart {
            event,
            subscription,
            setback: Some((cause, reason)),
            from: Some((_, member)),
            ..
        }) = started.unsent.into_iter().next()
        {
            let (event, subscription) = (Some(event), Some(subscription));
            turns.stopped = Some(Box::new(FailedMember { member, event, subscription, cause, reason }));
        }
        Ok(())
    }

    /// Claims, rows and events of members, in their order.
    async fn candidates(&self, block: &Block, members: Vec<Member>) -> Result<Vec<Candidate>, BlockError> {
        let keys = |member: &Member| StartKeys {
            start_id: member.start_id.clone(),
            claim: self.claim_of(block, member),
        };
        let keys: Vec<StartKeys> = members.iter().map(keys).collect();
        let stored = self.drains.parked.records.get_with_claims(&self.tenant, &keys).await?;
        let fetches = members
            .iter()
            .map(|member| self.drains.timeline.stored_at(&self.tenant, &member.event_place).boxed())
            .collect::<Vec<_>>();
        let events: Vec<Option<Event>> =
            stream::iter(fetches).buffered(MAX_CONCURRENT_READS).try_collect::<Vec<_>>().await?;
        let with_rows = members.into_iter().zip(events).zip(stored);
        Ok(with_rows
            .map(|((member, event), StoredStart { parked, claim })| Candidate {
                member,
                claim,
                parked,
                event,
            })
            .collect())
    }

    fn claim_of(&self, block: &Block, member: &Member) -> keys::ControlKey {
        keys::start_claim(
            &self.tenant,
            &member.event_place,
            &self.drainer,
            member.epoch,
            &block.subscription_id,
        )
    }

    /// Removes the members to whose events a rewind has given another epoch: the drainer reads those events again.
    async fn purge(&self, mut block: Block) -> Result<Block, BlockError> {
        let mut from = 0;
        loop {
            let members = self.blocks.members(&block.name, from, MAX_STARTS_PER_TRANSACTION).await?;
            let Some(last) = members.last() else { break };
            from = last.place + 1;
            let stale =
                members.into_iter().filter(|member| self.epochs.of(&member.event_place) != member.epoch);
            let stale = stale.map(|member| (member, ParkedRowChange::Delete)).collect();
            self.blocks.remove_members(&block.name, stale).await?;
        }
        block.rewinds = self.blocks.rewinds;
        self.blocks.replace_block(block.clone()).await?;
        Ok(block)
    }

    /// Drops the starts that operators asked to drop. Returns the blocks that they were in.
    async fn drop_asked(&self) -> Result<BTreeSet<String>, BlockError> {
        let mut touched = BTreeSet::new();
        for asked in self.blocks.requests.iter().filter(|asked| asked.action == OperatorAction::Drop) {
            let start = self.drains.parked.records.get(&self.tenant, &asked.start_id).await?;
            let place = start.as_ref().filter(|start| start.state == ParkedState::Retrying);
            let place = place.and_then(|start| Some((start.block.clone()?, start.place_in_block?)));
            let mut leaving = Vec::new();
            let mut name = String::new();
            if let (Some(start), Some((block, place))) = (start, place) {
                let claim = keys::start_claim(
                    &self.tenant,
                    &start.event_place,
                    &self.drainer,
                    start.epoch,
                    &start.subscription_id,
                );
                let members = self.blocks.members(&block, place, 1).await?;
                // One that is claimed is started: there is nothing left to give up.
                let claimed = self.drains.outbox.drop_start(&claim, start_claim_ttl(start.ttl)).await?;
                if matches!(claimed, Claimed::New) || self.drains.outbox.is_dropped(&claim).await? {
                    let ours = members.into_iter().filter(|member| member.start_id == start.id);
                    leaving.extend(ours.map(|member| (member, ParkedRowChange::Delete)));
                }
                touched.insert(block.clone());
                name = block;
            }
            self.blocks.remove_members_and_requests(&name, leaving, std::slice::from_ref(asked)).await?;
        }
        Ok(touched)
    }
}

/// A member of the block of a subscription that goes to the block of its entity.
fn moved(
    block: &Block,
    member: Member,
    event: Event,
    subscription: Subscription,
    setback: (Cause, String),
    claimed: bool,
) -> WaitingStart {
    WaitingStart {
        event,
        sk: member.event_place.clone(),
        epoch: member.epoch,
        subscription,
        setback: Some(setback),
        claimed,
        from: Some((block.name.clone(), member)),
    }
}

fn passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
