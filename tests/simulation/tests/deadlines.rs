//! Trouble is bounded in time: a Slack that is down, a bus that does not answer and a table that throttles hold up neither
//! a sweep, a wake-up, a health check nor a sender for longer than it has.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ledgerline_alert::{Answer, Post, Slack};
use ledgerline_drains::Drainers;
use ledgerline_jobs::Thresholds;
use ledgerline_ledger::{Clock, Emitter, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_simulation::{BEGINNING, Request, Response, Simulation, Store};
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::keys;
use ledgerline_test_support::{admitted, at, event, name};
use serde_json::json;
use tokio::time::Instant;

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
    let options = StageOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("timeline=10m").unwrap(),
        slack: Some(Slack::with_post(store.clients.ssm.clone(), parameter, slack(slack_is_down, &told))),
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: clock.clone(),
    };
    let stage = Stage::new(&store.clients, &store.names, options).unwrap();
    let tenants: Vec<String> = (0..8).map(|n| format!("tenant-{n}")).collect();
    for tenant in &tenants {
        let workflow = json!({"workflowType": "w", "kind": "task", "createdAt": BEGINNING});
        stage.registry().register(&name(tenant), &serde_json::from_value(workflow).unwrap()).await.unwrap();
        for subscription in [
            json!({"eventTypeGlob": "*", "workflowType": "w"}),
            json!({"eventTypeGlob": "*", "workflowType": "w", "drainerId": "timeline"}),
            // Its type is not registered: it is retried, and parked with an alert.
            json!({"eventTypeGlob": "*", "workflowType": "missing"}),
            // It is parked at once.
            json!({"eventTypeGlob": "*", "workflowType": "w", "inputMapper": {"x": "$.payload.none"}}),
        ] {
            stage
                .registry()
                .subscribe(&name(tenant), serde_json::from_value(subscription).unwrap())
                .await
                .unwrap();
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
        stage.sweep.wake(woken, Some(wakes_at + Duration::from_secs(30))).await.unwrap();
        wakes.push(wakes_at.elapsed());
        stage.sweep.sweep(None).await.unwrap();
        sweeps.push((began_at, simulation.take_sent().len()));
    }
    let told = told.lock().unwrap().len();
    Hour { sweeps, wakes, told }
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_slack_delays_no_drain_no_retry_and_no_schedule() {
    let with = an_hour_of_sweeps(false).await;
    assert!(with.told > 0, "there is something to tell");
    assert!(with.sweeps.iter().map(|(_, sent)| sent).sum::<usize>() > 200, "{:?}", with.sweeps);
    let without = an_hour_of_sweeps(true).await;
    assert_eq!(without.told, 0);
    assert_eq!(without.sweeps, with.sweeps);
    assert_eq!(without.wakes, with.wakes);
}

/// A dispatcher in the time of a simulation, and its tenants, each with a subscription.
async fn dispatcher(store: &Store, tenants: &[&str]) -> Stage {
    let began = Instant::now();
    let clock: Clock = Arc::new(move || at(BEGINNING + u64::try_from(began.elapsed().as_millis()).unwrap()));
    let options = StageOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("").unwrap(),
        slack: None,
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: clock.clone(),
    };
    let stage = Stage::new(&store.clients, &store.names, options).unwrap();
    for tenant in tenants {
        let workflow = json!({"workflowType": "w", "kind": "task", "createdAt": BEGINNING});
        stage.registry().register(&name(tenant), &serde_json::from_value(workflow).unwrap()).await.unwrap();
        let subscription = json!({"eventTypeGlob": "*", "workflowType": "w"});
        stage
            .registry()
            .subscribe(&name(tenant), serde_json::from_value(subscription).unwrap())
            .await
            .unwrap();
        let event = admitted(event(tenant, "e1", clock()));
        store.saver().save(&[event], clock()).await.pop().unwrap().unwrap();
    }
    stage
}

#[tokio::test(start_paused = true)]
async fn a_sweep_ends_in_time_though_the_bus_answers_no_claim() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let stage = dispatcher(&store, &["a", "b", "c"]).await;
    store.set_conditions(Arc::new(|request: &Request| {
        ((request.operation == "PutEvents").then(|| Duration::from_secs(3_600)), None)
    }));
    // A process that dies leaves claims.
    let tenants: BTreeSet<_> = ["a", "b", "c"].map(name).into();
    let killed = tokio::time::timeout(Duration::from_secs(20), stage.sweep.wake(tenants, None)).await;
    assert!(killed.is_err());
    tokio::time::sleep(Duration::from_secs(120)).await;
    let began = Instant::now();
    stage.sweep.sweep(Some(began + Duration::from_secs(10))).await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_that_holds_the_lease_waits_for_a_slow_bus_and_starts_its_task() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let stage = dispatcher(&store, &["a"]).await;
    store.set_conditions(Arc::new(|request: &Request| {
        ((request.operation == "PutEvents").then(|| Duration::from_secs(4)), None)
    }));
    let deadline = Instant::now() + Duration::from_secs(30);
    let woken = stage.sweep.wake(BTreeSet::from([name("a")]), Some(deadline)).await.unwrap();
    assert_eq!((woken.trouble, simulation.take_sent().len()), (0, 1), "{woken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_ends_in_time_though_it_cannot_see_which_drainers_stand_still() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let stage = dispatcher(&store, &["a", "b", "c"]).await;
    store.set_conditions(Arc::new(|request: &Request| {
        let hangs = request.operation == "GetItem" && request.about.contains("DRAIN#");
        (hangs.then(|| Duration::from_secs(3_600)), None)
    }));
    let began = Instant::now();
    stage.sweep.sweep(Some(began + Duration::from_secs(10))).await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_health_check_ends_in_time_though_the_tasks_of_a_tenant_cannot_be_listed() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let stage = dispatcher(&store, &["a"]).await;
    for tenant in ["a", "b", "c"] {
        store.control().put(&keys::busy_mark(tenant), &json!({"stamp": 1})).unwrap().send().await.unwrap();
    }
    store.set_conditions(Arc::new(|request: &Request| {
        let hangs = request.operation == "Query" && request.text().contains("TASKS#b");
        (hangs.then(|| Duration::from_secs(3_600)), None)
    }));
    let began = Instant::now();
    let deadline = began + Duration::from_secs(10);
    let checked = stage.health.check_health_until(&Thresholds::default(), deadline).await.unwrap();
    assert_eq!((checked.tenants, checked.trouble), (3, 1));
    assert!(began.elapsed() <= Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_sender_hears_no_error_of_an_accepted_event_though_a_run_that_waits_is_throttled() {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 1);
    let stage = dispatcher(&store, &[]).await;
    let clock: Clock = Arc::new(|| at(BEGINNING));
    let emitter = Emitter::with_clock(&store.clients, &store.names, name("t"), name("test"), clock);
    for (event_type, correlation_id, data) in [
        ("run_created", None, json!({"workflowName": "order", "input": {}})),
        ("run_started", None, json!({})),
        (
            "wait_created",
            Some("wait_01M7J3H2F8R3VED7N46ETP2001"),
            json!({"eventName": "paid", "matchCriteria": {"order": 1}}),
        ),
    ] {
        let event = json!({"eventType": event_type, "correlationId": correlation_id, "eventData": data});
        let event = serde_json::from_value(event).unwrap();
        Box::pin(stage.external_runs.append_external(&emitter, "r", event)).await.unwrap();
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    store.set_conditions(Arc::new(move |request: &Request| {
        let calls = request.operation == "UpdateItem" && request.text().contains("calledWaits");
        if calls {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        let code = "ProvisionedThroughputExceededException";
        (None, calls.then(|| Response::error(request.service, 400, code, "simulated")))
    }));
    let event = json!({"event": "paid", "match": {"order": 1}});
    let sent = stage.events.send_event(&emitter, serde_json::from_value(event).unwrap(), None).await;
    assert!(sent.is_ok(), "{sent:?}");
    let calls = calls.load(Ordering::SeqCst);
    assert!((2..=50).contains(&calls), "the run was notified {calls} times: patience within patience");
}
