//! Sweeps make up for what stopped: a sweep that dies, or has no time, costs no tenant its turn; each alert is sent once.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use ledgerline_alert::{Answer, Post, Slack};
use ledgerline_drains::Drainers;
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_ledger::telemetry::Metrics;
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::keys::{self, ControlKey};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use ledgerline_test_support::{Ledger, event, name, number, text};

/// The messages that Slack received.
type Told = Arc<Mutex<Vec<String>>>;

/// A Slack that takes everything.
fn slack(told: &Told) -> Post {
    let told = told.clone();
    Arc::new(move |_, text| {
        let told = told.clone();
        Box::pin(async move {
            told.lock().unwrap().push(text);
            Ok(Answer { status: 200, retry_after: None })
        })
    })
}

/// A ledger whose alerts go to `told`.
async fn telling(ledger: &Ledger, told: &Told) -> Stage {
    let (store, parameter) = (&ledger.store, ledger.store.names.slack_webhook_parameter.clone());
    let put = store.clients.ssm.put_parameter().name(&parameter).value("https://slack.test");
    put.r#type(aws_sdk_ssm::types::ParameterType::SecureString).overwrite(true).send().await.unwrap();
    let options = StageOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("timeline=1h").unwrap(),
        slack: Some(Slack::with_post(store.clients.ssm.clone(), parameter, slack(told))),
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: ledger.clock(),
    };
    Stage::new(&store.clients, &store.names, options).unwrap()
}

#[tokio::test]
async fn alerts_of_a_tenant_and_minute_are_one_message_and_those_of_the_version_before_are_found() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger
        .subscribe(
            "t",
            json!({"eventTypeGlob": "*", "workflowType": "w", "inputMapper": {"x": "$.payload.none"}}),
        )
        .await;
    for id in ["e1", "e2", "e3"] {
        ledger.save(event("t", id, ledger.now())).await;
    }
    // This process has no Slack: the alerts wait.
    ledger.drain("t").await;
    let mut pending = Vec::new();
    for shard in 0..keys::DUE_SHARDS {
        let shard = keys::alert_due_shard(shard);
        pending.extend(ledger.store.control().all_due(&shard, ledger.now().plus(120_000)).await.unwrap());
    }
    assert_eq!(pending.len(), 3);
    // Versions before 0.1.0 have them among the other claims.
    let update = ledger.store.control().update(&pending[0]).update_expression("SET dueShard = :shard");
    let shard = text(&keys::due_shard_of(&pending[0]));
    update.expression_attribute_values(":shard", shard).send().await.unwrap();

    let told = Told::default();
    let stage = telling(&ledger, &told).await;
    ledger.advance(120_000);
    stage.sweep.sweep(None).await.unwrap();
    let messages = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(["e1", "e2", "e3"].iter().all(|id| messages[0].contains(id)), "{messages:?}");
    stage.sweep.sweep(None).await.unwrap();
    assert!(told.lock().unwrap().is_empty(), "each once");
}

#[tokio::test]
async fn an_event_that_too_many_subscriptions_match_is_alerted_once_by_the_next_sweep() {
    let (ledger, told) = (Ledger::start().await, Told::default());
    let stage = telling(&ledger, &told).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    for _ in 0..12 {
        ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    }
    ledger.save(event("t", "e1", ledger.now())).await;
    stage.sweep.wake(BTreeSet::from([name("t")]), None).await.unwrap();
    assert!(told.lock().unwrap().is_empty(), "a wake-up does not wait for Slack");
    for _ in 0..3 {
        ledger.advance(120_000);
        stage.sweep.sweep(None).await.unwrap();
    }
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("12 subscriptions match"), "{told:?}");
}

/// Tenants, each with an event for a drainer that has a schedule of its own.
async fn scheduled(ledger: &Ledger, count: usize) -> Vec<String> {
    let tenants: Vec<String> = (0..count).map(|n| format!("tenant-{n:02}")).collect();
    for tenant in &tenants {
        ledger.register(tenant, json!({"workflowType": "w", "kind": "task"})).await;
        let subscription = json!({"eventTypeGlob": "*", "workflowType": "w", "drainerId": "timeline"});
        ledger.subscribe(tenant, subscription).await;
        ledger.save(event(tenant, "e1", ledger.now())).await;
    }
    ledger.advance(60_000);
    tenants
}

async fn started(ledger: &Ledger, tenants: &[String]) -> BTreeSet<String> {
    let mut started = BTreeSet::new();
    for tenant in tenants {
        if !ledger.starts(tenant).await.is_empty() {
            started.insert(tenant.clone());
        }
    }
    started
}

#[tokio::test]
async fn a_sweep_that_is_killed_loses_no_round() {
    let (acquired, kill) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, killing) = (acquired.clone(), kill.clone());
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body);
        let acquires = moment == Moment::Before
            && call.operation == "UpdateItem"
            && body.contains("laneHorizon = :lane");
        if acquires && counted.fetch_add(1, Ordering::SeqCst) == 5 {
            killing.notify_one();
        }
        Box::pin(async move { Verdict::Proceed })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    let tenants = scheduled(&ledger, 12).await;
    acquired.store(0, Ordering::SeqCst);
    tokio::select! {
        biased;
        () = kill.notified() => {}
        swept = ledger.stage.sweep.sweep(None) => panic!("it was to be killed: {swept:?}"),
    }
    assert!(started(&ledger, &tenants).await.len() < tenants.len());
    // The leases of the killed processes end, and the next sweep comes.
    ledger.advance(120_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(started(&ledger, &tenants).await.len(), tenants.len());
}

#[tokio::test]
async fn a_round_comes_back_to_a_tenant_whose_lease_a_dead_sweep_holds() {
    let ledger = Ledger::start().await;
    let tenants = scheduled(&ledger, 3).await;
    ledger.stage.sweep.sweep(None).await.unwrap();
    ledger.save(event(&tenants[0], "e2", ledger.now())).await;
    ledger.advance(3_600_000 - 30_000);
    // A process takes the lease half a minute before the round, and dies.
    let key = keys::drain(&tenants[0], "timeline");
    let take =
        ledger.store.control().update(&key).update_expression("SET #owner = :dead, leaseUntil = :until");
    let take =
        take.expression_attribute_names("#owner", "owner").expression_attribute_values(":dead", text("dead"));
    let until = number(ledger.now().plus(60_000).get());
    take.expression_attribute_values(":until", until).send().await.unwrap();
    ledger.advance(30_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert!(!ledger.starts(&tenants[0]).await.contains_key("e2"), "another process has the lease");
    ledger.advance(120_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert!(ledger.starts(&tenants[0]).await.contains_key("e2"), "the round has not forgotten the tenant");
}

#[tokio::test]
async fn a_sweep_without_time_begins_with_the_mark_and_the_claim_at_which_the_last_one_stopped() {
    let ledger = Ledger::start().await;
    let control = ledger.store.control();
    let tenants: Vec<String> = (0..12).map(|number| format!("t{number:02}")).collect();
    for tenant in &tenants {
        ledger.register(tenant, json!({"workflowType": "w", "kind": "task"})).await;
        ledger.subscribe(tenant, json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
        ledger.save(event(tenant, "e1", ledger.now())).await;
    }
    ledger.advance(60_000);
    // Ten claims in each shard, and all of them are overdue.
    let claim =
        |shard: u8, number: u64| ControlKey { pk: format!("CLAIM#{shard}#{number}"), sk: "CLAIM".into() };
    for shard in 0..4 {
        for number in 0..10 {
            let pending = json!({
                "state": "pending", "effects": "{}", "claimedAt": ledger.now(),
                "dueShard": keys::due_shard(shard), "dueAt": ledger.now().get() - 1_000 + number,
            });
            control.put(&claim(shard, number), &pending).unwrap().send().await.unwrap();
        }
    }
    let stopped = json!({"shard": 2, "dueAt": ledger.now().get() - 995});
    control.put(&keys::sweep_record("CLAIMS"), &stopped).unwrap().send().await.unwrap();
    control.put(&keys::sweep_record("MARKS"), &json!({"after": "t05"})).unwrap().send().await.unwrap();

    ledger.stage.sweep.sweep(Some(Instant::now())).await.unwrap();
    let visited = started(&ledger, &tenants).await;
    assert!(visited.contains("t06") && !visited.contains("t05"), "{visited:?}");
    let mut done = Vec::new();
    for shard in 0..4 {
        for number in 0..10 {
            let there: Value = control.get(&claim(shard, number)).await.unwrap().unwrap();
            if there["state"] == "done" {
                done.push((shard, number));
            }
        }
    }
    assert_eq!(done, [(2, 5), (2, 6), (2, 7), (2, 8), (2, 9)]);
}

#[tokio::test]
async fn sweeps_without_time_visit_every_tenant_in_turn_and_then_end_their_round() {
    let ledger = Ledger::start().await;
    let tenants = scheduled(&ledger, 12).await;
    let mut sweeps = 0;
    while started(&ledger, &tenants).await.len() < tenants.len() {
        sweeps += 1;
        assert!(sweeps < 30, "some are never visited");
        let round: Option<Value> = ledger.store.control().get(&keys::schedule("timeline")).await.unwrap();
        assert!(round.is_none_or(|round| round["visitedAt"].is_null()), "the round is not over");
        ledger.stage.sweep.sweep(Some(Instant::now())).await.unwrap();
        ledger.advance(120_000);
    }
    assert!(sweeps > 1);
    ledger.stage.sweep.sweep(None).await.unwrap();
    let round: Value = ledger.store.control().get(&keys::schedule("timeline")).await.unwrap().unwrap();
    assert!(!round["visitedAt"].is_null(), "{round}");
}
