use std::sync::Arc;

use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use ledgerline_embedded::{Service, Verdict};
use ledgerline_event::keys::Scope;
use ledgerline_ledger::EventQuery;
use ledgerline_store::FailureFilter;
use serde_json::{Value, json};

use ledgerline_test_support::{Store, World, at, detail, event, name, slack::Slack, until};

const TIME: u64 = 1_767_453_739_640;

fn forged(id: &str) -> Value {
    let mut forged = detail(&event("local", id, at(TIME)));
    forged["PK"] = json!("TENANT#victim");
    forged
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_event_is_kept_as_a_failed_delivery_alerted_and_never_saved() {
    let (slack, url) = Slack::start(&[]).await;
    let world = World::with(|options| options.slack_webhook = Some(url)).await;
    world.put_events(&[forged("e-1")]).await;
    let messages = slack.told(1).await;
    world.quiet().await;
    assert_eq!(messages.len(), 1);
    for line in [
        "*Event type:* price.changed",
        "*Detail type:* log-event",
        "*Entity:* ITEM#10472",
        "*Reason:* PK: `TENANT#victim` does not match",
    ] {
        assert!(messages[0].contains(line), "{line} in {}", messages[0]);
    }
    assert!(world.rows().await.is_empty());

    let (_, answer) = world.get("/api/failed-deliveries").await;
    let failure = &answer["items"][0];
    assert_eq!(failure["errorCode"], "KEY_MISMATCH");
    assert_eq!(failure["state"], "failed");
    assert!(failure["alertedAt"].is_u64());
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_records_reach_the_dead_letter_queue() {
    let (slack, url) = Slack::start(&[]).await;
    let world = World::with(|options| options.slack_webhook = Some(url)).await;
    let sqs = &world.clients().sqs;
    let queue = sqs
        .get_queue_url()
        .queue_name(&world.local.names.ingest_queue)
        .send()
        .await
        .unwrap()
        .queue_url
        .unwrap();
    let bodies = [
        "not json",
        "{}",
        r#"{"detail-type":"other","detail":{}}"#,
        r#"{"detail-type":"log-event","detail":[]}"#,
    ];
    for body in bodies {
        sqs.send_message().queue_url(&queue).message_body(body).send().await.unwrap();
    }
    slack.told(bodies.len()).await;
    world.quiet().await;
    let failures =
        world.failed_deliveries().list(&name("local"), FailureFilter::Failed, 10, None).await.unwrap().items;
    assert_eq!(failures.len(), bodies.len(), "they belong to the operators' tenant");
    let mut kept = Vec::new();
    for failure in &failures {
        assert!(!failure.reason.is_empty());
        kept.push(
            world.failed_deliveries().get(&name("local"), &failure.id).await.unwrap().unwrap().body.unwrap(),
        );
    }
    kept.sort_unstable();
    let mut expected = bodies;
    expected.sort_unstable();
    assert_eq!(kept, expected, "kept as they were");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_failures_are_few_messages_and_slack_may_be_busy_or_down() {
    let (slack, url) = Slack::start(&[(500, None), (503, None), (429, Some("0"))]).await;
    let world = World::with(|options| options.slack_webhook = Some(url)).await;
    let many: Vec<_> = (0..30).map(|n| forged(&format!("e-{n}"))).collect();
    world.put_events(&many).await;
    until("all are kept and told", || async {
        let (_, answer) = world.get("/api/failed-deliveries?limit=100").await;
        let items = answer["items"].as_array().unwrap();
        (items.len() == 30 && items.iter().all(|item| item["alertedAt"].is_u64())).then_some(())
    })
    .await;
    let messages = slack.messages.lock().unwrap().clone();
    assert!(!messages.is_empty() && messages.len() <= 6, "{} messages for 30 failures", messages.len());
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_event_goes_back_on_the_bus_and_is_saved_once() {
    // The store refuses the event for good at first, and takes it later.
    let mended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = mended.clone();
    let world = World::with(|options| {
        options.interceptor = Some(Arc::new(move |call, moment| {
            let poison = call.service == Service::DynamoDb
                && call.operation == "PutItem"
                && moment == ledgerline_embedded::Moment::Before
                && call.body.windows(8).any(|bytes| bytes == b"e-poison")
                && call.body.windows(12).any(|bytes| bytes == b"events-local")
                && !seen.load(std::sync::atomic::Ordering::SeqCst);
            Box::pin(async move {
                match poison {
                    true => Verdict::Fail { status: 400, code: "ValidationException".into() },
                    false => Verdict::Proceed,
                }
            })
        }));
    })
    .await;
    world.put_events(&[detail(&event("local", "e-poison", at(TIME)))]).await;
    let failure = until("it is kept", || async {
        world
            .failed_deliveries()
            .list(&name("local"), FailureFilter::Failed, 10, None)
            .await
            .unwrap()
            .items
            .pop()
    })
    .await;
    assert_eq!(failure.error_code, "NOT_STORABLE");
    world.quiet().await;

    mended.store(true, std::sync::atomic::Ordering::SeqCst);
    let ids = json!({"ids": [failure.id, "1767453739640-unknown"]}).to_string();
    let (status, answer) = world.post("/api/failed-deliveries/redrive", ids).await;
    assert_eq!(status, 200);
    assert_eq!(answer["redriven"], json!([failure.id]));
    assert!(answer["refused"][0]["reason"].as_str().unwrap().contains("no failed delivery has the id"));
    world.rows_at_least(1).await;
    let (_, again) =
        world.post("/api/failed-deliveries/redrive", json!({"ids": [failure.id]}).to_string()).await;
    assert_eq!(again["redriven"], json!([failure.id]), "a repeat is harmless");
    world.quiet().await;

    let tenant = name("local");
    let events = world.reader().all(&EventQuery::new(&tenant, Scope::Tenant)).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(world.get("/api/failed-deliveries").await.1["items"], json!([]));
    let (_, all) = world.get("/api/failed-deliveries?all=true").await;
    assert_eq!(all["items"][0]["state"], "redriven");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_failures_are_not_shown_and_not_redriven() {
    let world = World::start().await;
    let mut foreign = detail(&event("other", "e-1", at(TIME)));
    foreign["GSI7SK"] = json!("forged");
    world.put_events(&[foreign]).await;
    let failure = until("it is kept", || async {
        world
            .failed_deliveries()
            .list(&name("other"), FailureFilter::Failed, 10, None)
            .await
            .unwrap()
            .items
            .pop()
    })
    .await;
    assert_eq!(world.get("/api/failed-deliveries?all=true").await.1["items"], json!([]));
    let (_, answer) =
        world.post("/api/failed-deliveries/redrive", json!({"ids": [failure.id]}).to_string()).await;
    assert_eq!(answer["redriven"], json!([]));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_kept_however_large_its_fields_are() {
    let world = World::start().await;
    world
        .put_events(&[
            json!({"tenantId": "local", "eventType": "x".repeat(250_000), "GSI1PK": "y".repeat(250_000)}),
        ])
        .await;
    let failure = until("it is kept", || async {
        world
            .failed_deliveries()
            .list(&name("local"), FailureFilter::Failed, 10, None)
            .await
            .unwrap()
            .items
            .pop()
    })
    .await;
    assert_eq!(failure.event_type.unwrap().len(), 1_000);
    world.quiet().await;
    world.local.stop().await;
}

/// The function itself, called as its queue would call it: with what it gave back, again.
#[tokio::test(flavor = "multi_thread")]
async fn while_slack_is_down_messages_go_back_to_the_queue_and_no_alert_is_sent_twice() {
    let store = Store::start(None).await;
    let (slack, url) = Slack::start(&[(500, None), (500, None)]).await;
    let parameter = &store.names.slack_webhook_parameter;
    store.clients.ssm.put_parameter().name(parameter).value(url).send().await.unwrap();
    let handler = eventbridge_dlq_alert::Handler {
        failed_deliveries: store.failed_deliveries(),
        payloads: ledgerline_store::Payloads::new(store.clients.s3.clone(), &store.names.payload_bucket),
        slack: ledgerline_alert::Slack::new(store.clients.ssm.clone(), parameter.clone())
            .with_total_timeout(std::time::Duration::ZERO),
        operator_tenant: name("ops"),
        ledger_flag: "--stage test".into(),
        metrics: ledgerline_ledger::telemetry::Metrics::silent(),
        clock: Arc::new(|| at(TIME)),
    };
    let mut batch = SqsEvent::default();
    for n in 0..3 {
        let mut record = SqsMessage::default();
        record.message_id = Some(format!("m-{n}"));
        // One of them is too large for an item of the control table.
        record.body = Some("x".repeat(if n == 0 { 500_000 } else { 10 }));
        batch.records.push(record);
    }
    for _ in 0..2 {
        let answer = handler.handle(batch.clone()).await;
        assert_eq!(answer.batch_item_failures.len(), 3, "all go back while no alert can be sent");
        let kept = store
            .failed_deliveries()
            .list(&name("ops"), FailureFilter::Failed, 10, None)
            .await
            .unwrap()
            .items;
        assert_eq!(kept.len(), 3, "and all are kept, once");
        assert!(kept.iter().all(|failure| failure.alerted_at.is_none()));
    }
    assert!(handler.handle(batch.clone()).await.batch_item_failures.is_empty());
    assert!(handler.handle(batch).await.batch_item_failures.is_empty(), "a redelivery of what was told");
    assert_eq!(slack.messages.lock().unwrap().len(), 1);
    let kept =
        store.failed_deliveries().list(&name("ops"), FailureFilter::Failed, 10, None).await.unwrap().items;
    let large = kept.iter().find(|failure| failure.body_key.is_some()).unwrap();
    assert_eq!(large.whole_body(&handler.payloads).await.unwrap().len(), 500_000);
    store.embedded.stop().await;
}
