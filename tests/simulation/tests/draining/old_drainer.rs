//! A drainer of a version before 0.1.0, request by request. It knows no blocks: a start that fails halts it before the event,
//! with a row of state `retrying`, and is parked after five attempts. It gives up at the first trouble, reads no
//! late arrivals, and leaves a mark whenever it releases the lease, as one does that is out of time.

use aws_sdk_dynamodb::types::ReturnValue;
use ledgerline_drains::{DrainState, LEASE_MS, ParkedStart, ParkedState, SETTLE_MS};
use ledgerline_event::{Event, Kind, Millis, catalogue::TaskPending, keys::moment};
use ledgerline_ledger::{Clock, Emitter, SealedEvent, Timeline, TimelineEvent};
use ledgerline_simulation::Store;
use ledgerline_stage::Stage;
use ledgerline_store::{
    ControlTable, Payloads, item,
    keys::{self, ControlKey},
    read,
};
use ledgerline_subscription::{Matcher, OnFailure, Subscription, Verdict};
use ledgerline_test_support::{name, number, previous_version::Trouble, text};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::TENANT;

const MAX_ATTEMPTS: u32 = 5;

pub(super) struct OldDrainer {
    stage: Stage,
    control: ControlTable,
    timeline: Timeline,
    emitter: Emitter,
    sqs: aws_sdk_sqs::Client,
    clock: Clock,
}

/// The event on which the drainer is halted, and until when.
type Halted = (String, Millis);

/// Whether something was done, or another process has done it.
fn done<T, E: std::fmt::Debug>(
    answer: Result<T, aws_sdk_dynamodb::error::SdkError<E>>,
    is_refusal: impl Fn(&E) -> bool,
) -> Result<Option<T>, Trouble> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.as_service_error().is_some_and(is_refusal) => Ok(None),
        Err(_) => Err(Trouble),
    }
}

impl OldDrainer {
    /// One that reads subscriptions and types by `dispatch`.
    pub(super) fn new(store: &Store, stage: Stage, clock: Clock) -> Self {
        let (clients, names) = (&store.clients, &store.names);
        let payloads = Payloads::new(clients.s3.clone(), &names.payload_bucket);
        Self {
            stage,
            control: ControlTable::new(clients.dynamo.clone(), &names.control_table),
            timeline: Timeline::new(clients.dynamo.clone(), &names.events_table, payloads),
            emitter: Emitter::with_clock(clients, names, name(TENANT), name("shop"), clock.clone()),
            sqs: clients.sqs.clone(),
            clock,
        }
    }

    /// One visit, as far as it comes.
    pub(super) async fn drain(&self, drainer: &str) -> Result<(), Trouble> {
        let Some((record, horizon)) = self.acquire(drainer).await? else { return Ok(()) };
        let (mut cursor, mut halted) = (None, None);
        let passed = self.pass(drainer, &record, &horizon, &mut cursor, &mut halted).await;
        self.release(drainer, &record, cursor, halted).await?;
        passed
    }

    async fn acquire(&self, drainer: &str) -> Result<Option<(DrainState, String)>, Trouble> {
        let now = (self.clock)();
        let key = keys::drain(TENANT, drainer);
        let there: Option<DrainState> = self.control.get(&key).await.map_err(|_| Trouble)?;
        let Some(there) = there else { return Ok(None) };
        let settled = now.minus(SETTLE_MS);
        let horizon =
            there.watermarks.events.map_or(moment(settled), |published| published.max(moment(settled)));
        let lane = there.watermarks.late_arrivals.map_or(settled, |published| published.max(settled));
        let update = self
            .control
            .update(&key)
            .update_expression(
                "SET #owner = :owner, leaseUntil = :until, fence = if_not_exists(fence, :zero) + :one, \
                 horizon = :horizon, laneHorizon = :lane",
            )
            .condition_expression(
                "attribute_exists(PK) AND (attribute_not_exists(#owner) OR leaseUntil <= :now) \
                 AND (attribute_not_exists(horizon) OR horizon <= :horizon) \
                 AND (attribute_not_exists(laneHorizon) OR laneHorizon <= :lane)",
            )
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":owner", text(&self.emitter.new_id(Kind::Event)))
            .expression_attribute_values(":until", number(now.plus(LEASE_MS).get()))
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":horizon", text(&horizon))
            .expression_attribute_values(":lane", number(lane.get()))
            .return_values(ReturnValue::AllNew);
        let taken = done(update.send().await, |error| error.is_conditional_check_failed_exception())?;
        Ok(taken.map(|taken| (read(taken.attributes.unwrap()).unwrap(), horizon)))
    }

    async fn pass(
        &self,
        drainer: &str,
        record: &DrainState,
        horizon: &str,
        cursor: &mut Option<String>,
        halted: &mut Option<Halted>,
    ) -> Result<(), Trouble> {
        let (places, _) = self.timeline.after(TENANT, &record.cursor, 500).await.map_err(|_| Trouble)?;
        let mut subscriptions =
            self.stage.registry().subscriptions(&name(TENANT)).await.map_err(|_| Trouble)?;
        subscriptions.retain(|subscription| &*subscription.drainer_id == drainer);
        let matcher = Matcher::new(subscriptions);
        for place in &places {
            for decision in matcher.decide(&place.event) {
                let subscription = decision.subscription;
                let reason = match decision.verdict {
                    Verdict::Start { .. } if self.knows(subscription).await? => {
                        self.start(drainer, record, place, subscription).await?;
                        if record.halted_on_event_id.as_ref() == Some(&place.event.event_id) {
                            self.no_longer_retrying(&start_id(drainer, record, place, subscription)).await?;
                        }
                        continue;
                    }
                    Verdict::Start { .. } => "the workflow type is not registered".to_owned(),
                    Verdict::Failed { reason } => reason,
                    _ => continue,
                };
                if let Some(until) = self.setback(drainer, record, place, subscription, reason).await? {
                    *halted = Some((place.event.event_id.to_string(), until));
                }
            }
            if halted.is_some() {
                return Ok(());
            }
            if *place.sk <= *horizon {
                *cursor = Some(place.sk.clone());
            }
        }
        Ok(())
    }

    async fn knows(&self, subscription: &Subscription) -> Result<bool, Trouble> {
        let types = self.stage.registry().workflow_types(&name(TENANT)).await.map_err(|_| Trouble)?;
        Ok(types.iter().any(|known| known.workflow_type == subscription.workflow_type))
    }

    /// Claims a start, sends it, and says that it is done.
    async fn start(
        &self,
        drainer: &str,
        record: &DrainState,
        place: &TimelineEvent,
        subscription: &Subscription,
    ) -> Result<(), Trouble> {
        let key = claim_of(drainer, record, place, subscription);
        if let Some(there) = self.control.get::<Value>(&key).await.map_err(|_| Trouble)? {
            // One that is pending is left to the sweep: the cursor does not pass it.
            return if there["state"] == "pending" { Err(Trouble) } else { Ok(()) };
        }
        let claim_id = self.emitter.new_id(Kind::Event);
        let (request_id, event, message) = self.effects(&place.event, subscription).await?;
        let body = message.to_string();
        let queued = json!({ "queue": "tasks", "group": TENANT, "body": body });
        let now = (self.clock)();
        let claim = json!({
            "state": "pending", "claimId": claim_id, "started": request_id, "claimedAt": now,
            "effects": json!({ "events": [event], "messages": [queued] }).to_string(),
            "dueShard": keys::due_shard_of(&key), "dueAt": now.plus(LEASE_MS),
        });
        let put = self.control.put(&key, &claim).unwrap().condition_expression("attribute_not_exists(PK)");
        if done(put.send().await, |error| error.is_conditional_check_failed_exception())?.is_none() {
            return Err(Trouble);
        }
        self.emitter.send_sealed(vec![event]).await.map_err(|_| Trouble)?;
        let queue = "https://sqs.test/000000000000/test-tasks";
        let sent = self.sqs.send_message().queue_url(queue).message_group_id(TENANT).message_body(body);
        sent.send().await.map_err(|_| Trouble)?;
        let finish = self
            .control
            .update(&key)
            .update_expression("SET #state = :done REMOVE effects, effectsKey, dueShard, dueAt")
            .condition_expression("#state = :pending AND claimId = :id")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":done", text("done"))
            .expression_attribute_values(":pending", text("pending"))
            .expression_attribute_values(":id", text(&claim_id));
        done(finish.send().await, |error| error.is_conditional_check_failed_exception()).map(drop)
    }

    async fn effects(
        &self,
        event: &Event,
        subscription: &Subscription,
    ) -> Result<(String, SealedEvent, Value), Trouble> {
        let emitter = self.emitter.handling(event).with_scope(|scope| {
            scope.app = event.app_name.clone();
            scope.context.via.push(subscription.subscription_id.to_string());
            scope.context.generation = Some(1);
        });
        let request_id = emitter.new_id(Kind::Task);
        let workflow = subscription.workflow_type.to_string();
        let pending = TaskPending {
            request_id: request_id.to_string(),
            job_id: None,
            name: workflow.clone(),
            depends_on: None,
        };
        let sealed = emitter.catalogued(request_id.as_str(), pending).build_plain().unwrap();
        let sealed = emitter.seal(sealed).await.map_err(|_| Trouble)?;
        let message = json!({
            "tenantId": TENANT, "appName": event.app_name, "requestId": request_id, "name": workflow,
            "input": {}, "generation": 1, "context": emitter.scope().context,
        });
        Ok((request_id.to_string(), sealed, message))
    }

    /// One more failure of a start; `None` if it is parked, or was settled otherwise.
    async fn setback(
        &self,
        drainer: &str,
        record: &DrainState,
        place: &TimelineEvent,
        subscription: &Subscription,
        reason: String,
    ) -> Result<Option<Millis>, Trouble> {
        let now = (self.clock)();
        let id = start_id(drainer, record, place, subscription);
        let key = keys::parked_start(TENANT, &id);
        let before: Option<ParkedStart> = self.control.get(&key).await.map_err(|_| Trouble)?;
        let claim = claim_of(drainer, record, place, subscription);
        match &before {
            Some(before) if before.state == ParkedState::Parked => return Ok(None),
            Some(before) if before.next_attempt_at.is_some_and(|next| next > now) => {
                return Ok(before.next_attempt_at);
            }
            Some(_) => {}
            None if self.control.get::<Value>(&claim).await.map_err(|_| Trouble)?.is_some() => {
                return Ok(None);
            }
            None => {}
        }
        let attempts = before.as_ref().map_or(0, |before| before.attempts) + 1;
        let next = now.plus(10_000 * 3_u64.pow(attempts - 1));
        let parks = attempts >= MAX_ATTEMPTS && subscription.on_failure == OnFailure::Park;
        let event = &place.event;
        let mut row = json!({
            "id": id, "state": if parks { "parked" } else { "retrying" }, "because": "failed", "reason": reason,
            "attempts": attempts, "drainerId": drainer, "epoch": record.epochs.of(&place.sk),
            "subscriptionId": subscription.subscription_id, "workflowType": subscription.workflow_type,
            "eventId": event.event_id, "eventType": event.event_type, "entityType": event.entity_type,
            "entityId": event.entity_id, "eventPlace": place.sk,
            "firstFailedAt": before.map_or(now, |before| before.first_failed_at),
        });
        row[if parks { "parkedAt" } else { "nextAttemptAt" }] = json!(if parks { now } else { next });
        let put = self
            .control
            .put(&key, &row)
            .unwrap()
            .condition_expression("attribute_not_exists(PK) OR (#state = :retrying AND attempts = :seen)")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"))
            .expression_attribute_values(":seen", number(u64::from(attempts - 1)));
        let put = done(put.send().await, |error| error.is_conditional_check_failed_exception())?;
        Ok(match put {
            Some(_) if parks => None,
            Some(_) => Some(next),
            None => Some(now.plus(10_000)),
        })
    }

    async fn no_longer_retrying(&self, id: &str) -> Result<(), Trouble> {
        let delete = self
            .control
            .delete(&keys::parked_start(TENANT, id))
            .condition_expression("#state = :retrying")
            .expression_attribute_names("#state", "state")
            .expression_attribute_values(":retrying", text("retrying"));
        done(delete.send().await, |error| error.is_conditional_check_failed_exception()).map(drop)
    }

    /// Leaves a mark, and then the lease.
    async fn release(
        &self,
        drainer: &str,
        record: &DrainState,
        cursor: Option<String>,
        halted: Option<Halted>,
    ) -> Result<(), Trouble> {
        let now = (self.clock)();
        let mark = json!({ "fence": record.fence, "markedAt": now });
        let mark = item(&keys::old_dirty_mark(TENANT, drainer), &mark).unwrap();
        self.control.put_all(vec![mark]).await.map_err(|_| Trouble)?;
        let mut set = vec!["lastDrainedAt = :now"];
        let mut update = self.control.update(&keys::drain(TENANT, drainer));
        let mut remove = vec!["#owner", "leaseUntil"];
        if let Some(cursor) = &cursor {
            set.push("#cursor = :cursor");
            update = update
                .expression_attribute_names("#cursor", "cursor")
                .expression_attribute_values(":cursor", text(cursor));
        }
        match &halted {
            Some((event, until)) => {
                set.push("haltedOnEventId = :halted, nextAttemptAt = :next");
                update = update
                    .expression_attribute_values(":halted", text(event))
                    .expression_attribute_values(":next", number(until.get()));
            }
            None => remove.extend(["haltedOnEventId", "nextAttemptAt"]),
        }
        let update = update
            .update_expression(format!("SET {} REMOVE {}", set.join(", "), remove.join(", ")))
            .condition_expression("fence = :fence AND attribute_exists(#owner)")
            .expression_attribute_names("#owner", "owner")
            .expression_attribute_values(":now", number(now.get()))
            .expression_attribute_values(":fence", number(record.fence));
        done(update.send().await, |error| error.is_conditional_check_failed_exception()).map(drop)
    }
}

fn claim_of(
    drainer: &str,
    record: &DrainState,
    place: &TimelineEvent,
    subscription: &Subscription,
) -> ControlKey {
    let epoch = record.epochs.of(&place.sk);
    keys::start_claim(TENANT, &place.sk, drainer, epoch, &subscription.subscription_id)
}

/// The id of a start among the parked ones.
fn start_id(
    drainer: &str,
    record: &DrainState,
    place: &TimelineEvent,
    subscription: &Subscription,
) -> String {
    let epoch = record.epochs.of(&place.sk).to_string();
    let mut hash = Sha256::new();
    for part in [drainer, &epoch, subscription.subscription_id.as_str(), &place.sk] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let digest: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{digest}", place.event.timestamp)
}
