//! The check of running tasks each minute: the events and alerts that it sends, and what happens to tasks whose worker
//! has died.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use aws_sdk_dynamodb::types::AttributeValue;
use health_check::Handler;
use ledgerline_alert::Slack as Webhook;
use ledgerline_drains::Drainers;
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::{
    Event, Name, Seconds,
    catalogue::{MemoryUsage, TaskHeartbeat, TaskProcessingStarted},
};
use ledgerline_jobs::{HealthChecked, TaskLease, Thresholds};
use ledgerline_ledger::telemetry::Metrics;
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::keys;
use serde_json::{Value, json};
use tokio::time::Instant;

use ledgerline_test_support::{
    BEGIN, Held, Ledger, Store, at, event, name,
    slack::{Slack, Trouble},
};

const MINUTE: u64 = 60_000;

/// A ledger whose tasks are checked, and the Slack that gets the alerts.
struct Watch {
    ledger: Ledger,
    slack: Slack,
}

impl Watch {
    async fn start() -> Self {
        Self::with(None, &[]).await
    }

    async fn with(interceptor: Option<Interceptor>, troubles: &[Trouble]) -> Self {
        let store = Store::start(interceptor).await;
        let (slack, url) = Slack::start(troubles).await;
        let parameter = store.names.slack_webhook_parameter.clone();
        let put = store.clients.ssm.put_parameter().name(&parameter).value(url);
        put.r#type(aws_sdk_ssm::types::ParameterType::SecureString).send().await.unwrap();
        let time = Arc::new(AtomicU64::new(BEGIN));
        let read = time.clone();
        let options = StageOptions {
            queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
            drainers: Drainers::parse("").unwrap(),
            slack: Some(Webhook::new(store.clients.ssm.clone(), parameter)),
            metrics: Metrics::silent(),
            ledger_flag: "--stage test".into(),
            clock: Arc::new(move || at(read.load(Ordering::SeqCst))),
        };
        let stage = Stage::new(&store.clients, &store.names, options).unwrap();
        Self { ledger: Ledger { store, time, stage }, slack }
    }

    async fn check(&self) -> HealthChecked {
        let handler = Handler { stage: self.ledger.stage.clone(), thresholds: Thresholds::default() };
        handler.handle().await.unwrap()
    }

    /// The next minute's check.
    async fn next_check(&self) -> HealthChecked {
        self.ledger.advance(MINUTE);
        self.check().await
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.slack.messages.lock().unwrap())
    }

    /// Has a worker begin a task and hold it by a lease of this length.
    async fn running(&self, tenant: &str, id: &str, lease: Duration) -> TaskLease {
        self.ledger.submit_task(tenant, json!({ "name": "scrape-store", "requestId": id })).await;
        self.ledger.settle(tenant).await;
        self.take(tenant, lease).await
    }

    async fn take(&self, tenant: &str, lease: Duration) -> TaskLease {
        let Held { lease: mut held, .. } = self.ledger.take_all().await.pop().unwrap();
        self.ledger.stage.tasks.renew(&mut held, lease * 2 / 3).await.unwrap();
        let started = TaskProcessingStarted {
            request_id: held.message.request_id.to_string(),
            job_id: None,
            effective_until: held.until.seconds(),
            worker_id: held.worker_id.clone(),
            process_id: 7,
        };
        let emitter = self.ledger.stage.tasks.task_emitter(&held);
        emitter.catalogued(held.message.request_id.as_str(), started).emit().await.unwrap();
        self.ledger.settle(tenant).await;
        held
    }

    async fn heartbeat(&self, tenant: &str, lease: &TaskLease) {
        let beat = TaskHeartbeat {
            request_id: lease.message.request_id.to_string(),
            effective_until: lease.until.seconds(),
            heartbeat_number: 1,
            elapsed_ms: 1,
            worker_id: lease.worker_id.clone(),
            process_id: 7,
            memory_usage: MemoryUsage { rss: 1 },
            last_activity: None,
        };
        let emitter = self.ledger.stage.tasks.task_emitter(lease);
        emitter.catalogued(lease.message.request_id.as_str(), beat).emit().await.unwrap();
        self.ledger.settle(tenant).await;
    }

    async fn mark(&self, tenant: &str) -> Option<Value> {
        self.ledger.store.control().get(&keys::busy_mark(tenant)).await.unwrap()
    }

    async fn checks(&self, tenant: &str) -> Vec<Event> {
        self.ledger.events(tenant, "Task Health Check").await
    }
}

const LONG: Duration = Duration::from_secs(3 * 60 * 60);
const SHORT: Duration = Duration::from_secs(90);

#[tokio::test]
async fn silence_of_a_task_is_alerted_as_a_warning_as_critical_and_when_it_is_over() {
    let watch = Watch::start().await;
    let lease = watch.running("t", "req-1", LONG).await;
    let mut told = Vec::new();
    for minute in 1..=7 {
        let checked = watch.next_check().await;
        assert_eq!((checked.tasks.total_processing, checked.trouble), (1, 0));
        told.extend(watch.told().into_iter().map(|text| (minute, text)));
    }
    let [(2, warning), (5, critical)] = &told[..] else { panic!("{told:?}") };
    assert!(warning.starts_with(":rotating_light: *Running tasks of t*\n*warning* req-1 (scrape-store): "));
    assert!(critical.contains("*critical* req-1") && critical.contains("last heard of 5 min ago, worker-1"));
    assert!(critical.contains("`ledgerline --stage test --tenant 't' tasks --state processing`"));

    watch.heartbeat("t", &lease).await;
    watch.next_check().await;
    let [over] = &watch.told()[..] else { panic!("recovered") };
    assert!(over.starts_with(":white_check_mark:") && over.contains("*recovered* req-1"), "{over}");
    watch.check().await;
    assert!(watch.told().is_empty());
    assert!(watch.ledger.next_message().is_none(), "its worker is there: nothing is given back");
}

#[tokio::test]
async fn a_health_event_is_emitted_once_a_minute_for_the_running_tasks() {
    let watch = Watch::start().await;
    watch.running("t", "req-1", LONG).await;
    watch.running("t", "req-2", LONG).await;
    watch.running("other", "req-1", LONG).await;
    watch.ledger.advance(2 * MINUTE);
    watch.check().await;
    watch.check().await;
    let [check] = &watch.checks("t").await[..] else { panic!("one event") };
    assert_eq!(
        check.properties["summary"],
        json!({"totalProcessing": 2, "healthy": 0, "warning": 2, "critical": 0, "overtime": 0})
    );
    let tasks = check.properties["tasks"].as_array().unwrap();
    let ids: Vec<_> = tasks.iter().map(|task| task["requestId"].as_str().unwrap()).collect();
    assert_eq!(ids, ["req-2", "req-1"]);
    let mut fields: Vec<_> = tasks[0].as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["elapsed", "health", "lastEventType", "requestId", "timeSinceLastEvent", "workerId"]);
    assert_eq!(
        (&tasks[0]["lastEventType"], &tasks[0]["workerId"]),
        (&json!("Task Processing Started"), &json!("worker-1"))
    );
    assert_eq!(
        (check.entity_type.as_str(), check.context.origin.as_deref()),
        ("HEALTH", Some("health-check"))
    );
    assert_eq!(watch.checks("other").await.len(), 1);
    watch.next_check().await;
    assert_eq!(watch.checks("t").await.len(), 2);
}

#[tokio::test]
async fn an_attempt_that_runs_too_long_is_in_overtime_though_its_heartbeats_arrive() {
    let watch = Watch::start().await;
    let lease = watch.running("t", "req-1", LONG).await;
    watch.ledger.advance(60 * MINUTE);
    watch.heartbeat("t", &lease).await;
    assert_eq!(watch.check().await.tasks.overtime, 1);
    let [text] = &watch.told()[..] else { panic!("told") };
    assert!(text.contains("*overtime* req-1 (scrape-store): runs for 60 min"), "{text}");
    watch.ledger.stage.tasks.end(&lease, completed()).await.unwrap();
    watch.ledger.settle("t").await;
    watch.next_check().await;
    let [text] = &watch.told()[..] else { panic!("told") };
    assert!(text.contains("*completed* req-1"), "{text}");
}

fn completed() -> ledgerline_jobs::TaskEnd {
    ledgerline_jobs::TaskEnd::Completed { output: json!(1), duration_ms: 1, exit_code: 0, usage: None }
}

#[tokio::test]
async fn a_task_whose_worker_is_lost_is_enqueued_again_once_per_attempt() {
    let watch = Watch::start().await;
    watch.running("t", "req-1", SHORT).await;
    watch.next_check().await;
    assert!(watch.ledger.next_message().is_none(), "its lease is not over");
    for attempt in 1..=2 {
        watch.ledger.advance(MINUTE);
        assert_eq!(watch.check().await.given_back, 1);
        assert_eq!(watch.next_check().await.given_back, 0);
        let told = watch.told().join("\n");
        assert!(told.contains("its worker is gone, and it was given back to the queue"), "{told}");
        let lease = watch.take("t", SHORT).await;
        assert_eq!(lease.attempt, attempt + 1);
        assert!(watch.ledger.next_message().is_none(), "one message");
        watch.next_check().await;
        watch.told();
    }
}

#[tokio::test]
async fn pending_effects_of_a_lost_attempt_are_sent_before_its_task_is_enqueued_again() {
    let watch = Watch::start().await;
    watch.running("t", "req-1", SHORT).await;
    let unsent = json!({"messages": [{"queue": "tasks", "group": "t", "body": "unsent"}]}).to_string();
    let update = watch.ledger.store.control().update(&keys::task_record("t", "req-1", 1));
    let update = update
        .update_expression("SET #state = :pending, effects = :effects, claimId = :id REMOVE effectsKey")
        .expression_attribute_names("#state", "state")
        .expression_attribute_values(":pending", AttributeValue::S("pending".into()))
        .expression_attribute_values(":effects", AttributeValue::S(unsent))
        .expression_attribute_values(":id", AttributeValue::S("evnt_x".into()));
    update.send().await.unwrap();
    watch.ledger.advance(3 * MINUTE);
    watch.check().await;
    let mut bodies: Vec<String> =
        std::iter::from_fn(|| watch.ledger.next_message()).map(|message| message.body).collect();
    bodies.sort();
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[0], "unsent");
    assert!(bodies[1].contains("scrape-store"));
}

#[tokio::test]
async fn a_worker_that_renews_or_has_released_its_lease_is_not_lost_whatever_the_events_say() {
    let watch = Watch::start().await;
    let mut renewed = watch.running("t", "req-1", SHORT).await;
    let let_go = watch.running("t", "req-2", SHORT).await;
    watch.ledger.advance(MINUTE);
    watch.ledger.stage.tasks.renew(&mut renewed, LONG).await.unwrap();
    watch.ledger.stage.tasks.abandon(&let_go).await.unwrap();
    watch.ledger.advance(2 * MINUTE);
    assert_eq!(watch.check().await.given_back, 0);
    assert!(watch.ledger.next_message().is_none());
}

/// `Task Processing Started` from a worker that takes no leases.
fn foreign(id: &str, until: Seconds, now: u64) -> Event {
    let mut started = event("t", &format!("e-{id}"), at(now));
    started.event_type = name("Task Processing Started");
    started.entity_type = name("TASK");
    started.entity_id = name(id);
    let properties = json!({"requestId": id, "workerId": "script-1", "effectiveUntil": until});
    started.properties = properties.as_object().unwrap().clone();
    started
}

#[tokio::test]
async fn a_worker_without_leases_is_lost_when_the_time_that_it_announced_has_passed() {
    let watch = Watch::start().await;
    watch.ledger.submit_task("t", json!({ "name": "scrape-store", "requestId": "req-1" })).await;
    watch.ledger.settle("t").await;
    let message = watch.ledger.next_message().unwrap();
    watch.ledger.delete(&message);
    let now = watch.ledger.now();
    for id in ["req-1", "nobody-knows"] {
        watch.ledger.save(foreign(id, now.plus(SHORT.as_millis() as u64).seconds(), now.get())).await;
    }
    watch.ledger.settle("t").await;
    watch.next_check().await;
    assert!(watch.ledger.next_message().is_none());
    watch.next_check().await;
    assert_eq!(watch.ledger.next_message().unwrap().body, message.body);
    let told = watch.told().join("\n");
    assert!(
        told.contains("*warning* nobody-knows") && told.contains("only the queue can bring it again"),
        "{told}"
    );
    watch.next_check().await;
    assert!(watch.ledger.next_message().is_none(), "once");
}

#[tokio::test]
async fn a_tenant_is_checked_while_it_has_running_tasks_and_some_minutes_longer() {
    let watch = Watch::start().await;
    assert_eq!(watch.check().await.tenants, 0);
    let lease = watch.running("t", "req-1", LONG).await;
    watch.next_check().await;
    watch.ledger.stage.tasks.end(&lease, completed()).await.unwrap();
    watch.ledger.settle("t").await;
    for _ in 0..10 {
        watch.next_check().await;
        assert!(watch.mark("t").await.is_some(), "an index may be behind");
    }
    // Another task begins just before the mark would go.
    let lease = watch.running("t", "req-2", LONG).await;
    watch.ledger.stage.tasks.end(&lease, completed()).await.unwrap();
    watch.ledger.settle("t").await;
    for _ in 0..11 {
        assert!(watch.mark("t").await.is_some());
        watch.next_check().await;
    }
    assert_eq!(watch.mark("t").await, None);
    watch.running("t", "req-3", LONG).await;
    assert_eq!(watch.next_check().await.tasks.total_processing, 1);
    assert_eq!(watch.checks("t").await.len(), 2, "only while there were running tasks");
}

#[tokio::test]
async fn an_alert_that_slack_did_not_take_is_sent_by_a_sweep() {
    let watch = Watch::with(None, &[(404, None)]).await;
    watch.running("t", "req-1", LONG).await;
    watch.ledger.advance(2 * MINUTE);
    watch.check().await;
    assert!(watch.told().is_empty());
    watch.next_check().await;
    assert!(watch.told().is_empty(), "nothing has changed since");
    watch.ledger.stage.sweep.sweep(None).await.unwrap();
    assert!(watch.told()[0].contains("*warning* req-1"));
}

#[tokio::test]
async fn a_health_check_that_dies_before_it_records_its_alerts_repeats_them() {
    let dies = Arc::new(AtomicBool::new(false));
    let dying = dies.clone();
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body);
        let remembers = call.operation == "UpdateItem" && body.contains("unwell") && moment == Moment::Before;
        let verdict = match remembers && dying.load(Ordering::SeqCst) {
            true => Verdict::Fail { status: 500, code: "InternalServerError".into() },
            false => Verdict::Proceed,
        };
        Box::pin(async move { verdict })
    });
    let watch = Watch::with(Some(interceptor), &[]).await;
    watch.running("t", "req-1", LONG).await;
    watch.ledger.advance(2 * MINUTE);
    dies.store(true, Ordering::SeqCst);
    assert_eq!(watch.check().await.trouble, 1);
    dies.store(false, Ordering::SeqCst);
    // In the same minute another check may have claimed the alert, and may have seen less.
    watch.check().await;
    watch.next_check().await;
    watch.next_check().await;
    watch.ledger.stage.sweep.sweep(None).await.unwrap();
    let told = watch.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|text| text.contains("*warning* req-1")));
}

#[tokio::test]
async fn trouble_with_one_tenant_leaves_the_others_alone() {
    let watch = Watch::start().await;
    watch.running("t", "req-1", LONG).await;
    let no_tenant =
        watch.ledger.store.control().put(&keys::busy_mark("a#b"), &json!({ "stamp": 1 })).unwrap();
    no_tenant.send().await.unwrap();
    let checked = watch.next_check().await;
    assert_eq!((checked.tenants, checked.trouble, checked.tasks.healthy), (2, 1, 1));
    assert_eq!(watch.checks("t").await.len(), 1);
}

#[tokio::test]
async fn a_health_check_out_of_time_enqueues_one_lost_task_of_a_tenant_and_the_next_check_the_rest() {
    let watch = Watch::start().await;
    for id in ["req-1", "req-2", "req-3"] {
        watch.running("t", id, SHORT).await;
    }
    watch.ledger.advance(3 * MINUTE);
    for round in 0..4 {
        let over = watch.ledger.stage.health.check_health_until(&Thresholds::default(), Instant::now()).await;
        assert_eq!(over.unwrap().given_back, usize::from(round < 3), "round {round}");
    }
}

#[tokio::test]
async fn a_lost_task_that_cannot_be_enqueued_keeps_no_other_from_its_turn_when_time_is_short() {
    let watch = Watch::start().await;
    for id in ["req-1", "req-2"] {
        watch.running("t", id, SHORT).await;
    }
    // The newest comes first, and what it has claimed cannot be read.
    let update = watch.ledger.store.control().update(&keys::task_record("t", "req-2", 1));
    let update = update
        .update_expression("SET #state = :pending, effects = :effects")
        .expression_attribute_names("#state", "state")
        .expression_attribute_values(":pending", AttributeValue::S("pending".into()))
        .expression_attribute_values(":effects", AttributeValue::S("{".into()));
    update.send().await.unwrap();
    watch.ledger.advance(2 * MINUTE);
    let (mut given_back, mut trouble) = (0, 0);
    for _ in 0..2 {
        watch.ledger.advance(MINUTE);
        let over = watch.ledger.stage.health.check_health_until(&Thresholds::default(), Instant::now()).await;
        let over = over.unwrap();
        (given_back, trouble) = (given_back + over.given_back, trouble + over.trouble);
    }
    assert_eq!((given_back, trouble), (1, 1));
}

#[tokio::test]
async fn a_health_check_that_is_killed_among_the_tasks_without_a_worker_continues_where_it_was() {
    let arrived = Arc::new(tokio::sync::Notify::new());
    let arrives = arrived.clone();
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let looks = call.operation == "Query" && String::from_utf8_lossy(&call.body).contains("TASKDUE");
        let arrives = arrives.clone();
        Box::pin(async move {
            if looks && moment == Moment::Before {
                arrives.notify_one();
                std::future::pending::<()>().await;
            }
            Verdict::Proceed
        })
    });
    let watch = Watch::with(Some(interceptor), &[]).await;
    // More than are checked at the same time.
    for tenant in ["a", "b", "c", "d", "e", "f"] {
        watch.running(tenant, "req-1", LONG).await;
    }
    // A check without a stored position begins at a random tenant.
    let (key, control) = (keys::sweep_record("HEALTH"), watch.ledger.store.control());
    control.put(&key, &json!({"after": "c"})).unwrap().send().await.unwrap();
    let stage = watch.ledger.stage.clone();
    let check =
        tokio::spawn(
            async move { stage.health.check_health_until(&Thresholds::default(), Instant::now()).await },
        );
    arrived.notified().await;
    check.abort();
    let place: Option<Value> = control.get(&key).await.unwrap();
    assert_eq!(place.unwrap()["after"], "a");
}

#[tokio::test]
async fn more_than_a_thousand_running_tasks_are_one_event_with_all_of_them() {
    let watch = Watch::start().await;
    let now = watch.ledger.now();
    let saver = watch.ledger.store.saver();
    // Long ids: what is remembered of them does not fit into a record either.
    let ids: Vec<Name> = (0..1_234).map(|number| name(&format!("req-{number:0100}"))).collect();
    for some in ids.chunks(100) {
        let events = some
            .iter()
            .map(|id| ledgerline_test_support::admitted(foreign(id, now.seconds().plus(9_000), now.get())));
        let events: Vec<_> = events.collect();
        saver.save(&events, now).await.into_iter().for_each(|saved| drop(saved.unwrap()));
    }
    watch.ledger.settle("t").await;
    watch.ledger.advance(6 * MINUTE);
    assert_eq!(watch.check().await.tasks.critical, 1_234);
    let [text] = &watch.told()[..] else { panic!("one message") };
    assert!(text.contains("… and 1224 more"), "{text}");
    let [check] = &watch.checks("t").await[..] else { panic!("one event") };
    let mut found: Vec<_> = check.properties["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["requestId"].as_str().unwrap())
        .collect();
    found.sort_unstable();
    assert_eq!(found, ids.iter().map(Name::as_str).collect::<Vec<_>>());
    watch.next_check().await;
    assert!(watch.told().is_empty(), "all of them are remembered");
}
