//! Trouble is bounded: a Slack that is down, a sweep that dies, a table that throttles cost the others nothing.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ledgerline_alert::{Answer, Post, Slack};
use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls, Thresholds};
use ledgerline_embedded::{Call, Hook, Moment, Verdict};
use ledgerline_ledger::{Clock, Emitter, control::keys, telemetry::Metrics};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use crate::{
    ledger::Ledger,
    runs_api::id,
    simulation::{Answer as SimulatedAnswer, BEGINNING, Call as SimulatedCall, Simulation, Store},
    world::{admitted, at, event, name, number, text},
};

/// What Slack was told.
type Told = Arc<Mutex<Vec<String>>>;

/// A Slack that takes everything, or that does not answer while it is `down`.
fn slack(down: bool, told: &Told) -> Post {
    let told = told.clone();
    Arc::new(move |_, text| {
        let told = told.clone();
        Box::pin(async move {
            if down {
                tokio::time::sleep(Duration::from_secs(6)).await;
                return Err("no answer".to_owned());
            }
            told.lock().unwrap().push(text);
            Ok(Answer { status: 200, retry_after: None })
        })
    })
}

/// An hour of a stage: when each sweep began, and how many tasks were sent to the queue until its end.
struct Hour {
    sweeps: Vec<(u64, usize)>,
    /// How long each wake-up took.
    wakes: Vec<Duration>,
    told: usize,
}

async fn an_hour_of_sweeps(slack_is_down: bool) -> Hour {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let webhook = store.clients.ssm.put_parameter().name(&store.names.slack_webhook_parameter);
    webhook.value("https://slack.test").send().await.unwrap();
    let began = Instant::now();
    let clock: Clock = Arc::new(move || at(BEGINNING + u64::try_from(began.elapsed().as_millis()).unwrap()));
    let told = Told::default();
    let parameter = store.names.slack_webhook_parameter.clone();
    let options = DispatchOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("timeline=10m").unwrap(),
        slack: Some(Slack::through(store.clients.ssm.clone(), parameter, slack(slack_is_down, &told))),
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: clock.clone(),
    };
    let dispatch = Dispatch::new(&store.clients, &store.names, options).unwrap();
    let tenants: Vec<String> = (0..8).map(|n| format!("tenant-{n}")).collect();
    for tenant in &tenants {
        let workflow = json!({"workflowType": "w", "kind": "task", "createdAt": BEGINNING});
        dispatch.register(&name(tenant), &serde_json::from_value(workflow).unwrap()).await.unwrap();
        for subscription in [
            json!({"eventTypeGlob": "*", "workflowType": "w"}),
            json!({"eventTypeGlob": "*", "workflowType": "w", "drainerId": "timeline"}),
            // Its type is not registered: it is retried, and parked with an alert.
            json!({"eventTypeGlob": "*", "workflowType": "missing"}),
            // It is parked at once.
            json!({"eventTypeGlob": "*", "workflowType": "w", "inputMapper": {"x": "$.payload.none"}}),
        ] {
            dispatch.subscribe(&name(tenant), serde_json::from_value(subscription).unwrap()).await.unwrap();
        }
    }
    let (mut sweeps, mut wakes) = (Vec::new(), Vec::new());
    let mut tick = began;
    for sweep in 0..30 {
        tokio::time::sleep_until(tick).await;
        tick += Duration::from_secs(120);
        let began_at = began.elapsed().as_secs();
        for tenant in &tenants {
            let event = admitted(event(tenant, &format!("e{sweep:02}"), clock()));
            store.saver().save(&[event], clock()).await.pop().unwrap().unwrap();
        }
        // The stream wakes the dispatcher for some of them.
        let woken = tenants.iter().take(4).map(|tenant| name(tenant)).collect();
        let wakes_at = Instant::now();
        dispatch.wake(woken, Some(wakes_at + Duration::from_secs(30))).await.unwrap();
        wakes.push(wakes_at.elapsed());
        dispatch.sweep(None).await.unwrap();
        sweeps.push((began_at, simulation.take_sent().len()));
    }
    let told = told.lock().unwrap().len();
    Hour { sweeps, wakes, told }
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_slack_makes_no_drain_retry_or_schedule_later() {
    let with = an_hour_of_sweeps(false).await;
    assert!(with.told > 0, "there is something to tell");
    assert!(with.sweeps.iter().map(|(_, sent)| sent).sum::<usize>() > 200, "{:?}", with.sweeps);
    let without = an_hour_of_sweeps(true).await;
    assert_eq!(without.told, 0);
    assert_eq!(without.sweeps, with.sweeps);
    assert_eq!(without.wakes, with.wakes);
}

/// A ledger whose alerts go to `told`.
async fn telling(ledger: &Ledger, told: &Told) -> Dispatch {
    let (store, parameter) = (&ledger.store, ledger.store.names.slack_webhook_parameter.clone());
    let put = store.clients.ssm.put_parameter().name(&parameter).value("https://slack.test");
    put.r#type(aws_sdk_ssm::types::ParameterType::SecureString).overwrite(true).send().await.unwrap();
    let options = DispatchOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("timeline=1h").unwrap(),
        slack: Some(Slack::through(store.clients.ssm.clone(), parameter, slack(false, told))),
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: ledger.clock(),
    };
    Dispatch::new(&store.clients, &store.names, options).unwrap()
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
    // The version before has them among the other claims.
    let update = ledger.store.control().update(&pending[0]).update_expression("SET dueShard = :shard");
    let shard = text(&keys::due_shard_of(&pending[0]));
    update.expression_attribute_values(":shard", shard).send().await.unwrap();

    let told = Told::default();
    let dispatch = telling(&ledger, &told).await;
    ledger.advance(120_000);
    dispatch.sweep(None).await.unwrap();
    let messages = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(["e1", "e2", "e3"].iter().all(|id| messages[0].contains(id)), "{messages:?}");
    dispatch.sweep(None).await.unwrap();
    assert!(told.lock().unwrap().is_empty(), "each once");
}

#[tokio::test]
async fn an_event_that_too_many_subscriptions_match_is_told_once_by_the_next_sweep() {
    let (ledger, told) = (Ledger::start().await, Told::default());
    let dispatch = telling(&ledger, &told).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    for _ in 0..12 {
        ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    }
    ledger.save(event("t", "e1", ledger.now())).await;
    dispatch.wake(BTreeSet::from([name("t")]), None).await.unwrap();
    assert!(told.lock().unwrap().is_empty(), "a wake-up does not wait for Slack");
    for _ in 0..3 {
        ledger.advance(120_000);
        dispatch.sweep(None).await.unwrap();
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
    let hook: Hook = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body);
        let acquires = moment == Moment::Before
            && call.operation == "UpdateItem"
            && body.contains("laneHorizon = :lane");
        if acquires && counted.fetch_add(1, Ordering::SeqCst) == 5 {
            killing.notify_one();
        }
        Box::pin(async move { Verdict::Proceed })
    });
    let ledger = Ledger::with(Some(hook)).await;
    let tenants = scheduled(&ledger, 12).await;
    acquired.store(0, Ordering::SeqCst);
    tokio::select! {
        biased;
        () = kill.notified() => {}
        swept = ledger.dispatch.sweep(None) => panic!("it was to be killed: {swept:?}"),
    }
    assert!(started(&ledger, &tenants).await.len() < tenants.len());
    // The leases of the dead end, and the next sweep comes.
    ledger.advance(120_000);
    ledger.dispatch.sweep(None).await.unwrap();
    assert_eq!(started(&ledger, &tenants).await.len(), tenants.len());
}

#[tokio::test]
async fn a_round_comes_back_to_a_tenant_whose_lease_a_dead_sweep_holds() {
    let ledger = Ledger::start().await;
    let tenants = scheduled(&ledger, 3).await;
    ledger.dispatch.sweep(None).await.unwrap();
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
    ledger.dispatch.sweep(None).await.unwrap();
    assert!(!ledger.starts(&tenants[0]).await.contains_key("e2"), "another process has the lease");
    ledger.advance(120_000);
    ledger.dispatch.sweep(None).await.unwrap();
    assert!(ledger.starts(&tenants[0]).await.contains_key("e2"), "the round has not forgotten the tenant");
}

#[tokio::test]
async fn sweeps_without_time_come_to_everyone_in_turn_and_then_the_round_is_done() {
    let ledger = Ledger::start().await;
    let tenants = scheduled(&ledger, 12).await;
    let mut sweeps = 0;
    while started(&ledger, &tenants).await.len() < tenants.len() {
        sweeps += 1;
        assert!(sweeps < 30, "some are never visited");
        let round: Option<Value> = ledger.store.control().get(&keys::schedule("timeline")).await.unwrap();
        assert!(round.is_none_or(|round| round["visitedAt"].is_null()), "the round is not over");
        ledger.dispatch.sweep(Some(Instant::now())).await.unwrap();
        ledger.advance(120_000);
    }
    assert!(sweeps > 1);
    ledger.dispatch.sweep(None).await.unwrap();
    let round: Value = ledger.store.control().get(&keys::schedule("timeline")).await.unwrap().unwrap();
    assert!(!round["visitedAt"].is_null(), "{round}");
}

/// A dispatcher in the time of a simulation, and its tenants, each with a subscription.
async fn dispatcher(store: &Store, tenants: &[&str]) -> Dispatch {
    let began = Instant::now();
    let clock: Clock = Arc::new(move || at(BEGINNING + u64::try_from(began.elapsed().as_millis()).unwrap()));
    let options = DispatchOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("").unwrap(),
        slack: None,
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: clock.clone(),
    };
    let dispatch = Dispatch::new(&store.clients, &store.names, options).unwrap();
    for tenant in tenants {
        let workflow = json!({"workflowType": "w", "kind": "task", "createdAt": BEGINNING});
        dispatch.register(&name(tenant), &serde_json::from_value(workflow).unwrap()).await.unwrap();
        let subscription = json!({"eventTypeGlob": "*", "workflowType": "w"});
        dispatch.subscribe(&name(tenant), serde_json::from_value(subscription).unwrap()).await.unwrap();
        let event = admitted(event(tenant, "e1", clock()));
        store.saver().save(&[event], clock()).await.pop().unwrap().unwrap();
    }
    dispatch
}

#[tokio::test(start_paused = true)]
async fn a_sweep_ends_in_time_though_the_bus_answers_no_claim() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let dispatch = dispatcher(&store, &["a", "b", "c"]).await;
    store.shared.set_weather(Arc::new(|call: &SimulatedCall| {
        ((call.operation == "PutEvents").then(|| Duration::from_secs(3_600)), None)
    }));
    // A process that dies leaves claims.
    let tenants: BTreeSet<_> = ["a", "b", "c"].map(name).into();
    let killed = tokio::time::timeout(Duration::from_secs(20), dispatch.wake(tenants, None)).await;
    assert!(killed.is_err());
    tokio::time::sleep(Duration::from_secs(120)).await;
    let began = Instant::now();
    dispatch.sweep(Some(began + Duration::from_secs(10))).await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_that_has_its_lease_outlasts_a_slow_bus() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let dispatch = dispatcher(&store, &["a"]).await;
    store.shared.set_weather(Arc::new(|call: &SimulatedCall| {
        ((call.operation == "PutEvents").then(|| Duration::from_secs(4)), None)
    }));
    let deadline = Instant::now() + Duration::from_secs(30);
    let woken = dispatch.wake(BTreeSet::from([name("a")]), Some(deadline)).await.unwrap();
    assert_eq!((woken.trouble, simulation.take_sent().len()), (0, 1), "{woken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_ends_in_time_though_it_cannot_see_which_drainers_stand_still() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let dispatch = dispatcher(&store, &["a", "b", "c"]).await;
    store.shared.set_weather(Arc::new(|call: &SimulatedCall| {
        let hangs = call.operation == "GetItem" && call.about.contains("DRAIN#");
        (hangs.then(|| Duration::from_secs(3_600)), None)
    }));
    let began = Instant::now();
    dispatch.sweep(Some(began + Duration::from_secs(10))).await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_health_check_ends_in_time_though_the_tasks_of_a_tenant_cannot_be_listed() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let dispatch = dispatcher(&store, &["a"]).await;
    for tenant in ["a", "b", "c"] {
        store.control().put(&keys::busy_mark(tenant), &json!({"stamp": 1})).unwrap().send().await.unwrap();
    }
    store.shared.set_weather(Arc::new(|call: &SimulatedCall| {
        let hangs = call.operation == "Query" && call.text().contains("TASKS#b");
        (hangs.then(|| Duration::from_secs(3_600)), None)
    }));
    let began = Instant::now();
    let deadline = began + Duration::from_secs(10);
    let checked = dispatch.check_health_until(&Thresholds::default(), deadline).await.unwrap();
    assert_eq!((checked.tenants, checked.trouble), (3, 1));
    assert!(began.elapsed() <= Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_sender_hears_no_error_of_an_accepted_event_though_a_run_that_waits_is_throttled() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let dispatch = dispatcher(&store, &[]).await;
    let clock: Clock = Arc::new(|| at(BEGINNING));
    let emitter = Emitter::with_clock(&store.clients, &store.names, name("t"), name("test"), clock);
    for (event_type, correlation_id, data) in [
        ("run_created", None, json!({"workflowName": "order", "input": {}})),
        ("run_started", None, json!({})),
        ("wait_created", Some(id("wait", 1)), json!({"eventName": "paid", "matchCriteria": {"order": 1}})),
    ] {
        let event = json!({"eventType": event_type, "correlationId": correlation_id, "eventData": data});
        let event = serde_json::from_value(event).unwrap();
        Box::pin(dispatch.append_foreign(&emitter, "r", event)).await.unwrap();
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    store.shared.set_weather(Arc::new(move |call: &SimulatedCall| {
        let calls = call.operation == "UpdateItem" && call.text().contains("calledWaits");
        if calls {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        let code = "ProvisionedThroughputExceededException";
        (None, calls.then(|| SimulatedAnswer::error(call.service, 400, code, "simulated")))
    }));
    let event = json!({"event": "paid", "match": {"order": 1}});
    let sent = dispatch.send_event(&emitter, serde_json::from_value(event).unwrap(), None).await;
    assert!(sent.is_ok(), "{sent:?}");
    let calls = calls.load(Ordering::SeqCst);
    assert!((2..=50).contains(&calls), "it was called {calls} times: patience within patience");
}
