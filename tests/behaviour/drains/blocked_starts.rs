//! Starts that fail for a passing reason: what has their subscription and entity waits, in order, and nothing else.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::FutureExt;
use ledgerline_drains::{
    CountEvents, ParkedFilter, ParkedStart, ParkedState, RewindScope, SubscriptionChange,
};
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::{Event, Name, keys::place};
use ledgerline_store::keys;
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, another_process, event, name};

/// An event of one entity, `n` milliseconds from now.
fn of(ledger: &Ledger, id: &str, entity: &str, n: u64) -> Event {
    let mut event = event("t", id, ledger.now().plus(n));
    event.entity_id = name(entity);
    event
}

/// What waits or is parked, by the time of its event.
async fn all(ledger: &Ledger) -> Vec<ParkedStart> {
    let mut starts =
        ledger.stage.parked().parked(&name("t"), ParkedFilter::All, 50, None).await.unwrap().items;
    starts.reverse();
    starts
}

/// The events whose tasks are in the queue, in its order.
fn queued(ledger: &Ledger) -> Vec<String> {
    ledger.tasks().iter().map(|task| task["input"]["id"].as_str().unwrap().to_owned()).collect()
}

async fn subscribe(ledger: &Ledger, workflow: &str) -> Name {
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": workflow})).await
}

/// A queue that does not take the task of one event as long as the switch is on.
fn refusing(id: &str) -> (Interceptor, Arc<AtomicBool>) {
    let switch = Arc::new(AtomicBool::new(true));
    let (on, word) = (switch.clone(), format!(r#"\"id\":\"{id}\""#));
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let refuses = moment == Moment::Before
            && call.operation == "SendMessageBatch"
            && on.load(Ordering::SeqCst)
            && String::from_utf8_lossy(&call.body).contains(&word);
        let verdict = match refuses {
            true => Verdict::Fail { status: 500, code: "InternalError".into() },
            false => Verdict::Proceed,
        };
        futures::future::ready(verdict).boxed()
    });
    (interceptor, switch)
}

#[tokio::test]
async fn only_the_same_entity_waits_for_a_start_that_the_queue_does_not_take() {
    let (interceptor, refuses) = refusing("a1");
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    subscribe(&ledger, "w").await;
    ledger.save(of(&ledger, "a1", "a", 0)).await;
    ledger.save(of(&ledger, "b1", "b", 1)).await;
    let drained = ledger.drain("t").await;
    assert_eq!(drained.halted_on_event_id.as_deref(), Some("a1"));
    assert_eq!(queued(&ledger), ["b1"]);
    // Later events of both entities: those of one wait in order, those of the other start.
    for (n, (id, entity)) in [("a2", "a"), ("b2", "b"), ("a3", "a")].into_iter().enumerate() {
        ledger.save(of(&ledger, id, entity, 10 + n as u64)).await;
    }
    ledger.drain("t").await;
    assert_eq!(queued(&ledger), ["b2"]);
    let waiting = all(&ledger).await;
    let shown: Vec<_> = waiting
        .iter()
        .map(|start| (start.event_id.as_str(), start.state, start.waits_for.as_deref()))
        .collect();
    assert_eq!(
        shown,
        [
            ("a1", ParkedState::Retrying, None),
            ("a2", ParkedState::Retrying, Some("a1")),
            ("a3", ParkedState::Retrying, Some("a1")),
        ]
    );
    assert!(waiting[1].reason.starts_with("waits for a1: "), "{:?}", waiting[1]);
    // The cursor has moved on, and what waits counts as lag.
    ledger.advance(100_000);
    let drained = ledger.drain("t").await;
    assert!(drained.again_at.unwrap() > ledger.now());
    let state = &ledger.stage.drains.drainer_states(&name("t")).await.unwrap()[0];
    assert!(state.cursor.contains("a3") && !state.halted, "{state:?}");
    assert_eq!((state.blocks, state.halted_on_event_id.as_deref()), (1, Some("a1")));
    assert!(state.lag_ms >= 100_000 && state.next_attempt_at.is_some() && state.last_error.is_some());

    refuses.store(false, Ordering::SeqCst);
    let drained = ledger.drain("t").await;
    assert_eq!(drained.triggered.len(), 3);
    assert_eq!((drained.halted_on_event_id, drained.again_at), (None, None));
    assert_eq!(queued(&ledger), ["a1", "a2", "a3"]);
    assert!(all(&ledger).await.is_empty());
    let state = &ledger.stage.drains.drainer_states(&name("t")).await.unwrap()[0];
    assert_eq!((state.blocks, state.lag_ms), (0, 0));
    assert_eq!(ledger.events("t", "workflow.dispatch_failed").await.len(), 1, "only the head has failed");
}

#[tokio::test]
async fn a_start_that_a_dead_process_claimed_and_did_not_send_waits_with_the_others_of_its_entity() {
    let (interceptor, refuses) = refusing("a1");
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    let subscription = subscribe(&ledger, "w").await;
    ledger.save(of(&ledger, "a1", "a", 0)).await;
    ledger.drain("t").await;
    let later = of(&ledger, "a2", "a", 10);
    ledger.save(later.clone()).await;
    // As a process leaves it that dies between its claim and what it claimed.
    let key = keys::start_claim("t", &place(later.timestamp, "a2"), "workflow_runner", 0, &subscription);
    let claim = json!({
        "state": "pending", "claimId": "evnt_1", "started": "task_1", "effects": "{}",
        "claimedAt": ledger.now(),
    });
    ledger.store.control().put(&key, &claim).unwrap().send().await.unwrap();
    ledger.drain("t").await;
    let waiting: Vec<_> = all(&ledger).await.into_iter().map(|start| start.event_id.to_string()).collect();
    assert_eq!(waiting, ["a1", "a2"]);
    refuses.store(false, Ordering::SeqCst);
    ledger.advance(100_000);
    let drained = ledger.drain("t").await;
    let started: Vec<_> = drained.triggered.iter().map(|start| start.event_id.as_str()).collect();
    assert_eq!(started, ["a1", "a2"]);
    let claim: Value = ledger.store.control().get(&key).await.unwrap().unwrap();
    assert_eq!(claim["state"], "done");
}

#[tokio::test]
async fn a_start_whose_claim_cannot_be_read_is_not_overtaken_by_a_later_one_of_its_entity() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    let subscription = subscribe(&ledger, "w").await;
    let first = of(&ledger, "a1", "a", 0);
    ledger.save(first.clone()).await;
    ledger.save(of(&ledger, "a2", "a", 10)).await;
    ledger.save(of(&ledger, "b1", "b", 20)).await;
    let key = keys::start_claim("t", &place(first.timestamp, "a1"), "workflow_runner", 0, &subscription);
    let claim = json!({
        "state": "pending", "claimId": "evnt_1", "started": "task_1", "effectsKey": "claims/missing.json",
        "claimedAt": ledger.now(),
    });
    ledger.store.control().put(&key, &claim).unwrap().send().await.unwrap();
    ledger.drain("t").await;
    assert_eq!(queued(&ledger), ["b1"]);
    let waiting: Vec<_> = all(&ledger).await.into_iter().map(|start| start.event_id.to_string()).collect();
    assert_eq!(waiting, ["a1", "a2"]);
}

#[tokio::test]
async fn later_events_of_an_entity_wait_for_one_whose_payload_cannot_be_read_at_the_moment() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let fails =
            moment == Moment::Before && call.operation == "GetObject" && is_down.load(Ordering::SeqCst);
        let verdict = match fails {
            true => Verdict::Fail { status: 503, code: "SlowDown".into() },
            false => Verdict::Proceed,
        };
        futures::future::ready(verdict).boxed()
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("t", json!({"workflowType": "note", "kind": "task"})).await;
    subscribe(&ledger, "note").await;
    let bucket = &ledger.store.names.payload_bucket;
    let key = "events/item-1/e1-payload.json";
    let put = ledger.store.clients.s3.put_object().bucket(bucket).key(key);
    put.metadata("tenant", "t").body(br#"{"id": "e1"}"#.to_vec().into()).send().await.unwrap();
    let mut large = of(&ledger, "e1", "item-1", 0);
    large.properties = json!({"_s3Overflow": {"bucket": bucket, "key": key}}).as_object().unwrap().clone();
    ledger.save(large).await;
    ledger.save(of(&ledger, "e2", "item-1", 1)).await;
    ledger.save(of(&ledger, "e3", "item-2", 2)).await;
    ledger.advance(10_000);
    ledger.drain("t").await;
    assert_eq!(queued(&ledger), ["e3"]);
    down.store(false, Ordering::SeqCst);
    ledger.advance(20_000);
    ledger.drain("t").await;
    assert_eq!(queued(&ledger), ["e1", "e2"]);
}

#[tokio::test]
async fn an_outage_parks_nothing_and_health_says_that_something_waits() {
    let (interceptor, refuses) = refusing("a1");
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    subscribe(&ledger, "w").await;
    ledger.save(of(&ledger, "a1", "a", 0)).await;
    for _ in 0..8 {
        ledger.drain("t").await;
        ledger.advance(900_000);
    }
    let waiting = all(&ledger).await;
    assert_eq!((waiting[0].state, waiting[0].attempts), (ParkedState::Retrying, 8));
    let state = &ledger.stage.drains.drainer_states(&name("t")).await.unwrap()[0];
    assert!(state.stalled, "{state:?}");
    // What is claimed cannot be given up any more.
    let error = ledger.stage.drains.drop_parked(&name("t"), &waiting[0].id).await.unwrap_err().to_string();
    assert!(error.contains("cannot be dropped"), "{error}");
    refuses.store(false, Ordering::SeqCst);
    let retried = ledger.stage.drains.retry(&name("t"), &waiting[0].id).await.unwrap();
    assert!(retried.started.is_some(), "{retried:?}");
    assert_eq!(queued(&ledger), ["a1"]);
}

#[tokio::test]
async fn a_type_that_is_not_registered_is_one_block_of_its_subscription() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "known", "kind": "task"})).await;
    subscribe(&ledger, "later").await;
    subscribe(&ledger, "known").await;
    for (n, entity) in ["a", "b", "a", "b"].into_iter().enumerate() {
        ledger.save(of(&ledger, &format!("e{n}"), entity, n as u64)).await;
    }
    let drained = ledger.drain("t").await;
    assert_eq!(drained.triggered.len(), 4, "the other subscription does not wait");
    assert_eq!(drained.halted_on_event_id.as_deref(), Some("e0"));
    let waiting = all(&ledger).await;
    assert_eq!(waiting.len(), 4);
    assert!(waiting[1..].iter().all(|start| start.waits_for.as_deref() == Some("e0")), "{waiting:?}");
    let state = &ledger.stage.drains.drainer_states(&name("t")).await.unwrap()[0];
    assert_eq!(state.blocks, 1);
    queued(&ledger);

    ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
    // The next pass starts them, whatever the time of the next attempt.
    assert_eq!(ledger.drain("t").await.triggered.len(), 4);
    let order = queued(&ledger);
    for entity in [["e0", "e2"], ["e1", "e3"]] {
        let places: Vec<_> = entity.iter().map(|id| order.iter().position(|other| other == id)).collect();
        assert!(places[0] < places[1], "{order:?}");
    }
    assert!(all(&ledger).await.is_empty());
    assert_eq!(ledger.events("t", "workflow.dispatch_failed").await.len(), 1);
}

#[tokio::test]
async fn after_five_attempts_a_block_is_parked_with_all_starts_that_fail_for_the_same_reason() {
    let ledger = Ledger::start().await;
    subscribe(&ledger, "never").await;
    for n in 0..3 {
        ledger.save(of(&ledger, &format!("e{n}"), "a", n)).await;
    }
    let mut attempts = 0;
    loop {
        let drained = ledger.drain("t").await;
        attempts += 1;
        if drained.halted_on_event_id.is_none() {
            break;
        }
        assert_eq!(all(&ledger).await[0].attempts, attempts);
        // Before its time nothing is counted, and another process goes on from there.
        another_process(&ledger)
            .await
            .drains
            .drain(&name("t"), &name("workflow_runner"), None)
            .await
            .unwrap();
        assert_eq!(all(&ledger).await[0].attempts, attempts);
        let next = all(&ledger).await[0].next_attempt_at.unwrap();
        ledger.advance(next.get() - ledger.now().get());
    }
    assert_eq!(attempts, 5);
    let parked = all(&ledger).await;
    assert!(parked.iter().all(|start| start.state == ParkedState::Parked), "{parked:?}");
    assert_eq!(parked.iter().map(|start| start.attempts).collect::<Vec<_>>(), [5, 1, 1]);
    for event_type in ["workflow.dispatch_failed", "workflow.dispatch_parked"] {
        assert_eq!(ledger.events("t", event_type).await.len(), 3, "{event_type}");
    }
    let state = &ledger.stage.drains.drainer_states(&name("t")).await.unwrap()[0];
    assert_eq!((state.blocks, state.lag_ms), (0, 0));
}

#[tokio::test]
async fn an_operator_retries_and_drops_waiting_starts() {
    let ledger = Ledger::start().await;
    subscribe(&ledger, "later").await;
    for n in 0..4 {
        ledger.save(of(&ledger, &format!("e{n}"), "a", n)).await;
    }
    ledger.drain("t").await;
    let tenant = name("t");
    let waiting = all(&ledger).await;
    // A follower, then the head: those that are left go on waiting, for the next of them.
    for (dropped, left) in [(2, vec!["e0", "e1", "e3"]), (0, vec!["e1", "e3"])] {
        ledger.stage.drains.drop_parked(&tenant, &waiting[dropped].id).await.unwrap();
        let ids: Vec<_> = all(&ledger).await.iter().map(|start| start.event_id.to_string()).collect();
        assert_eq!(ids, left);
    }
    let waiting = all(&ledger).await;
    assert_eq!(waiting[1].waits_for.as_deref(), Some("e1"));
    let error = ledger.stage.drains.retry(&tenant, &waiting[1].id).await.unwrap_err().to_string();
    assert!(error.contains("it failed again: waits for e1: the workflow type `later`"), "{error}");
    assert_eq!(all(&ledger).await[0].attempts, 2, "an attempt that is asked for counts");
    ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
    let retried = ledger.stage.drains.retry(&tenant, &waiting[1].id).await.unwrap();
    assert!(retried.started.is_some() && !retried.already_started && !retried.asked);
    assert_eq!(queued(&ledger), ["e1", "e3"]);
    ledger.advance(10_000);
    ledger.drain("t").await;
    assert_eq!(ledger.starts("t").await, BTreeMap::from([("e1".into(), 1), ("e3".into(), 1)]));
}

#[tokio::test]
async fn waiting_starts_are_closed_when_their_subscription_no_longer_matches() {
    for change in ["removed", "disabled", "filtered"] {
        let ledger = Ledger::start().await;
        let tenant = name("t");
        let id = subscribe(&ledger, "later").await;
        for n in 0..3 {
            ledger.save(of(&ledger, &format!("e{n}"), "a", n)).await;
        }
        ledger.drain("t").await;
        assert_eq!(all(&ledger).await.len(), 3);
        match change {
            "removed" => drop(ledger.stage.registry().unsubscribe(&tenant, &id).await.unwrap()),
            _ => {
                let to = match change {
                    "disabled" => json!({"enabled": false}),
                    _ => json!({"filterExpr": "event.properties.nothing > 1"}),
                };
                let to: SubscriptionChange = serde_json::from_value(to).unwrap();
                drop(ledger.stage.registry().change_subscription(&tenant, &id, to).await.unwrap());
            }
        }
        let drained = ledger.drain("t").await;
        assert_eq!(drained.halted_on_event_id, None, "{change}");
        assert!(all(&ledger).await.is_empty(), "{change}");
        assert_eq!(ledger.stage.drains.drainer_states(&tenant).await.unwrap()[0].blocks, 0);
    }
}

#[tokio::test]
async fn a_rewind_closes_the_starts_that_wait_from_its_point_on_and_missing_only_keeps_them() {
    let ledger = Ledger::start().await;
    let tenant = name("t");
    subscribe(&ledger, "later").await;
    for n in 0..4 {
        ledger.save(of(&ledger, &format!("e{n}"), "a", n)).await;
    }
    ledger.advance(20_000);
    ledger.drain("t").await;
    let epochs = async || all(&ledger).await.iter().map(|start| start.epoch).collect::<Vec<_>>();
    assert_eq!(epochs().await, [0, 0, 0, 0]);
    let plan = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", "e0", RewindScope::MissingOnly, CountEvents::No)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&tenant, &plan).await.unwrap();
    ledger.drain("t").await;
    assert_eq!(epochs().await, [0, 0, 0, 0], "they wait already");
    let plan = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", "e2", RewindScope::Everything, CountEvents::No)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&tenant, &plan).await.unwrap();
    ledger.drain("t").await;
    assert_eq!(epochs().await, [0, 0, 1, 1]);
    ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
    ledger.drain("t").await;
    assert_eq!(queued(&ledger), ["e0", "e1", "e2", "e3"]);
    assert!(all(&ledger).await.is_empty());
}

#[tokio::test]
async fn a_late_arrival_joins_the_end_of_its_block() {
    let ledger = Ledger::start().await;
    subscribe(&ledger, "later").await;
    for n in 0..2 {
        ledger.save(of(&ledger, &format!("e{n}"), "a", n)).await;
    }
    ledger.advance(60_000);
    ledger.drain("t").await;
    let mut late = of(&ledger, "late", "a", 0);
    late.timestamp = ledger.now().minus(3_600_000);
    ledger.save(late).await;
    ledger.advance(10_000);
    ledger.drain("t").await;
    assert_eq!(all(&ledger).await.len(), 3);
    ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
    ledger.drain("t").await;
    assert_eq!(queued(&ledger), ["e0", "e1", "late"]);
}

/// A drain that a version before 0.1.0 halted on an event: its row says how often that was tried.
#[tokio::test]
async fn starts_that_the_version_before_was_retrying_keep_their_count_of_attempts() {
    for (attempts, parks) in [(3, false), (4, true)] {
        let ledger = Ledger::start().await;
        let tenant = name("t");
        let id = subscribe(&ledger, "later").await;
        let first = event("t", "e0", ledger.now());
        let sk = first.keys().sk().to_owned();
        ledger.save(first).await;
        ledger.save(of(&ledger, "e1", "10472", 1)).await;
        // What that version would have written.
        ledger.drain("t").await;
        let made = all(&ledger).await;
        for start in &made {
            let place = start.place_in_block.unwrap();
            let name = start.block.as_ref().unwrap();
            let key = keys::block_member("t", "workflow_runner", name, place);
            ledger.store.control().delete(&key).send().await.unwrap();
            let key = keys::block("t", "workflow_runner", name);
            ledger.store.control().delete(&key).send().await.unwrap();
            ledger.store.control().delete(&keys::parked_start("t", &start.id)).send().await.unwrap();
        }
        let drain = keys::drain("t", "workflow_runner");
        let update = ledger.store.control().update(&drain).update_expression("REMOVE blocks");
        update.send().await.unwrap();
        let old: Value = json!({
            "id": made[0].id, "state": "retrying", "because": "failed", "reason": "not registered",
            "attempts": attempts, "drainerId": "workflow_runner", "epoch": 0, "subscriptionId": id,
            "workflowType": "later", "eventId": "e0", "eventType": "price.changed", "entityType": "ITEM",
            "entityId": "10472", "eventPlace": sk, "firstFailedAt": ledger.now(), "nextAttemptAt": ledger.now(),
        });
        ledger
            .store
            .control()
            .put(&keys::parked_start("t", &made[0].id), &old)
            .unwrap()
            .send()
            .await
            .unwrap();
        // Another process remembers nothing, and both events are ahead of the horizon still.
        let other = another_process(&ledger).await;
        other.drains.drain(&tenant, &name("workflow_runner"), None).await.unwrap();
        let now = all(&ledger).await;
        assert_eq!((now.len(), now[0].attempts), (2, attempts + 1), "{now:?}");
        let expected = if parks { ParkedState::Parked } else { ParkedState::Retrying };
        assert_eq!(now[0].state, expected, "{now:?}");
        assert_eq!(now[1].state, ParkedState::Retrying);
        ledger.advance(6_000);
        ledger.drain("t").await;
        ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
        ledger.drain("t").await;
        assert_eq!(queued(&ledger).len(), if parks { 1 } else { 2 });
    }
}
