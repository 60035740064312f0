//! Execution: the outbox makes claims, sends the effects of each, and marks the claim as done.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{join_all, try_join_all};
use ledgerline_event::Name;
use ledgerline_store::{Claim, ClaimState, Claimed, StoreError, keys::ControlKey};

use crate::{ComponentError, Effects, Outbox, PendingEffects, RunEffect};

/// What became of pending effects: which request made their claim, and whether they are sent.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Executed {
    pub claimed: Claimed,
    pub sent: Sent,
}

/// How claims are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOrder {
    /// All at once.
    AllAtOnce,
    /// In order within each group: a process that dies leaves no claim without the earlier claims of its group.
    InGroups,
}

/// What a claim holds that is not known to be sent.
struct Unsent {
    claim_id: Option<Name>,
    effects: Result<Effects, ComponentError>,
}

/// Whether the effects of a claim are out.
#[derive(Debug)]
pub enum Sent {
    /// Nothing is left to send: this process or an earlier one sent them, or there are none.
    Yes,
    /// The claim is pending: sending its effects failed.
    Failed(ComponentError),
    /// The claim is pending. Its effects wait, because an earlier claim of its group was not sent.
    BlockedByEarlier,
}

/// What became of resuming a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// It was pending; its effects are sent now.
    Executed,
    /// There is no claim, its effects were sent before, or it holds an alert, which the sweep of alerts sends.
    NothingPending,
}

/// The positions of claims by lane: the claims of one lane are made one after the other, the lanes at the same time.
fn lanes(count: usize, group: impl Fn(usize) -> String, order: ClaimOrder) -> Vec<Vec<usize>> {
    let mut lanes: BTreeMap<(usize, String), Vec<usize>> = BTreeMap::new();
    for position in 0..count {
        let lane = match order {
            ClaimOrder::AllAtOnce => (position, String::new()),
            ClaimOrder::InGroups => (0, group(position)),
        };
        lanes.entry(lane).or_default().push(position);
    }
    lanes.into_values().collect()
}

impl Outbox {
    /// Makes a claim and sends its effects, also if an earlier process left the claim pending. Returns which request made
    /// the claim.
    pub async fn execute(&self, pending: &PendingEffects) -> Result<Claimed, ComponentError> {
        let (claimed, unsent) = self.make_claim(pending).await?;
        if let Some(Unsent { claim_id, effects }) = unsent {
            self.send(effects?).await?;
            self.finish(&pending.key, claim_id.as_deref()).await?;
        }
        Ok(claimed)
    }

    /// Makes a claim. Returns which request made it, and what it holds that is not known to be sent.
    async fn make_claim(
        &self,
        pending: &PendingEffects,
    ) -> Result<(Claimed, Option<Unsent>), ComponentError> {
        let new = self.new_claim(pending).await?;
        let claimed = self.put_claim(&pending.key, &new).await?;
        let unsent = match &claimed {
            Claimed::New => Some(Unsent { claim_id: new.claim_id, effects: Ok(pending.effects.clone()) }),
            Claimed::Before(claim) if claim.state == ClaimState::Pending => {
                Some(Unsent { claim_id: claim.claim_id.clone(), effects: self.effects_of(claim).await })
            }
            Claimed::Before(_) | Claimed::Recorded => None,
        };
        Ok((claimed, unsent))
    }

    /// Makes claims and sends the effects of all of them together. If that fails, it sends those of each claim
    /// alone, and after a claim that is not sent, none of the later claims of the same `group`. `order` says in what
    /// order the claims are made.
    pub async fn execute_each(
        &self,
        pending: &[PendingEffects],
        group: impl Fn(usize) -> String,
        order: ClaimOrder,
    ) -> Result<Vec<Executed>, ComponentError> {
        let lanes = lanes(pending.len(), &group, order);
        let made = try_join_all(lanes.into_iter().map(|lane| async move {
            let mut made = Vec::with_capacity(lane.len());
            for position in lane {
                made.push((position, self.make_claim(&pending[position]).await?));
            }
            Ok::<_, ComponentError>(made)
        }));
        let mut made: Vec<_> = made.await?.into_iter().flatten().collect();
        made.sort_by_key(|(position, _)| *position);
        let mut all = Effects::default();
        let mut unsent = Vec::new();
        let mut executed = Vec::with_capacity(pending.len());
        let mut unreadable: BTreeSet<String> = BTreeSet::new();
        for (position, (claimed, of_claim)) in made {
            let sent = match of_claim {
                None => Sent::Yes,
                Some(Unsent { effects: Err(error), .. }) => {
                    unreadable.insert(group(position));
                    Sent::Failed(error)
                }
                Some(_) if unreadable.contains(&group(position)) => Sent::BlockedByEarlier,
                Some(Unsent { claim_id, effects: Ok(effects) }) => {
                    all.add(effects.clone());
                    unsent.push((position, claim_id, effects));
                    Sent::Yes
                }
            };
            executed.push(Executed { claimed, sent });
        }
        if let Err(error) = self.send(all).await {
            let mut alone = (unsent.len() == 1).then_some(error);
            let mut groups: BTreeMap<String, Vec<(usize, Option<Name>, Effects)>> = BTreeMap::new();
            for (position, id, effects) in std::mem::take(&mut unsent) {
                groups.entry(group(position)).or_default().push((position, id, effects));
            }
            // The groups at the same time: a service that does not answer costs the time of one attempt, not of all.
            let sending = groups.into_values().map(|members| {
                let (mut blocked, mut known) = (false, alone.take());
                async move {
                    let mut results = Vec::with_capacity(members.len());
                    for (position, id, effects) in members {
                        let sent = match (blocked, known.take()) {
                            (true, _) => Sent::BlockedByEarlier,
                            (false, Some(error)) => Sent::Failed(error),
                            (false, None) => {
                                self.send(effects.clone()).await.map_or_else(Sent::Failed, |()| Sent::Yes)
                            }
                        };
                        blocked |= !matches!(sent, Sent::Yes);
                        results.push((position, id, effects, sent));
                    }
                    results
                }
            });
            for (position, id, effects, sent) in join_all(sending).await.into_iter().flatten() {
                match sent {
                    Sent::Yes => unsent.push((position, id, effects)),
                    other => executed[position].sent = other,
                }
            }
        }
        let finished =
            unsent.iter().map(|(position, id, _)| self.finish(&pending[*position].key, id.as_deref()));
        try_join_all(finished).await?;
        Ok(executed)
    }

    /// Resumes a pending claim: sends its effects again and finishes it.
    pub async fn resume(&self, key: &ControlKey) -> Result<Resumed, ComponentError> {
        let Some(claim) = self.claim_at(key).await? else { return Ok(Resumed::NothingPending) };
        if claim.state != ClaimState::Pending {
            return Ok(Resumed::NothingPending);
        }
        let effects = self.effects_of(&claim).await?;
        if effects.alert.is_some() {
            // Versions before 0.1.0 put alerts among the other claims.
            self.claims.move_to_alert_shard(key).await?;
            return Ok(Resumed::NothingPending);
        }
        self.send(effects).await?;
        self.finish(key, claim.claim_id.as_deref()).await?;
        Ok(Resumed::Executed)
    }

    /// Sends effects at once, without a claim.
    pub async fn send(&self, effects: Effects) -> Result<(), ComponentError> {
        if !effects.events.is_empty() {
            self.emitter.send_sealed(effects.events).await?;
        }
        self.queues.send_messages(effects.messages).await?;
        for run in effects.runs {
            (self.run_effects)(RunEffect::Begin(run)).await?;
        }
        for sent in effects.sends {
            (self.run_effects)(RunEffect::Deliver(sent)).await?;
        }
        Ok(())
    }

    /// The effects that a claim holds.
    pub async fn effects_of(&self, claim: &Claim) -> Result<Effects, ComponentError> {
        let unreadable = |what: String| StoreError::unreadable("reading a claim", what);
        let json = match (&claim.effects, &claim.effects_key) {
            (Some(json), _) => json.clone().into_bytes(),
            (None, Some(key)) => {
                self.payloads.get(key).await?.ok_or_else(|| unreadable(format!("{key} is missing")))?
            }
            (None, None) => return Err(unreadable("it is pending and has no effects".into()).into()),
        };
        Ok(serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_in_order_wait_for_those_of_their_group_alone() {
        let group = |position: usize| ["a", "b", "a"][position].to_owned();
        assert_eq!(lanes(3, group, ClaimOrder::InGroups), [vec![0, 2], vec![1]]);
        assert_eq!(lanes(3, group, ClaimOrder::AllAtOnce), [vec![0], vec![1], vec![2]]);
    }
}
