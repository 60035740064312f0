//! Edges that are met rarely: a lost answer to taking a lease, a conflict in S3, the end of retention, an unknown id.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ledgerline_drains::{CountEvents, Drainers, RewindScope};
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::Seconds;
use ledgerline_ledger::{Clients, Found, Timeline, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::{Payloads, keys};
use serde_json::json;

use ledgerline_test_support::{BEGIN, Ledger, at, event, name, scan};

/// Sends each first request that takes a drain lease twice, as the SDK does when an answer is lost: the caller sees the
/// answer to the second.
fn lease_taken_twice(sent: &Arc<AtomicUsize>) -> Interceptor {
    let sent = sent.clone();
    Arc::new(move |call: Call, moment| {
        let takes = call.operation == "UpdateItem"
            && String::from_utf8_lossy(&call.body).contains("laneHorizon = :lane");
        let lost =
            takes && moment == (Moment::After { status: 200 }) && sent.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            match lost {
                true => Verdict::Fail { status: 500, code: "InternalServerError".into() },
                false => Verdict::Proceed,
            }
        })
    })
}

/// A process whose clients send a request again that had no answer.
async fn patient_process(ledger: &Ledger) -> Stage {
    let store = &ledger.store;
    let credentials = aws_sdk_dynamodb::config::Credentials::new("test", "test", None, None, "test");
    let retries = aws_config::retry::RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
    let config = aws_config::SdkConfig::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .region(aws_config::Region::new("us-east-1"))
        .endpoint_url(store.embedded.endpoint())
        .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials))
        .retry_config(retries)
        .build();
    let options = StageOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("").unwrap(),
        slack: None,
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: ledger.clock(),
    };
    Stage::new(&Clients::new(&config), &store.names, options).unwrap()
}

#[tokio::test]
async fn a_drainer_whose_answer_was_lost_recognises_its_own_lease() {
    let sent = Arc::new(AtomicUsize::new(0));
    let ledger = Ledger::with(Some(lease_taken_twice(&sent))).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    let stage = patient_process(&ledger).await;
    let drained = stage.drains.drain(&name("t"), &name("workflow_runner"), None).await.unwrap();
    assert!(sent.load(Ordering::SeqCst) >= 1, "no answer was lost");
    assert!(!drained.skipped_due_to_lock, "it waits for itself");
    assert_eq!(drained.triggered.len(), 1);
}

#[tokio::test]
async fn a_missing_mark_is_written_though_the_answer_to_the_release_is_lost() {
    let (marks, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, losing) = (marks.clone(), lost.clone());
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body);
        let marks = moment == Moment::Before && call.operation == "UpdateItem" && body.contains("\"DIRTY");
        // The client tries three times before it returns the error.
        let fails = marks && counted.fetch_add(1, Ordering::SeqCst) < 3;
        let loses = matches!(moment, Moment::After { status: 200 })
            && call.operation == "UpdateItem"
            && body.contains("\"DRAIN#t\"")
            && body.contains("wake = :wake")
            && !losing.swap(true, Ordering::SeqCst);
        let verdict = match (fails, loses) {
            (true, _) => Verdict::Fail { status: 400, code: "ProvisionedThroughputExceededException".into() },
            (_, true) => Verdict::Fail { status: 500, code: "InternalServerError".into() },
            _ => Verdict::Proceed,
        };
        Box::pin(async move { verdict })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    // Too new to be passed: something is left to do.
    ledger.save(event("t", "e1", ledger.now())).await;
    let mark = keys::dirty_mark("t", "workflow_runner");
    // The new subscription has left one.
    ledger.store.control().delete(&mark).send().await.unwrap();
    marks.store(0, Ordering::SeqCst);
    lost.store(false, Ordering::SeqCst);
    let stage = patient_process(&ledger).await;
    let drained = stage.drains.drain(&name("t"), &name("workflow_runner"), None).await.unwrap();
    assert!(lost.load(Ordering::SeqCst) && drained.again_at.is_some());
    let mark: Option<serde_json::Value> = ledger.store.control().get(&mark).await.unwrap();
    assert!(mark.is_some(), "nothing leads to what is left");
}

#[tokio::test]
async fn a_conflicting_write_to_s3_that_leaves_no_object_is_retried() {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let refuses = call.operation == "PutObject"
            && moment == Moment::Before
            && count.fetch_add(1, Ordering::SeqCst) < 2;
        Box::pin(async move {
            match refuses {
                true => Verdict::Fail { status: 409, code: "ConditionalRequestConflict".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    let large = json!({"text": "x".repeat(300_000)});
    let emitter = ledger.emitter("t");
    emitter.event("price.changed").entity("ITEM", "1").properties(large.clone()).emit().await.unwrap();
    let events = ledger.events("t", "price.changed").await;
    assert_eq!(serde_json::Value::Object(events[0].properties.clone()), large);
    assert_eq!(refused.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_rewind_at_the_edge_of_retention_starts_nothing_twice() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    let expires = Seconds::new(BEGIN / 1_000 + 86_400);
    let mut kept = event("t", "e1", ledger.now());
    kept.ttl = Some(expires);
    ledger.save(kept).await;
    ledger.advance(10_000);
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
    // A week later DynamoDB has deleted every expired row but the event itself: it promises no order.
    ledger.advance(8 * 86_400_000);
    let store = &ledger.store;
    for row in scan(&store.clients, &store.names.control_table).await {
        let ttl = row.get("ttl").and_then(|ttl| ttl.as_n().ok()?.parse::<u64>().ok());
        if ttl.is_some_and(|ttl| ttl <= ledger.now().seconds().get()) {
            let key = keys::ControlKey {
                pk: row["PK"].as_s().unwrap().clone(),
                sk: row["SK"].as_s().unwrap().clone(),
            };
            store.control().delete(&key).send().await.unwrap();
        }
    }
    let plan = ledger
        .stage
        .drains
        .plan_rewind(&name("t"), "workflow_runner", "e1", RewindScope::MissingOnly, CountEvents::No)
        .await
        .unwrap();
    ledger.stage.drains.rewind(&name("t"), &plan).await.unwrap();
    assert!(ledger.drain("t").await.triggered.is_empty(), "it was started before");
    assert_eq!(ledger.starts("t").await["e1"], 1);
}

#[tokio::test]
async fn looking_for_an_unknown_event_reads_a_bounded_part_of_the_ledger() {
    let ledger = Ledger::start().await;
    for n in 0..12 {
        let mut large = event("t", &format!("e{n:02}"), at(BEGIN + n));
        large.properties = json!({"text": "x".repeat(350_000)}).as_object().unwrap().clone();
        ledger.save(large).await;
    }
    let store = &ledger.store;
    let payloads = Payloads::new(store.clients.s3.clone(), &store.names.payload_bucket);
    let timeline = Timeline::new(store.clients.dynamo.clone(), &store.names.events_table, payloads);
    let bounded = timeline.clone().finding_within(2);
    assert_eq!(timeline.find("t", "nothing").await.unwrap(), Found::Nowhere);
    assert!(matches!(timeline.find("t", "e00").await.unwrap(), Found::At(_)));
    assert!(matches!(bounded.find("t", "e11").await.unwrap(), Found::At(_)));
    store.embedded.reset_requests();
    let Found::NotReached(place) = bounded.find("t", "nothing").await.unwrap() else { panic!("it read on") };
    assert!(place.starts_with("TIMESTAMP#"), "{place}");
    let requests: u64 = store
        .embedded
        .requests()
        .into_iter()
        .filter(|((_, name), _)| name == "Query")
        .map(|(_, count)| count)
        .sum();
    assert_eq!(requests, 2);
}
