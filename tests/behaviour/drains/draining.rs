//! Draining, step by step: what starts, with what input, at what cost.

use std::collections::BTreeMap;

use ledgerline_drains::{CountEvents, NewSubscription, RewindScope};
use ledgerline_embedded::Service;
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, admitted, another_process, event, name};

#[tokio::test]
async fn an_event_starts_what_subscribes_to_it_with_the_mapped_input() {
    let ledger = Ledger::start().await;
    ledger
        .register(
            "t",
            json!({"workflowType": "reprice", "kind": "task", "name": "reprice-item", "maxAttempts": 3}),
        )
        .await;
    let subscription = ledger
        .subscribe(
            "t",
            json!({
                "eventTypeGlob": "price.*", "workflowType": "reprice",
                "inputMapper": {"item": "$.entity_id", "price": "$.payload.new", "mode": "literal:full"},
                "filterExpr": "event.properties.new > 1.0",
            }),
        )
        .await;
    ledger.save(event("t", "e1", ledger.now())).await;
    let drained = ledger.drain("t").await;
    assert_eq!((drained.processed, drained.triggered.len()), (1, 1));
    assert_eq!(drained.triggered[0].subscription_id, subscription);

    let pending = ledger.events("t", "Task Pending").await;
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].caused_by.as_deref(), Some("event:price.changed:e1"));
    assert_eq!(pending[0].context.via, [subscription.as_str()]);
    let tasks = ledger.tasks();
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0]["requestId"], pending[0].entity_id.as_str());
    assert_eq!(tasks[0]["name"], "reprice-item");
    assert_eq!(tasks[0]["maxAttempts"], 3);
    assert_eq!(tasks[0]["input"], json!({"item": "10472", "price": 1.48, "mode": "full"}));
    assert_eq!(tasks[0]["context"]["via"], json!([subscription]));

    // Still ahead of the horizon: it is met again, and not started again, not even by another process.
    ledger.advance(1_000);
    assert!(ledger.drain("t").await.triggered.is_empty());
    let other = Ledger { stage: another_process(&ledger).await, ..ledger };
    assert!(other.drain("t").await.triggered.is_empty());
    other.advance(10_000);
    let settled = other.drain("t").await;
    assert!(settled.triggered.is_empty());
    let state = other.stage.drains.drainer_states(&name("t")).await.unwrap();
    assert_eq!(state[0].lag_ms, 0);
    assert_eq!(other.starts("t").await, BTreeMap::from([("e1".into(), 1)]));
}

#[tokio::test]
async fn each_kind_of_workflow_records_its_start() {
    let ledger = Ledger::start().await;
    let tenant = name("t");
    ledger
        .register("t", json!({
            "workflowType": "review", "kind": "job",
            "tasks": [
                {"taskId": "fetch", "name": "fetch", "input": {"vendor": "$.vendor_id", "deep": {"x": ["$.n"]}}},
                {"taskId": "judge", "name": "judge", "dependsOn": ["fetch"], "input": {"mode": "literal:$.x"}},
            ],
        }))
        .await;
    ledger.register("t", json!({"workflowType": "approve", "kind": "run", "workflow": "approval"})).await;
    ledger
        .register("t", json!({
            "workflowType": "paid", "kind": "send", "event": "payment.received", "match": {"invoice": "$.invoice"},
        }))
        .await;
    let start = async |kind: &str, input: Value| {
        let input = input.as_object().unwrap().clone();
        ledger
            .stage
            .drains
            .start(&tenant, kind, input, "api:workflows", None)
            .await
            .map(|start| start.started)
    };
    let job = start("review", json!({"vendor_id": "v1", "n": 7})).await.unwrap().unwrap();
    let created = ledger.events("t", "Job Created").await;
    assert_eq!(created[0].entity_id, job);
    assert_eq!(created[0].caused_by.as_deref(), Some("api:workflows"));
    assert_eq!(created[0].properties["tasks"][0]["input"], json!({"vendor": "v1", "deep": {"x": [7]}}));
    assert_eq!(created[0].properties["tasks"][1]["input"], json!({"mode": "$.x"}));
    let error = start("review", json!({})).await.unwrap_err().to_string();
    assert!(error.contains("task `fetch`: `$.n` finds nothing in the input"), "{error}");
    let run = start("approve", json!({"a": 1})).await.unwrap().unwrap();
    // A runner would tell of it at once; without one the sweep does.
    ledger.advance(61_000);
    ledger.stage.run_sweep.sweep_runs().await.unwrap();
    let created = ledger.events("t", "run_created").await;
    assert_eq!(created[0].entity_id, run);
    assert_eq!(created[0].workflow_run_id.as_deref(), Some(run.as_str()));
    assert_eq!(created[0].properties["workflowName"], "approval");
    start("paid", json!({"invoice": "inv-1", "amount": 3})).await.unwrap().unwrap();
    let sent = ledger.events("t", "payment.received").await;
    assert_eq!(sent[0].properties["matchCriteria"], json!({"invoice": "inv-1"}));
    assert_eq!(sent[0].properties["data"]["amount"], 3);
    assert!(start("nothing", json!({})).await.unwrap_err().to_string().contains("there is no `nothing`"));
}

#[tokio::test]
async fn a_page_of_events_that_match_nothing_costs_three_requests_and_an_idle_tenant_none() {
    let ledger = Ledger::start().await;
    ledger.subscribe("t", json!({"eventTypeGlob": "order.*", "workflowType": "x"})).await;
    for chunk in 0..20_u64 {
        let batch: Vec<_> = (0..100_u64)
            .map(|n| admitted(event("t", &format!("e{chunk:02}-{n:03}"), ledger.now().plus(chunk * 100 + n))))
            .collect();
        ledger.store.saver().save(&batch, ledger.now()).await;
    }
    ledger.advance(60_000);
    ledger.drain("t").await;
    let rewind = ledger
        .stage
        .drains
        .plan_rewind(&name("t"), "workflow_runner", "e00-000", RewindScope::MissingOnly, CountEvents::No)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&name("t"), &rewind).await.unwrap();
    ledger.store.embedded.reset_requests();
    let drained = ledger.drain("t").await;
    let requests: u64 = ledger.store.embedded.requests().values().sum();
    println!("{} events, {requests} requests: {:?}", drained.processed, ledger.store.embedded.requests());
    assert_eq!(drained.processed, 2_000);
    // Four pages: a read and a write each; once per visit the lease, the late arrivals, and the empty read at the end.
    assert!(requests <= 3 * 4, "{requests}");

    // Marks are taken away by the sweep; after that no sweep visits an idle tenant.
    ledger.stage.sweep.sweep(None).await.unwrap();
    ledger.store.embedded.reset_requests();
    let swept = ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(swept.visited, 0);
    let touched = ledger.store.embedded.requests();
    assert!(touched.keys().all(|(service, _)| *service == Service::DynamoDb));
    println!("an idle sweep: {touched:?}");
}

#[tokio::test]
async fn a_second_drainer_has_a_cursor_of_its_own() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "index", "kind": "task"})).await;
    ledger
        .subscribe("t", json!({"eventTypeGlob": "*", "workflowType": "index", "drainerId": "timeline"}))
        .await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    assert_eq!(ledger.drain("t").await.processed, 0);
    // Its first round comes with the first sweep, and then not before an hour is over.
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await.len(), 1);
    ledger.save(event("t", "e2", ledger.now())).await;
    ledger.advance(10_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await.len(), 1);
    ledger.advance(3_600_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await.len(), 2);
    let wrong: NewSubscription =
        serde_json::from_value(json!({"eventTypeGlob": "*", "workflowType": "x", "drainerId": "nobody"}))
            .unwrap();
    let error = ledger.stage.registry().subscribe(&name("t"), wrong).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "drainerId: there is no drainer `nobody`; this stage has `jobs`, `workflow_runner`, `timeline`"
    );
}

#[tokio::test]
async fn characters_that_a_queue_does_not_take_travel_all_the_same() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "note", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "note"})).await;
    let mut odd = event("t", "e1", ledger.now());
    odd.properties.insert("text".into(), json!("a\u{ffff}b\u{fffe}\u{1}\u{1f980}"));
    ledger.save(odd).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
    assert_eq!(ledger.tasks()[0]["input"]["text"], "a\u{ffff}b\u{fffe}\u{1}\u{1f980}");
}
