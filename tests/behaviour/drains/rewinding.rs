//! Starting again, or not: rewinds, epochs and idempotency keys.

use ledgerline_drains::{CountEvents, ParkedFilter, RewindScope, SubscriptionChange};
use serde_json::json;

use ledgerline_test_support::{BEGIN, Ledger, at, event, name};

#[tokio::test]
async fn a_rewind_starts_again_what_lies_after_the_point_and_nothing_before() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "reprice", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "reprice"})).await;
    const MINUTE: u64 = 60_000;
    for minute in 0..120 {
        ledger.save(event("t", &format!("e{minute:03}"), at(BEGIN + minute * MINUTE))).await;
    }
    ledger.advance(120 * MINUTE);
    assert_eq!(ledger.drain("t").await.triggered.len(), 120);
    let tenant = name("t");
    let an_hour_ago = ledger.now().minus(60 * MINUTE).to_rfc3339();
    let rewind = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", &an_hour_ago, RewindScope::Everything, CountEvents::Yes)
        .await
        .unwrap();
    assert_eq!((rewind.events, rewind.epoch), (Some(60), 1));
    ledger.stage.drains.rewind(&tenant, &rewind).await.unwrap();
    assert_eq!(ledger.drain("t").await.triggered.len(), 60);
    assert!(ledger.drain("t").await.triggered.is_empty());
    let starts = ledger.starts("t").await;
    for (event, count) in &starts {
        assert_eq!(*count, if event.as_str() >= "e060" { 2 } else { 1 }, "{event}");
    }

    // Only what had no start: an event that came meanwhile, and what a new subscription wants.
    let rewind = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", &an_hour_ago, RewindScope::MissingOnly, CountEvents::Yes)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&tenant, &rewind).await.unwrap();
    assert!(ledger.drain("t").await.triggered.is_empty());
    let second =
        ledger.subscribe("t", json!({"eventTypeGlob": "price.changed", "workflowType": "reprice"})).await;
    let rewind = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", "e100", RewindScope::MissingOnly, CountEvents::Yes)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&tenant, &rewind).await.unwrap();
    let drained = ledger.drain("t").await;
    assert_eq!(drained.triggered.len(), 20);
    assert!(drained.triggered.iter().all(|start| start.subscription_id == second));

    let future = ledger.now().plus(1).to_rfc3339();
    let error = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", &future, RewindScope::Everything, CountEvents::No)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("to: ") && error.to_string().contains("future"), "{error}");
    let error = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", "nobody", RewindScope::Everything, CountEvents::No)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("neither a time"), "{error}");
    let stale = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", "e100", RewindScope::Everything, CountEvents::No)
        .await
        .unwrap();
    ledger.drain("t").await;
    assert!(ledger.stage.drains.rewind(&tenant, &stale).await.unwrap_err().to_string().contains("try again"));
}

#[tokio::test]
async fn a_parked_start_that_a_rewind_has_made_cannot_be_dropped() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "reprice", "kind": "task"})).await;
    let id = ledger
        .subscribe(
            "t",
            json!({"eventTypeGlob": "price.*", "workflowType": "reprice", "inputMapper": {"q": "$.payload.lacking"}}),
        )
        .await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    assert!(ledger.drain("t").await.triggered.is_empty());
    let tenant = name("t");
    let change = SubscriptionChange { input_mapper: Some(None), ..SubscriptionChange::default() };
    ledger.stage.registry().change_subscription(&tenant, &id, change).await.unwrap();
    let rewind = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", "e1", RewindScope::MissingOnly, CountEvents::Yes)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&tenant, &rewind).await.unwrap();
    let [started] = &ledger.drain("t").await.triggered[..] else { panic!("one start") };
    let parked = ledger.stage.parked().parked(&tenant, ParkedFilter::All, 10, None).await.unwrap().items;
    let error = ledger.stage.drains.drop_parked(&tenant, &parked[0].id).await.unwrap_err().to_string();
    assert!(error.contains(&format!("it was started as {}", started.started)), "{error}");
    assert!(
        ledger.stage.parked().parked(&tenant, ParkedFilter::All, 10, None).await.unwrap().items.is_empty()
    );
}

#[tokio::test]
async fn a_declared_idempotency_key_starts_once_and_survives_a_rewind() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "push", "kind": "task", "idempotencyKey": "$.action"})).await;
    ledger
        .subscribe(
            "t",
            json!({
                "eventTypeGlob": "hitl.approved", "workflowType": "push",
                "inputMapper": {"action": "$.payload.proposed_action_id"},
            }),
        )
        .await;
    for (id, action) in [("e1", 8421), ("e2", 8421), ("e3", 8422)] {
        let mut approved = event("t", id, ledger.now());
        approved.event_type = name("hitl.approved");
        approved.properties = json!({"proposed_action_id": action}).as_object().unwrap().clone();
        ledger.save(approved).await;
    }
    ledger.advance(10_000);
    assert_eq!(ledger.drain("t").await.triggered.len(), 2);
    let tenant = name("t");
    let rewind = ledger
        .stage
        .drains
        .plan_rewind(&tenant, "workflow_runner", "e1", RewindScope::Everything, CountEvents::No)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&tenant, &rewind).await.unwrap();
    assert!(ledger.drain("t").await.triggered.is_empty());
    let input = json!({"action": 8421}).as_object().unwrap().clone();
    assert!(ledger.stage.drains.start(&tenant, "push", input, "test", None).await.unwrap().collapsed);
    let input = json!({"action": 1}).as_object().unwrap().clone();
    assert!(!ledger.stage.drains.start(&tenant, "push", input, "test", None).await.unwrap().collapsed);
    assert_eq!(ledger.events("t", "Task Pending").await.len(), 3);
}

#[tokio::test]
async fn a_drainer_that_begins_at_a_time_does_not_start_late_arrivals_from_before_it() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "order.*", "workflowType": "w"})).await;
    ledger.drain("t").await;
    // Behind the horizon of one drainer, so that each has a pointer that every drainer reads.
    let began = ledger.now();
    for (id, before) in [("early", 7_200_000), ("later", 60_000)] {
        ledger.save(event("t", id, began.minus(before))).await;
    }
    ledger.advance(10_000);
    let new = json!({
        "eventTypeGlob": "price.*", "workflowType": "w", "drainerId": "timeline",
        "startAt": began.minus(3_600_000).get(),
    });
    ledger.subscribe("t", new).await;
    let timeline = name("timeline");
    let started = ledger.stage.drains.drain(&name("t"), &timeline, None).await.unwrap().triggered;
    assert_eq!(started.iter().map(|start| start.event_id.as_str()).collect::<Vec<_>>(), ["later"]);
    // A rewind to before the beginning starts what lies there.
    ledger.advance(10_000);
    let plan = ledger
        .stage
        .drains
        .plan_rewind(&name("t"), "timeline", "early", RewindScope::Everything, CountEvents::No)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&name("t"), &plan).await.unwrap();
    let started = ledger.stage.drains.drain(&name("t"), &timeline, None).await.unwrap().triggered;
    assert_eq!(started.len(), 2);
}
