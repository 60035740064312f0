//! Events that cannot be started: the drain stops before them, retries, parks, goes on.

use std::collections::BTreeMap;

use ledgerline_dispatch::{ParkedBecause, SubscriptionChange};
use serde_json::json;

use crate::{
    ledger::Ledger,
    world::{event, name},
};

#[tokio::test]
async fn a_poison_event_stops_the_drain_then_is_parked_and_can_be_started_later() {
    let ledger = Ledger::start().await;
    for tenant in ["poisoned", "other"] {
        ledger.register(tenant, json!({"workflowType": "reprice", "kind": "task"})).await;
        ledger
            .subscribe(
                tenant,
                json!({
                    "eventTypeGlob": "price.*", "workflowType": "reprice",
                    "inputMapper": {"price": "$.payload.new"},
                }),
            )
            .await;
    }
    let mut poison = event("poisoned", "e2", ledger.now().plus(1));
    poison.properties.remove("new");
    ledger.save(event("poisoned", "e1", ledger.now())).await;
    ledger.save(poison).await;
    // Of another entity, and still not before the one that cannot be started.
    let mut later = event("poisoned", "e3", ledger.now().plus(2));
    later.entity_id = name("another");
    ledger.save(later).await;
    ledger.advance(10_000);

    let mut attempts = 0;
    loop {
        let drained = ledger.drain("poisoned").await;
        attempts += 1;
        let Some(halted) = drained.halted_on_event_id else { break };
        assert_eq!(halted.as_str(), "e2");
        assert!(attempts < 5, "parked after five");
        assert_eq!(ledger.starts("poisoned").await, BTreeMap::from([("e1".into(), 1)]));
        let state = &ledger.dispatch.drainer_states(&name("poisoned")).await.unwrap()[0];
        assert!(state.last_error.as_ref().unwrap().contains("price"), "{state:?}");
        // Before its time nothing is tried.
        let early = ledger.drain("poisoned").await;
        assert_eq!(early.halted_on_event_id.unwrap().as_str(), "e2");
        // The other tenant goes on all the while.
        ledger.save(event("other", &format!("o{attempts}"), ledger.now())).await;
        assert_eq!(ledger.drain("other").await.triggered.len(), 1);
        let wait = drained.again_at.unwrap().get() - ledger.now().get();
        ledger.advance(wait);
    }
    assert_eq!(attempts, 5);
    assert_eq!(ledger.starts("poisoned").await, BTreeMap::from([("e1".into(), 1), ("e3".into(), 1)]));
    assert_eq!(ledger.events("poisoned", "workflow.dispatch_failed").await.len(), 1);
    let told = ledger.events("poisoned", "workflow.dispatch_parked").await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].properties["attempts"], 5);

    let tenant = name("poisoned");
    let parked = ledger.dispatch.parked(&tenant, false, 10, None).await.unwrap().items;
    assert_eq!(parked.len(), 1);
    assert_eq!((parked[0].attempts, parked[0].because), (5, ParkedBecause::Failed));
    let id = &parked[0].id;
    let error = ledger.dispatch.retry(&tenant, id).await.unwrap_err().to_string();
    assert!(error.contains("it failed again"), "{error}");
    let change: SubscriptionChange = serde_json::from_value(json!({"inputMapper": null})).unwrap();
    ledger.dispatch.change_subscription(&tenant, &parked[0].subscription_id, change).await.unwrap();
    let cursor = ledger.dispatch.drainer_states(&tenant).await.unwrap()[0].cursor.clone();
    let retried = ledger.dispatch.retry(&tenant, id).await.unwrap();
    assert!(retried.started.is_some() && !retried.already_started);
    assert!(ledger.dispatch.retry(&tenant, id).await.unwrap_err().to_string().contains("there is no"));
    assert_eq!(ledger.dispatch.drainer_states(&tenant).await.unwrap()[0].cursor, cursor);
    let all = BTreeMap::from([("e1".into(), 1), ("e2".into(), 1), ("e3".into(), 1)]);
    ledger.advance(10_000);
    ledger.drain("poisoned").await;
    assert_eq!(ledger.starts("poisoned").await, all);
}

#[tokio::test]
async fn halt_never_parks_and_goes_on_as_soon_as_the_cause_is_mended() {
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
    assert!(ledger.dispatch.parked(&name("t"), false, 10, None).await.unwrap().items.is_empty());
    let retrying = ledger.dispatch.parked(&name("t"), true, 10, None).await.unwrap().items;
    assert_eq!(retrying[0].attempts, 8);
    assert!(retrying[0].reason.contains("`later` is not registered"));
    ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
    assert_eq!(ledger.events("t", "workflow.dispatch_failed").await.len(), 1);
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
        assert!(drained.halted_on_event_id.is_some());
        let parked = ledger.dispatch.parked(&name("t"), true, 10, None).await.unwrap().items;
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
    let retrying = ledger.dispatch.parked(&name("t"), true, 10, None).await.unwrap().items;
    ledger.dispatch.drop_parked(&name("t"), &retrying[0].id).await.unwrap();
    ledger.register("t", json!({"workflowType": "keyed", "kind": "task", "idempotencyKey": "$.id"})).await;
    ledger.advance(60_000);
    assert!(ledger.drain("t").await.triggered.is_empty());
    ledger.save(event("t", "e2", ledger.now())).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
}
