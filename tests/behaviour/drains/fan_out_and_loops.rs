//! One event and many subscriptions, and events that lead to events: storms end.

use ledgerline_drains::{CountEvents, ParkedBecause, ParkedFilter, RewindScope};
use serde_json::json;

use ledgerline_test_support::{Ledger, another_process, event, name};

#[tokio::test]
async fn of_twelve_subscriptions_eight_start_and_four_are_parked_with_one_notice() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "reprice", "kind": "task"})).await;
    for _ in 0..12 {
        ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "reprice"})).await;
    }
    ledger.save(event("t", "e1", ledger.now())).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 8);
    ledger.advance(10_000);
    let again = another_process(&ledger).await;
    assert!(
        again.drains.drain(&name("t"), &name("workflow_runner"), None).await.unwrap().triggered.is_empty()
    );
    assert_eq!(ledger.starts("t").await["e1"], 8);
    let parked =
        ledger.stage.parked().parked(&name("t"), ParkedFilter::Parked, 50, None).await.unwrap().items;
    assert_eq!(parked.len(), 4);
    assert!(parked.iter().all(|parked| parked.because == ParkedBecause::FanoutCap));
    let capped = ledger.events("t", "workflow.dispatch_capped").await;
    assert_eq!(capped.len(), 1);
    assert_eq!(capped[0].properties["subscriptionIds"].as_array().unwrap().len(), 4);

    // One is started after all, one is dropped; neither comes back.
    assert!(ledger.stage.drains.retry(&name("t"), &parked[0].id).await.unwrap().started.is_some());
    ledger.stage.drains.drop_parked(&name("t"), &parked[1].id).await.unwrap();
    let rewind = ledger
        .stage
        .drains
        .plan_rewind(&name("t"), "workflow_runner", "e1", RewindScope::MissingOnly, CountEvents::Yes)
        .await
        .unwrap();
    assert_eq!(rewind.events, Some(1));
    ledger.stage.drains.rewind(&name("t"), &rewind).await.unwrap();
    ledger.drain("t").await;
    assert_eq!(
        ledger.stage.parked().parked(&name("t"), ParkedFilter::Parked, 50, None).await.unwrap().items.len(),
        2
    );
    assert_eq!(ledger.starts("t").await["e1"], 9);
}

#[tokio::test]
async fn a_workflow_whose_events_match_its_own_subscription_does_not_start_again() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "price.forwarded", "kind": "send"})).await;
    let mine =
        ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "price.forwarded"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    for _ in 0..4 {
        ledger.drain("t").await;
        ledger.deliver().await;
        ledger.advance(3_000);
    }
    let sent = ledger.events("t", "price.forwarded").await;
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].context.via, [mine.as_str()]);
    assert_eq!(sent[0].properties["eventName"], "price.forwarded");

    // An event that eight subscriptions have led to is parked instead of going round for ever.
    let mut far = event("t", "e9", ledger.now());
    far.context.via = (0..8).map(|n| format!("sub_{n}")).collect();
    ledger.save(far).await;
    assert!(ledger.drain("t").await.triggered.is_empty());
    let parked =
        ledger.stage.parked().parked(&name("t"), ParkedFilter::Parked, 50, None).await.unwrap().items;
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0].because, ParkedBecause::Loop);
}

#[tokio::test]
async fn events_about_dispatch_do_not_start_more_and_more_dispatches() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "note", "kind": "task"})).await;
    // More subscriptions than may start on one event, and on the event about that.
    for _ in 0..9 {
        ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "note"})).await;
        ledger.subscribe("t", json!({"eventTypeGlob": "workflow.dispatch_*", "workflowType": "note"})).await;
    }
    ledger.save(event("t", "e1", ledger.now())).await;
    // And one that has come too far already.
    let mut far = event("t", "e2", ledger.now());
    far.context.via = (0..8).map(|n| format!("sub_{n}")).collect();
    far.context.via.push("x".repeat(100_000));
    ledger.save(far).await;
    let mut counts = Vec::new();
    for _ in 0..6 {
        ledger.drain("t").await;
        ledger.deliver().await;
        ledger.advance(7_000);
        let mut told = 0;
        for event_type in ["workflow.dispatch_capped", "workflow.dispatch_parked", "workflow.dispatch_failed"]
        {
            told += ledger.events("t", event_type).await.len();
        }
        counts.push((told, ledger.events("t", "Task Pending").await.len()));
    }
    assert_eq!(counts[3], counts[5], "{counts:?}");
    assert!(ledger.drain("t").await.halted_on_event_id.is_none());
}
