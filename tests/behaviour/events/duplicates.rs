use futures::future::join_all;
use serde_json::json;

use ledgerline_store::FailureFilter;
use ledgerline_test_support::{World, at, detail, event, name};

const TIME: u64 = 1_767_453_739_640;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_delivered_five_times_is_one_row_and_the_first_receipt_stays() {
    let world = World::start().await;
    let sent = detail(&event("t", "e-1", at(TIME)));
    world.put_events(std::slice::from_ref(&sent)).await;
    let first = world.rows_at_least(1).await.remove(0);
    for _ in 0..4 {
        world.put_events(std::slice::from_ref(&sent)).await;
    }
    world.quiet().await;
    assert_eq!(world.rows().await, [first]);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_concurrent_events_with_one_idempotency_key_are_one_row() {
    let world = World::start().await;
    let details: Vec<_> = (0..50)
        .map(|n| {
            let mut event = event("local", &format!("e-{n}"), at(TIME + n));
            event.idempotency_key = Some("order:1#2".into());
            event.properties = json!({"order": 1}).as_object().unwrap().clone();
            detail(&event)
        })
        .collect();
    join_all(details.iter().map(|detail| world.put_events(std::slice::from_ref(detail)))).await;
    world.quiet().await;
    let rows = world.rows().await;
    assert_eq!(rows.len(), 1);
    let first = rows[0]["eventId"].as_s().unwrap();

    let body = json!({"eventType": "x", "entityType": "T", "entityId": "1", "idempotencyKey": "order:1#2"});
    let (status, answer) = world.post("/api/events/record", body.to_string()).await;
    assert_eq!((status, &answer["eventId"], &answer["collapsed"]), (202, &json!(first), &json!(true)));
    world.quiet().await;
    assert_eq!(world.rows().await.len(), 1);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_of_two_tenants_is_two_rows() {
    let world = World::start().await;
    let of = |tenant| {
        let mut event = event(tenant, "e-1", at(TIME));
        event.idempotency_key = Some("k".into());
        detail(&event)
    };
    world.put_events(&[of("a"), of("b")]).await;
    assert_eq!(world.rows_at_least(2).await.len(), 2);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_taken_by_other_content_is_not_dropped_silently() {
    let world = World::start().await;
    let first = event("local", "e-1", at(TIME));
    let mut other = first.clone();
    other.properties = json!({"new": 2}).as_object().unwrap().clone();
    world.put_events(&[detail(&first)]).await;
    world.rows_at_least(1).await;
    world.put_events(&[detail(&other)]).await;
    world.quiet().await;
    assert_eq!(world.rows().await.len(), 1);
    let failures =
        world.failed_deliveries().list(&name("local"), FailureFilter::Failed, 10, None).await.unwrap().items;
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].error_code, "ID_TAKEN");
    assert!(failures[0].reason.starts_with("eventId: e-1 is taken"), "{}", failures[0].reason);
    world.local.stop().await;
}
