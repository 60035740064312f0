//! Claims: a process stores the effects of everything that must happen once before it sends any of them.
//!
//! A process puts a claim only if the key is free. The claim holds the exact effects, and is `pending` until
//! they are sent. A process that meets a pending claim sends its effects again, and so does the sweep once
//! the claim is overdue. So a process may die at any point: either there is no claim and nothing was sent, or
//! a later process finishes the claim. The saver stores an event once, however often it is sent; a message
//! may be delivered twice, and carries what its consumer needs to notice that.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::{
    error::SdkError,
    operation::put_item::PutItemError,
    types::{AttributeValue, ReturnValuesOnConditionCheckFailure},
};
use futures::future::{join_all, try_join_all};
use ledgerline_event::{Millis, Name, Seconds};
use ledgerline_ledger::{
    SealedEvent, StoreError,
    control::{
        Item,
        keys::{self, ControlKey},
        read,
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    Dispatch, DispatchError, LEASE_MS, Queue, SentEvent,
    conditional::{number, text},
    runs::NewRun,
};

/// Larger effects are kept in the payload bucket: an item has 400 KB.
const INLINE_BYTES: usize = 100_000;
/// What a claim of a start outlives its event by. DynamoDB deletes expired rows days late and in no order: an event that
/// is still there must not have lost its claim, or `rewind --missing-only` would start it again.
const OUTLIVES_SECONDS: u64 = 30 * 24 * 60 * 60;

/// Until when the claim of a start is kept that an event leads to.
pub(crate) fn outliving(event_ttl: Option<Seconds>) -> Option<Seconds> {
    event_ttl.map(|ttl| ttl.plus(OUTLIVES_SECONDS))
}

/// How long a claim that could not be finished waits for the next attempt.
pub(crate) const POSTPONED_MS: u64 = 5 * 60_000;

/// What a claim will send, exactly.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Effects {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<SealedEvent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) messages: Vec<Message>,
    /// Runs that begin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) runs: Vec<NewRun>,
    /// Events that are sent to runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sends: Vec<SentEvent>,
    /// For people. Nothing waits for it: Slack may be down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alert: Option<String>,
}

/// A message for a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message {
    pub(crate) queue: Queue,
    /// Whose it is: queues are fair between groups.
    pub(crate) group: String,
    /// JSON, as it will be sent.
    pub(crate) body: String,
    /// How long it stays hidden.
    #[serde(default)]
    pub(crate) delay_seconds: u64,
}

impl Effects {
    fn add(&mut self, other: Self) {
        self.events.extend(other.events);
        self.messages.extend(other.messages);
        self.runs.extend(other.runs);
        self.sends.extend(other.sends);
    }

    /// How much has to be held and sent.
    pub(crate) fn size(&self) -> usize {
        let messages: usize = self.messages.iter().map(|message| message.body.len()).sum();
        self.events.iter().map(SealedEvent::size).sum::<usize>() + messages
    }
}

/// A claim as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    pub(crate) state: ClaimState,
    /// Identifies the claim: a task's record is one claim at its start and another at its end.
    #[serde(default)]
    pub(crate) claim_id: Option<Name>,
    /// What it started, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) started: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    effects: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    effects_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_shard: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due_at: Option<Millis>,
    pub(crate) claimed_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl: Option<Seconds>,
}

impl Claim {
    /// What an update of a record sets to make it this claim; the values go with [`Claim::values`].
    pub(crate) const SET: &str = "#state = :pending, claimId = :claimId, dueShard = :dueShard, dueAt = :dueAt, \
                                  claimedAt = :claimedAt, effects = :effects, effectsKey = :effectsKey";

    /// The claim in a record; `None` if it holds none. A task or a job that another system emitted has a record before
    /// it has a claim, or never gets one.
    pub(crate) fn in_row(row: Item) -> Result<Option<Self>, StoreError> {
        if row.contains_key("state") { read(row).map(Some) } else { Ok(None) }
    }

    /// The values of [`Claim::SET`].
    pub(crate) fn values(&self) -> Vec<(&'static str, AttributeValue)> {
        let text_or_null = |value: Option<&str>| value.map_or(AttributeValue::Null(true), text);
        vec![
            (":pending", text("pending")),
            (":claimId", text_or_null(self.claim_id.as_deref())),
            (":dueShard", text_or_null(self.due_shard.as_deref())),
            (":dueAt", number(self.due_at.unwrap_or(self.claimed_at).get())),
            (":claimedAt", number(self.claimed_at.get())),
            (":effects", text_or_null(self.effects.as_deref())),
            (":effectsKey", text_or_null(self.effects_key.as_deref())),
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClaimState {
    /// Its effects may not have been sent yet.
    Pending,
    /// They have.
    Done,
    /// There never will be any: an operator dropped the parked start.
    Dropped,
}

/// A claim that is about to be made.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    pub(crate) key: ControlKey,
    pub(crate) effects: Effects,
    pub(crate) started: Option<Name>,
    /// Claims live as long as what they are about, and those of starts longer ([`outliving`]).
    pub(crate) ttl: Option<Seconds>,
}

/// What became of an intent.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) claimed: Claimed,
    pub(crate) sent: Sent,
}

/// How claims are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    /// All at once.
    Yes,
    /// In order within each group: a process that dies leaves no claim without those before it.
    InOrder,
}

/// Whether the effects of a claim are out.
#[derive(Debug)]
pub(crate) enum Sent {
    /// Nothing is left to send: this process or an earlier one sent them, or there are none.
    Yes,
    /// The claim is pending.
    Failed(DispatchError),
    /// The claim is pending. Nothing of it was sent, because an earlier claim of its group was not sent.
    Behind,
}

/// Which request made the claim.
#[derive(Clone, Debug)]
pub(crate) enum Claimed {
    /// This one.
    New,
    /// An earlier one; the claim as it is stored.
    Before(Claim),
    /// The key has a record without a claim in it: nothing is pending.
    Recorded,
}

impl Dispatch {
    /// Makes the claim unless there is one.
    pub(crate) async fn claim(&self, intent: &Intent) -> Result<Claimed, DispatchError> {
        self.put_claim(&intent.key, &self.pending(intent).await?).await
    }

    /// A claim as it is before its effects are sent.
    pub(crate) async fn pending(&self, intent: &Intent) -> Result<Claim, DispatchError> {
        let now = self.now();
        let json = serde_json::to_string(&intent.effects)
            .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
        let claim_id = self.new_event_id();
        let mut claim = Claim {
            state: ClaimState::Pending,
            claim_id: Some(claim_id.clone()),
            started: intent.started.clone(),
            effects: None,
            effects_key: None,
            due_shard: Some(match intent.effects.alert {
                Some(_) => keys::alert_due_shard_of(&intent.key),
                None => keys::due_shard_of(&intent.key),
            }),
            // The process that makes the claim has this long to finish it; then a sweep resumes it.
            due_at: Some(now.plus(LEASE_MS)),
            claimed_at: now,
            ttl: intent.ttl,
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

    /// Notes that there will be no start; `false` if there is a claim already.
    pub(crate) async fn claim_nothing(
        &self,
        key: &ControlKey,
        ttl: Option<Seconds>,
    ) -> Result<bool, DispatchError> {
        let claim = Claim {
            state: ClaimState::Dropped,
            claim_id: None,
            started: None,
            effects: None,
            effects_key: None,
            due_shard: None,
            due_at: None,
            claimed_at: self.now(),
            ttl,
        };
        Ok(matches!(self.put_claim(key, &claim).await?, Claimed::New))
    }

    /// Whether an operator has given the start up.
    pub(crate) async fn is_dropped(&self, key: &ControlKey) -> Result<bool, DispatchError> {
        Ok(self.claim_at(key).await?.is_some_and(|claim| claim.state == ClaimState::Dropped))
    }

    /// Whether there is a claim, of whatever state.
    pub(crate) async fn claim_there(&self, key: &ControlKey) -> Result<bool, DispatchError> {
        Ok(self.claim_at(key).await?.is_some())
    }

    /// The claim of a record; `None` if there is no record, or if it holds no claim.
    pub(crate) async fn claim_at(&self, key: &ControlKey) -> Result<Option<Claim>, DispatchError> {
        let row = self.control.get_row(key).await?;
        Ok(row.map(Claim::in_row).transpose()?.flatten())
    }

    /// Whether this very claim is there.
    pub(crate) async fn is_claimed_by(&self, key: &ControlKey, claim: &Claim) -> Result<bool, DispatchError> {
        Ok(self.claim_at(key).await?.is_some_and(|there| there.claim_id == claim.claim_id))
    }

    /// Postpones a pending claim, so that the claims behind it do not wait for it.
    pub(crate) async fn postpone(&self, key: &ControlKey) -> Result<(), DispatchError> {
        self.postpone_for(key, POSTPONED_MS).await
    }

    pub(crate) async fn postpone_for(&self, key: &ControlKey, ms: u64) -> Result<(), DispatchError> {
        let update = self
            .control
            .update(key)
            .update_expression("SET dueAt = :later")
            .condition_expression("#state = :pending")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":pending", text("pending"))
            .expression_attribute_values(":later", number(self.now().plus(ms).get()));
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            Err(error) if error.fault == ledgerline_ledger::Fault::Refused => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }

    pub(crate) async fn put_claim(
        &self,
        key: &ControlKey,
        claim: &impl Serialize,
    ) -> Result<Claimed, DispatchError> {
        let put = self
            .control
            .put(key, claim)?
            .condition_expression("attribute_not_exists(PK)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let there = match put {
            Ok(_) => return Ok(Claimed::New),
            Err(SdkError::ServiceError(refused)) if refused.err().is_conditional_check_failed_exception() => {
                let PutItemError::ConditionalCheckFailedException(there) = refused.into_err() else {
                    unreachable!("checked by the guard");
                };
                there.item
            }
            Err(error) => return Err(StoreError::new("PutItem", error).into()),
        };
        let there = match there {
            Some(row) => Some(row),
            None => self.control.get_row(key).await?,
        };
        // Gone between two requests: it expired, and its event with it.
        let there = there
            .ok_or_else(|| StoreError::unreadable("PutItem", "a claim refused another and is not there"))?;
        Ok(Claim::in_row(there)?.map_or(Claimed::Recorded, Claimed::Before))
    }

    /// Makes claims and sends their effects, also those of claims that an earlier process left pending.
    /// Answers, in the order of the intents, which request made each claim.
    pub(crate) async fn carry_out(&self, intents: &[Intent]) -> Result<Vec<Claimed>, DispatchError> {
        let mut all = Vec::with_capacity(intents.len());
        for carried in self.carry_each(intents, |_| String::new(), Together::Yes).await? {
            match carried.sent {
                Sent::Failed(error) => return Err(error),
                Sent::Yes | Sent::Behind => all.push(carried.claimed),
            }
        }
        Ok(all)
    }

    /// Makes claims and sends the effects of all of them together; if that fails, it sends those of each
    /// claim alone. Once a claim of a `group` is not sent, the later claims of that group are not sent
    /// either. `together` says in what order the claims are made.
    pub(crate) async fn carry_each(
        &self,
        intents: &[Intent],
        group: impl Fn(usize) -> String,
        together: Together,
    ) -> Result<Vec<Carried>, DispatchError> {
        let mut lanes: BTreeMap<(usize, String), Vec<usize>> = BTreeMap::new();
        for position in 0..intents.len() {
            let lane = match together {
                Together::Yes => (position, String::new()),
                Together::InOrder => (0, group(position)),
            };
            lanes.entry(lane).or_default().push(position);
        }
        let made = try_join_all(lanes.into_values().map(|lane| async move {
            let mut made = Vec::with_capacity(lane.len());
            for position in lane {
                let claim = self.pending(&intents[position]).await?;
                let claimed = self.put_claim(&intents[position].key, &claim).await?;
                made.push((position, (claim.claim_id, claimed)));
            }
            Ok::<_, DispatchError>(made)
        }));
        let mut made: Vec<_> = made.await?.into_iter().flatten().collect();
        made.sort_by_key(|(position, _)| *position);
        let mut all = Effects::default();
        let mut unsent = Vec::new();
        let mut carried = Vec::with_capacity(intents.len());
        for (position, (id, claimed)) in made {
            let intent = &intents[position];
            let pending = match &claimed {
                Claimed::New => Some((id, Ok(intent.effects.clone()))),
                Claimed::Before(claim) if claim.state == ClaimState::Pending => {
                    Some((claim.claim_id.clone(), self.effects_of(claim).await))
                }
                Claimed::Before(_) | Claimed::Recorded => None,
            };
            let sent = match pending {
                None => Sent::Yes,
                Some((_, Err(error))) => Sent::Failed(error),
                Some((id, Ok(effects))) => {
                    all.add(effects.clone());
                    unsent.push((position, id, effects));
                    Sent::Yes
                }
            };
            carried.push(Carried { claimed, sent });
        }
        if let Err(error) = self.send(all).await {
            let failed = carried.iter().enumerate().filter(|(_, one)| matches!(one.sent, Sent::Failed(_)));
            let failed: BTreeSet<String> = failed.map(|(position, _)| group(position)).collect();
            let mut alone = (unsent.len() == 1).then_some(error);
            let mut groups: BTreeMap<String, Vec<(usize, Option<Name>, Effects)>> = BTreeMap::new();
            for (position, id, effects) in std::mem::take(&mut unsent) {
                groups.entry(group(position)).or_default().push((position, id, effects));
            }
            // Groups side by side: a service that does not answer costs the time of one attempt, not of all.
            let sending = groups.into_iter().map(|(group, members)| {
                let (mut behind, mut known) = (failed.contains(&group), alone.take());
                async move {
                    let mut fates = Vec::with_capacity(members.len());
                    for (position, id, effects) in members {
                        let sent = match (behind, known.take()) {
                            (true, _) => Sent::Behind,
                            (false, Some(error)) => Sent::Failed(error),
                            (false, None) => {
                                self.send(effects.clone()).await.map_or_else(Sent::Failed, |()| Sent::Yes)
                            }
                        };
                        behind |= !matches!(sent, Sent::Yes);
                        fates.push((position, id, effects, sent));
                    }
                    fates
                }
            });
            for (position, id, effects, sent) in join_all(sending).await.into_iter().flatten() {
                match sent {
                    Sent::Yes => unsent.push((position, id, effects)),
                    other => carried[position].sent = other,
                }
            }
        }
        let finished =
            unsent.iter().map(|(position, id, _)| self.finish(&intents[*position].key, id.as_deref()));
        try_join_all(finished).await?;
        Ok(carried)
    }

    /// Resumes a pending claim: sends its effects again and finishes it. Answers whether it did.
    pub(crate) async fn repeat(&self, key: &ControlKey) -> Result<bool, DispatchError> {
        let Some(claim) = self.claim_at(key).await? else { return Ok(false) };
        if claim.state != ClaimState::Pending {
            return Ok(false);
        }
        let effects = self.effects_of(&claim).await?;
        if effects.alert.is_some() {
            // The version before put alerts among the other claims.
            self.move_to_alerts(key).await?;
            return Ok(false);
        }
        self.send(effects).await?;
        self.finish(key, claim.claim_id.as_deref()).await?;
        Ok(true)
    }

    pub(crate) async fn send(&self, effects: Effects) -> Result<(), DispatchError> {
        if !effects.events.is_empty() {
            self.emitter.send_sealed(effects.events).await?;
        }
        self.send_messages(effects.messages).await?;
        for run in &effects.runs {
            Box::pin(self.begin_run(run)).await?;
        }
        for sent in &effects.sends {
            Box::pin(self.deliver_sent(sent)).await?;
        }
        Ok(())
    }

    pub(crate) async fn effects_of(&self, claim: &Claim) -> Result<Effects, DispatchError> {
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

    /// Marks a claim as done once its effects are sent. The claim stays, so that no other process sends them
    /// again. `id` must match: the record may be another claim by now.
    pub(crate) async fn finish(&self, key: &ControlKey, id: Option<&str>) -> Result<(), DispatchError> {
        let mut update = self
            .control
            .update(key)
            .update_expression("SET #state = :done REMOVE effects, effectsKey, dueShard, dueAt")
            .condition_expression(match id {
                Some(_) => "#state = :pending AND claimId = :id",
                None => "#state = :pending AND attribute_not_exists(claimId)",
            })
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":done", text("done"))
            .expression_attribute_values(":pending", text("pending"));
        if let Some(id) = id {
            update = update.expression_attribute_values(":id", text(id));
        }
        match update.send().await.map_err(|error| StoreError::new("UpdateItem", error)) {
            // Another process has finished it, or the record is another claim by now.
            Err(error) if error.fault == ledgerline_ledger::Fault::Refused => Ok(()),
            other => Ok(other.map(|_| ())?),
        }
    }
}
