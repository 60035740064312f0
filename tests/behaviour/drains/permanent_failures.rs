//! Events that fail in the same way each time are parked at once; those whose subscription says halt stop the drain.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_drains::{
    CountEvents, DrainState, ParkedBecause, ParkedFilter, RewindScope, SubscriptionChange,
};
use ledgerline_embedded::{Moment, Verdict};
use ledgerline_event::keys::{moment, place};
use ledgerline_store::{ParkedStart, ParkedStartRecords, ParkedState, ParkedWrite, keys};
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, another_process, event, name};

#[tokio::test]
async fn three_events_that_lack_a_mapped_field_are_parked_at_once_and_hold_nothing_up() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "reprice", "kind": "task"})).await;
    let mapped = json!({
        "eventTypeGlob": "price.*", "workflowType": "reprice", "inputMapper": {"price": "$.payload.new"},
    });
    let subscription = ledger.subscribe("t", mapped).await;
    for n in 0..3 {
        let mut poison = event("t", &format!("bad{n}"), ledger.now().plus(n));
        poison.properties.remove("new");
        ledger.save(poison).await;
    }
    // One of the same entity, and one of another.
    ledger.save(event("t", "same", ledger.now().plus(3))).await;
    let mut unrelated = event("t", "unrelated", ledger.now().plus(4));
    unrelated.entity_id = name("another");
    ledger.save(unrelated).await;

    let drained = ledger.drain("t").await;
    assert_eq!(drained.halted_on_event_id, None);
    assert_eq!(drained.triggered.len(), 2, "nothing waited: the clock has not moved");
    let tenant = name("t");
    let parked = ledger.stage.parked().parked(&tenant, ParkedFilter::Parked, 10, None).await.unwrap().items;
    assert_eq!(parked.len(), 3);
    assert!(parked.iter().all(|start| start.attempts == 1 && start.because == ParkedBecause::Failed));
    assert!(parked.iter().all(|start| start.reason.contains("price")), "{parked:?}");
    // Told of once, however often the events are met.
    another_process(&ledger).await.drains.drain(&tenant, &name("workflow_runner"), None).await.unwrap();
    for event_type in ["workflow.dispatch_failed", "workflow.dispatch_parked"] {
        assert_eq!(ledger.events("t", event_type).await.len(), 3, "{event_type}");
    }
    ledger.advance(10_000);
    ledger.drain("t").await;
    assert_eq!(ledger.starts("t").await, BTreeMap::from([("same".into(), 1), ("unrelated".into(), 1)]));

    // An operator mends the cause and starts one after all, wherever the cursor is.
    let id = &parked[0].id;
    let error = ledger.stage.drains.retry(&tenant, id).await.unwrap_err().to_string();
    assert!(error.contains("it failed again"), "{error}");
    let change: SubscriptionChange = serde_json::from_value(json!({"inputMapper": null})).unwrap();
    ledger.stage.registry().change_subscription(&tenant, &subscription, change).await.unwrap();
    let cursor = ledger.stage.drains.drainer_states(&tenant).await.unwrap()[0].cursor.clone();
    let retried = ledger.stage.drains.retry(&tenant, id).await.unwrap();
    assert!(retried.started.is_some() && !retried.already_started);
    assert!(ledger.stage.drains.retry(&tenant, id).await.unwrap_err().to_string().contains("there is no"));
    assert_eq!(ledger.stage.drains.drainer_states(&tenant).await.unwrap()[0].cursor, cursor);
    assert_eq!(ledger.starts("t").await[parked[0].event_id.as_str()], 1);
}

#[tokio::test]
async fn a_subscription_that_halts_never_parks_and_the_drain_continues_as_soon_as_the_cause_is_mended() {
    let ledger = Ledger::start().await;
    ledger
        .subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "later", "onFailure": "halt"}))
        .await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    for _ in 0..8 {
        let drained = ledger.drain("t").await;
        assert_eq!(drained.halted_on_event_id.unwrap().as_str(), "e1");
        ledger.advance(1_000_000);
    }
    assert!(
        ledger
            .stage
            .parked()
            .parked(&name("t"), ParkedFilter::Parked, 10, None)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let retrying = ledger.stage.parked().parked(&name("t"), ParkedFilter::All, 10, None).await.unwrap().items;
    assert_eq!(retrying[0].attempts, 8);
    assert!(retrying[0].reason.contains("`later` is not registered"));
    ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
    assert_eq!(ledger.events("t", "workflow.dispatch_failed").await.len(), 1);
}

#[tokio::test]
async fn a_halted_drain_continues_when_no_subscription_matches_the_event_any_more() {
    for change in ["removed", "disabled", "filtered"] {
        let ledger = Ledger::start().await;
        let tenant = name("t");
        let halting = json!({"eventTypeGlob": "price.*", "workflowType": "later", "onFailure": "halt"});
        let id = ledger.subscribe("t", halting).await;
        ledger.save(event("t", "e1", ledger.now())).await;
        ledger.advance(10_000);
        assert!(ledger.drain("t").await.halted_on_event_id.is_some());
        assert!(ledger.stage.drains.drainer_states(&tenant).await.unwrap()[0].halted);
        assert_eq!(
            ledger.stage.parked().parked(&tenant, ParkedFilter::All, 10, None).await.unwrap().items.len(),
            1
        );
        let change_to = match change {
            "disabled" => json!({"enabled": false}),
            _ => json!({"filterExpr": "event.properties.new > 100.0"}),
        };
        match change {
            "removed" => drop(ledger.stage.registry().unsubscribe(&tenant, &id).await.unwrap()),
            _ => {
                let change_to: SubscriptionChange = serde_json::from_value(change_to).unwrap();
                drop(ledger.stage.registry().change_subscription(&tenant, &id, change_to).await.unwrap());
            }
        }
        assert_eq!(ledger.drain("t").await.halted_on_event_id, None, "{change}");
        let left = ledger.stage.parked().parked(&tenant, ParkedFilter::All, 10, None).await.unwrap().items;
        assert!(left.is_empty(), "{change}: {left:?}");
        assert!(!ledger.stage.drains.drainer_states(&tenant).await.unwrap()[0].halted);
    }
}

/// The cursor passes the event while the subscription is disabled, in a visit that then fails: the subscription is enabled again
/// before the next visit.
#[tokio::test]
async fn a_subscription_that_was_disabled_for_a_moment_leaves_no_halted_start_that_nothing_retries() {
    let ledger = Ledger::start().await;
    let tenant = name("t");
    let halting = json!({"eventTypeGlob": "price.*", "workflowType": "later", "onFailure": "halt"});
    ledger.subscribe("t", halting).await;
    let first = event("t", "e1", ledger.now());
    ledger.save(first.clone()).await;
    ledger.advance(10_000);
    assert!(ledger.drain("t").await.halted_on_event_id.is_some());
    ledger.drain("t").await;
    let all =
        async || ledger.stage.parked().parked(&tenant, ParkedFilter::All, 10, None).await.unwrap().items;
    assert_eq!(all().await.len(), 1, "the drain stands before the event");
    let passed = ledger.store.control().update(&keys::drain("t", "workflow_runner"));
    let passed = passed
        .update_expression("SET #cursor = :place REMOVE halted")
        .expression_attribute_names("#cursor", "cursor");
    let place = AttributeValue::S(place(first.timestamp, "e1"));
    passed.expression_attribute_values(":place", place).send().await.unwrap();
    ledger.drain("t").await;
    assert!(all().await.is_empty());
    assert!(!ledger.stage.drains.drainer_states(&tenant).await.unwrap()[0].halted);
}

#[tokio::test]
async fn a_halt_leaves_no_record_whatever_happens_before_the_event_starts() {
    for what in
        ["no time", "trouble", "a rewind", "a version before 0.1.0", "a version before 0.1.0, beside another"]
    {
        let ledger = Ledger::start().await;
        let tenant = name("t");
        let halting = json!({"eventTypeGlob": "price.*", "workflowType": "later", "onFailure": "halt"});
        ledger.subscribe("t", halting).await;
        ledger.save(event("t", "e1", ledger.now())).await;
        // Ahead of the horizon the cursor waits; a rewind needs one that has moved.
        let mut other = event("t", "e0", ledger.now().minus(1_000));
        other.event_type = name("order.made");
        ledger.save(other).await;
        ledger.advance(10_000);
        assert!(ledger.drain("t").await.halted_on_event_id.is_some());
        let drainer = name("workflow_runner");
        match what {
            "no time" => {
                let now = Some(tokio::time::Instant::now());
                drop(ledger.stage.drains.drain(&tenant, &drainer, now).await.unwrap());
            }
            "trouble" => {
                // What the record of a pass says that ended before it came to the event.
                let update = ledger.store.control().update(&keys::drain("t", "workflow_runner"));
                let update = update.update_expression("REMOVE haltedOnEventId, halts");
                update.send().await.unwrap();
            }
            // It names the event by its id and knows no places; those of the new version may be there already.
            "a version before 0.1.0" | "a version before 0.1.0, beside another" => {
                let update = ledger.store.control().update(&keys::drain("t", "workflow_runner"));
                let update = match what {
                    "a version before 0.1.0" => update.update_expression("REMOVE stoodBefore"),
                    _ => update.update_expression("SET stoodBefore = :other").expression_attribute_values(
                        ":other",
                        AttributeValue::Ss(vec![moment(ledger.now())]),
                    ),
                };
                update.send().await.unwrap();
            }
            _ => {
                let plan = ledger
                    .stage
                    .drains
                    .plan_rewind(&tenant, &drainer, "e0", RewindScope::Everything, CountEvents::No)
                    .await
                    .unwrap();
                ledger.stage.drains.rewind(&tenant, &plan).await.unwrap();
            }
        }
        ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
        assert_eq!(ledger.drain("t").await.triggered.len(), 1, "{what}");
        let left = ledger.stage.parked().parked(&tenant, ParkedFilter::All, 10, None).await.unwrap().items;
        assert!(left.is_empty(), "{what}: {left:?}");
        let record: DrainState =
            ledger.store.control().get(&keys::drain("t", "workflow_runner")).await.unwrap().unwrap();
        assert!(record.halted_at.is_empty(), "{what}: {record:?}");
    }
}

#[tokio::test]
async fn an_event_whose_payload_is_missing_is_not_started_with_less() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "note", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "note"})).await;
    let bucket = &ledger.store.names.payload_bucket;
    for (id, body) in [("gone", None), ("broken", Some("no JSON"))] {
        let mut part = event("t", id, ledger.now());
        let key = format!("events/{}/{id}-payload.json", part.entity_id);
        if let Some(body) = body {
            let put = ledger
                .store
                .clients
                .s3
                .put_object()
                .bucket(bucket)
                .key(&key)
                .body(body.as_bytes().to_vec().into());
            put.send().await.unwrap();
        }
        part.properties = json!({"_s3Overflow": {"bucket": bucket, "key": key}}).as_object().unwrap().clone();
        ledger.save(part).await;
        let drained = ledger.drain("t").await;
        assert!(drained.triggered.is_empty());
        assert!(drained.halted_on_event_id.is_none());
        let parked =
            ledger.stage.parked().parked(&name("t"), ParkedFilter::Parked, 10, None).await.unwrap().items;
        assert!(!parked.is_empty());
        assert!(
            parked.iter().all(|parked| parked.reason.contains("overflow") || parked.reason.contains("JSON")),
            "{parked:?}"
        );
    }
}

#[tokio::test]
async fn a_dropped_start_of_a_keyed_type_stays_dropped() {
    let ledger = Ledger::start().await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "keyed"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    assert!(ledger.drain("t").await.halted_on_event_id.is_some());
    let retrying = ledger.stage.parked().parked(&name("t"), ParkedFilter::All, 10, None).await.unwrap().items;
    ledger.stage.drains.drop_parked(&name("t"), &retrying[0].id).await.unwrap();
    assert!(
        ledger.stage.parked().parked(&name("t"), ParkedFilter::All, 10, None).await.unwrap().items.is_empty()
    );
    ledger.register("t", json!({"workflowType": "keyed", "kind": "task", "idempotencyKey": "$.id"})).await;
    ledger.advance(60_000);
    assert!(ledger.drain("t").await.triggered.is_empty());
    ledger.save(event("t", "e2", ledger.now())).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
}

/// A process that has lost its lease says of a start that it is retried, in the moment in which the holder parks it. The
/// holder's cursor passes the event: nothing would retry the start.
#[tokio::test]
async fn a_start_that_another_process_says_is_retried_is_parked_all_the_same() {
    let dynamo: Arc<OnceLock<aws_sdk_dynamodb::Client>> = Arc::default();
    let (client, written) = (dynamo.clone(), AtomicBool::new(false));
    let ledger = Ledger::with(Some(Arc::new(move |call, moment| {
        let put: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        let parks = call.operation == "PutItem"
            && moment == Moment::Before
            && put["Item"]["PK"]["S"] == "PARKED#t"
            && put["Item"]["state"]["S"] == "parked"
            && !written.swap(true, Ordering::SeqCst);
        let client = client.clone();
        Box::pin(async move {
            if parks {
                let value = |value: &Value| match (value["S"].as_str(), value["N"].as_str()) {
                    (Some(text), _) => AttributeValue::S(text.into()),
                    (_, Some(number)) => AttributeValue::N(number.into()),
                    _ => panic!("{value}"),
                };
                let row = put["Item"].as_object().unwrap().iter();
                let mut row: HashMap<String, AttributeValue> =
                    row.map(|(name, there)| (name.clone(), value(there))).collect();
                row.insert("state".into(), AttributeValue::S("retrying".into()));
                let table = put["TableName"].as_str().unwrap();
                client.get().unwrap().put_item().table_name(table).set_item(Some(row)).send().await.unwrap();
            }
            Verdict::Proceed
        })
    })))
    .await;
    assert!(dynamo.set(ledger.store.clients.dynamo.clone()).is_ok());
    ledger.register("t", json!({"workflowType": "reprice", "kind": "task"})).await;
    let mapped = json!({
        "eventTypeGlob": "price.*", "workflowType": "reprice", "inputMapper": {"price": "$.payload.new"},
    });
    ledger.subscribe("t", mapped).await;
    let mut poison = event("t", "bad", ledger.now());
    poison.properties.remove("new");
    ledger.save(poison).await;
    ledger.advance(10_000);
    ledger.drain("t").await;
    let parked = ledger.stage.parked().parked(&name("t"), ParkedFilter::All, 10, None).await.unwrap().items;
    let states: Vec<_> = parked.iter().map(|start| (start.state, start.attempts)).collect();
    assert_eq!(states, [(ParkedState::Parked, 2)]);
    assert_eq!(ledger.events("t", "workflow.dispatch_parked").await.len(), 1);
}

/// A start at which the drain was halted may be parked for another reason later; one that is parked or waits in a block stays.
#[tokio::test]
async fn a_parked_start_takes_the_row_of_a_halted_one_alone() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "reprice", "kind": "task"})).await;
    let mapped = json!({
        "eventTypeGlob": "price.*", "workflowType": "reprice", "inputMapper": {"price": "$.payload.new"},
    });
    ledger.subscribe("t", mapped).await;
    let mut poison = event("t", "bad", ledger.now());
    poison.properties.remove("new");
    ledger.save(poison).await;
    ledger.advance(10_000);
    ledger.drain("t").await;
    let tenant = name("t");
    let parked = ledger.stage.parked().parked(&tenant, ParkedFilter::All, 10, None).await.unwrap().items;
    let parked = ParkedStart { because: ParkedBecause::FanoutCap, ..parked[0].clone() };
    let records = ParkedStartRecords::new(ledger.store.control().clone());
    assert_eq!(records.put_parked(&tenant, &parked).await.unwrap(), ParkedWrite::Changed);
    for (block, answer) in [(Some("b"), ParkedWrite::Changed), (None, ParkedWrite::Done)] {
        let block = block.map(str::to_owned);
        let retrying = ParkedStart { state: ParkedState::Retrying, block, ..parked.clone() };
        let key = keys::parked_start(&tenant, &parked.id);
        ledger.store.control().put(&key, &retrying).unwrap().send().await.unwrap();
        assert_eq!(records.put_parked(&tenant, &parked).await.unwrap(), answer);
    }
}
