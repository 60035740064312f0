//! Draining, step by step: the real drain code over the embedded store, with a clock that the test moves.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ledgerline_dispatch::{
    Dispatch, DispatchOptions, Drained, Drainers, NewSubscription, ParkedBecause, QueueUrls,
    SubscriptionChange,
};
use ledgerline_embedded::{Receive, Service};
use ledgerline_event::keys::Scope;
use ledgerline_event::{Event, Millis, Name, admit};
use ledgerline_ledger::{Clock, EventQuery, Payloads, Reader, telemetry::Metrics};
use ledgerline_subscription::WorkflowType;
use serde_json::{Value, json};

use crate::world::{Store, admitted, at, event, name};

const BEGIN: u64 = 1_767_453_739_000;

/// A store, a dispatcher, and a clock.
struct Ledger {
    store: Store,
    time: Arc<AtomicU64>,
    dispatch: Dispatch,
}

impl Ledger {
    async fn start() -> Self {
        let store = Store::start(None).await;
        let time = Arc::new(AtomicU64::new(BEGIN));
        let read = time.clone();
        let clock: Clock = Arc::new(move || at(read.load(Ordering::SeqCst)));
        let options = DispatchOptions {
            queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
            drainers: Drainers::parse("timeline=1h").unwrap(),
            slack: None,
            metrics: Metrics::silent(),
            ledger_flag: "--stage test".into(),
            clock,
        };
        let dispatch = Dispatch::new(&store.clients, &store.names, options).unwrap();
        Self { store, time, dispatch }
    }

    fn now(&self) -> Millis {
        at(self.time.load(Ordering::SeqCst))
    }

    fn advance(&self, ms: u64) {
        self.time.fetch_add(ms, Ordering::SeqCst);
    }

    async fn register(&self, tenant: &str, definition: Value) {
        let mut definition = definition;
        definition["createdAt"] = json!(self.now());
        let workflow_type: WorkflowType = serde_json::from_value(definition).unwrap();
        self.dispatch.register(&name(tenant), &workflow_type).await.unwrap();
    }

    async fn subscribe(&self, tenant: &str, subscription: Value) -> Name {
        let new: NewSubscription = serde_json::from_value(subscription).unwrap();
        self.dispatch.subscribe(&name(tenant), new).await.unwrap().subscription_id
    }

    async fn save(&self, event: Event) {
        let outcomes = self.store.saver().save(&[admitted(event)], self.now()).await;
        outcomes.into_iter().for_each(|outcome| drop(outcome.unwrap()));
    }

    async fn drain(&self, tenant: &str) -> Drained {
        self.dispatch.drain(&name(tenant), &name("workflow_runner"), None).await.unwrap()
    }

    /// Saves what is on the bus, as the saver would.
    async fn deliver(&self) {
        let queues = self.store.embedded.queues();
        let queue = &self.store.names.ingest_queue;
        loop {
            let receive = Receive { max: 10, wait: None, visibility_seconds: None };
            let messages = queues.receive_now(queue, &receive).unwrap();
            if messages.is_empty() {
                return;
            }
            for message in messages {
                let body: Value = serde_json::from_str(&message.body).unwrap();
                let admitted = admit(&body["detail"].to_string(), self.now()).unwrap();
                self.store.saver().save(&[admitted], self.now()).await.pop().unwrap().unwrap();
                queues.delete(queue, &message.receipt).unwrap();
            }
        }
    }

    /// Every event of a tenant with this type, delivered first.
    async fn events(&self, tenant: &str, event_type: &str) -> Vec<Event> {
        self.deliver().await;
        let payloads = Payloads::new(self.store.clients.s3.clone(), &self.store.names.payload_bucket);
        let reader = Reader::new(self.store.clients.dynamo.clone(), &self.store.names.events_table, payloads);
        let tenant = name(tenant);
        reader.all(&EventQuery::new(&tenant, Scope::Type(event_type))).await.unwrap()
    }

    /// How often each event was started, by `causedBy`.
    async fn starts(&self, tenant: &str) -> BTreeMap<String, usize> {
        let mut starts = BTreeMap::new();
        for pending in self.events(tenant, "Task Pending").await {
            let cause = pending.caused_by.unwrap();
            *starts.entry(cause.rsplit(':').next().unwrap().to_owned()).or_default() += 1;
        }
        starts
    }

    fn tasks(&self) -> Vec<Value> {
        let queues = self.store.embedded.queues();
        let mut tasks = Vec::new();
        loop {
            let receive = Receive { max: 10, wait: None, visibility_seconds: None };
            let messages = queues.receive_now(&self.store.names.task_queue, &receive).unwrap();
            if messages.is_empty() {
                return tasks;
            }
            tasks
                .extend(messages.iter().map(|message| serde_json::from_str::<Value>(&message.body).unwrap()));
        }
    }
}

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
    let other = Ledger { dispatch: another_process(&ledger).await, ..ledger };
    assert!(other.drain("t").await.triggered.is_empty());
    other.advance(10_000);
    let settled = other.drain("t").await;
    assert!(settled.triggered.is_empty());
    let state = other.dispatch.drainer_states(&name("t")).await.unwrap();
    assert_eq!(state[0].lag_ms, 0);
    assert_eq!(other.starts("t").await, BTreeMap::from([("e1".into(), 1)]));
}

async fn another_process(ledger: &Ledger) -> Dispatch {
    let time = ledger.time.clone();
    let options = DispatchOptions {
        queues: QueueUrls::find(&ledger.store.clients.sqs, &ledger.store.names).await.unwrap(),
        drainers: Drainers::parse("").unwrap(),
        slack: None,
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: Arc::new(move || at(time.load(Ordering::SeqCst))),
    };
    Dispatch::new(&ledger.store.clients, &ledger.store.names, options).unwrap()
}

#[tokio::test]
async fn a_poison_event_stops_the_drain_then_is_parked_and_can_be_started_later() {
    let ledger = Ledger::start().await;
    for tenant in ["poisoned", "other"] {
        ledger.register(tenant, json!({"workflowType": "reprice", "kind": "task"})).await;
        ledger
            .subscribe(
                tenant,
                json!({
                    "eventTypeGlob": "price.*", "workflowType": "reprice",
                    "inputMapper": {"price": "$.payload.new"},
                }),
            )
            .await;
    }
    let mut poison = event("poisoned", "e2", ledger.now().plus(1));
    poison.properties.remove("new");
    ledger.save(event("poisoned", "e1", ledger.now())).await;
    ledger.save(poison).await;
    // Of another entity, and still not before the one that cannot be started.
    let mut later = event("poisoned", "e3", ledger.now().plus(2));
    later.entity_id = name("another");
    ledger.save(later).await;
    ledger.advance(10_000);

    let mut attempts = 0;
    loop {
        let drained = ledger.drain("poisoned").await;
        attempts += 1;
        let Some(halted) = drained.halted_on_event_id else { break };
        assert_eq!(halted.as_str(), "e2");
        assert!(attempts < 5, "parked after five");
        assert_eq!(ledger.starts("poisoned").await, BTreeMap::from([("e1".into(), 1)]));
        let state = &ledger.dispatch.drainer_states(&name("poisoned")).await.unwrap()[0];
        assert!(state.last_error.as_ref().unwrap().contains("price"), "{state:?}");
        // Before its time nothing is tried.
        let early = ledger.drain("poisoned").await;
        assert_eq!(early.halted_on_event_id.unwrap().as_str(), "e2");
        // The other tenant goes on all the while.
        ledger.save(event("other", &format!("o{attempts}"), ledger.now())).await;
        assert_eq!(ledger.drain("other").await.triggered.len(), 1);
        let wait = drained.again_at.unwrap().get() - ledger.now().get();
        ledger.advance(wait);
    }
    assert_eq!(attempts, 5);
    assert_eq!(ledger.starts("poisoned").await, BTreeMap::from([("e1".into(), 1), ("e3".into(), 1)]));
    assert_eq!(ledger.events("poisoned", "workflow.dispatch_failed").await.len(), 1);
    let told = ledger.events("poisoned", "workflow.dispatch_parked").await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].properties["attempts"], 5);

    let tenant = name("poisoned");
    let parked = ledger.dispatch.parked(&tenant, false, 10, None).await.unwrap().items;
    assert_eq!(parked.len(), 1);
    assert_eq!((parked[0].attempts, parked[0].because), (5, ParkedBecause::Failed));
    let id = &parked[0].id;
    let error = ledger.dispatch.retry(&tenant, id).await.unwrap_err().to_string();
    assert!(error.contains("it failed again"), "{error}");
    let change: SubscriptionChange = serde_json::from_value(json!({"inputMapper": null})).unwrap();
    ledger.dispatch.change_subscription(&tenant, &parked[0].subscription_id, change).await.unwrap();
    let cursor = ledger.dispatch.drainer_states(&tenant).await.unwrap()[0].cursor.clone();
    let retried = ledger.dispatch.retry(&tenant, id).await.unwrap();
    assert!(retried.started.is_some() && !retried.already_started);
    assert!(ledger.dispatch.retry(&tenant, id).await.unwrap_err().to_string().contains("there is no"));
    assert_eq!(ledger.dispatch.drainer_states(&tenant).await.unwrap()[0].cursor, cursor);
    let all = BTreeMap::from([("e1".into(), 1), ("e2".into(), 1), ("e3".into(), 1)]);
    ledger.advance(10_000);
    ledger.drain("poisoned").await;
    assert_eq!(ledger.starts("poisoned").await, all);
}

#[tokio::test]
async fn halt_never_parks_and_goes_on_as_soon_as_the_cause_is_mended() {
    let ledger = Ledger::start().await;
    ledger
        .subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "later", "onFailure": "halt"}))
        .await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    for _ in 0..8 {
        let drained = ledger.drain("t").await;
        assert_eq!(drained.halted_on_event_id.unwrap().as_str(), "e1");
        ledger.advance(1_000_000);
    }
    assert!(ledger.dispatch.parked(&name("t"), false, 10, None).await.unwrap().items.is_empty());
    let retrying = ledger.dispatch.parked(&name("t"), true, 10, None).await.unwrap().items;
    assert_eq!(retrying[0].attempts, 8);
    assert!(retrying[0].reason.contains("`later` is not registered"));
    ledger.register("t", json!({"workflowType": "later", "kind": "task"})).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
    assert_eq!(ledger.events("t", "workflow.dispatch_failed").await.len(), 1);
}

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
    assert!(again.drain(&name("t"), &name("workflow_runner"), None).await.unwrap().triggered.is_empty());
    assert_eq!(ledger.starts("t").await["e1"], 8);
    let parked = ledger.dispatch.parked(&name("t"), false, 50, None).await.unwrap().items;
    assert_eq!(parked.len(), 4);
    assert!(parked.iter().all(|parked| parked.because == ParkedBecause::FanoutCap));
    let capped = ledger.events("t", "workflow.dispatch_capped").await;
    assert_eq!(capped.len(), 1);
    assert_eq!(capped[0].properties["subscriptionIds"].as_array().unwrap().len(), 4);

    // One is started after all, one is dropped; neither comes back.
    assert!(ledger.dispatch.retry(&name("t"), &parked[0].id).await.unwrap().started.is_some());
    ledger.dispatch.drop_parked(&name("t"), &parked[1].id).await.unwrap();
    let rewind = ledger.dispatch.plan_rewind(&name("t"), "workflow_runner", "e1", true, true).await.unwrap();
    assert_eq!(rewind.events, Some(1));
    ledger.dispatch.rewind(&name("t"), &rewind).await.unwrap();
    ledger.drain("t").await;
    assert_eq!(ledger.dispatch.parked(&name("t"), false, 50, None).await.unwrap().items.len(), 2);
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
    let parked = ledger.dispatch.parked(&name("t"), false, 50, None).await.unwrap().items;
    assert_eq!(parked.len(), 1);
    assert_eq!(parked[0].because, ParkedBecause::Loop);
}

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
    let rewind =
        ledger.dispatch.plan_rewind(&tenant, "workflow_runner", &an_hour_ago, false, true).await.unwrap();
    assert_eq!((rewind.events, rewind.epoch), (Some(60), 1));
    ledger.dispatch.rewind(&tenant, &rewind).await.unwrap();
    assert_eq!(ledger.drain("t").await.triggered.len(), 60);
    assert!(ledger.drain("t").await.triggered.is_empty());
    let starts = ledger.starts("t").await;
    for (event, count) in &starts {
        assert_eq!(*count, if event.as_str() >= "e060" { 2 } else { 1 }, "{event}");
    }

    // Only what had no start: an event that came meanwhile, and what a new subscription wants.
    let rewind =
        ledger.dispatch.plan_rewind(&tenant, "workflow_runner", &an_hour_ago, true, true).await.unwrap();
    ledger.dispatch.rewind(&tenant, &rewind).await.unwrap();
    assert!(ledger.drain("t").await.triggered.is_empty());
    let second =
        ledger.subscribe("t", json!({"eventTypeGlob": "price.changed", "workflowType": "reprice"})).await;
    let rewind = ledger.dispatch.plan_rewind(&tenant, "workflow_runner", "e100", true, true).await.unwrap();
    ledger.dispatch.rewind(&tenant, &rewind).await.unwrap();
    let drained = ledger.drain("t").await;
    assert_eq!(drained.triggered.len(), 20);
    assert!(drained.triggered.iter().all(|start| start.subscription_id == second));

    let future = ledger.now().plus(1).to_rfc3339();
    let error =
        ledger.dispatch.plan_rewind(&tenant, "workflow_runner", &future, false, false).await.unwrap_err();
    assert!(error.to_string().contains("to: ") && error.to_string().contains("future"), "{error}");
    let error =
        ledger.dispatch.plan_rewind(&tenant, "workflow_runner", "nobody", false, false).await.unwrap_err();
    assert!(error.to_string().contains("neither a time"), "{error}");
    let stale = ledger.dispatch.plan_rewind(&tenant, "workflow_runner", "e100", false, false).await.unwrap();
    ledger.drain("t").await;
    assert!(ledger.dispatch.rewind(&tenant, &stale).await.unwrap_err().to_string().contains("try again"));
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
    let rewind = ledger.dispatch.plan_rewind(&tenant, "workflow_runner", "e1", false, false).await.unwrap();
    ledger.dispatch.rewind(&tenant, &rewind).await.unwrap();
    assert!(ledger.drain("t").await.triggered.is_empty());
    let input = json!({"action": 8421}).as_object().unwrap().clone();
    assert_eq!(ledger.dispatch.start(&tenant, "push", input, "test").await.unwrap(), None);
    let input = json!({"action": 1}).as_object().unwrap().clone();
    assert!(ledger.dispatch.start(&tenant, "push", input, "test").await.unwrap().is_some());
    assert_eq!(ledger.events("t", "Task Pending").await.len(), 3);
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
        ledger.dispatch.start(&tenant, kind, input, "api:workflows").await
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
    let rewind =
        ledger.dispatch.plan_rewind(&name("t"), "workflow_runner", "e00-000", true, false).await.unwrap();
    ledger.dispatch.rewind(&name("t"), &rewind).await.unwrap();
    ledger.store.embedded.reset_requests();
    let drained = ledger.drain("t").await;
    let requests: u64 = ledger.store.embedded.requests().values().sum();
    println!("{} events, {requests} requests: {:?}", drained.processed, ledger.store.embedded.requests());
    assert_eq!(drained.processed, 2_000);
    // Four pages: a read and a write each; once per visit the lease, the late lane, and the empty read at the end.
    assert!(requests <= 3 * 4, "{requests}");

    // Marks are taken away by the sweep; after that nobody visits an idle tenant.
    ledger.dispatch.sweep(None).await.unwrap();
    ledger.store.embedded.reset_requests();
    let swept = ledger.dispatch.sweep(None).await.unwrap();
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
    ledger.dispatch.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await.len(), 1);
    ledger.save(event("t", "e2", ledger.now())).await;
    ledger.advance(10_000);
    ledger.dispatch.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await.len(), 1);
    ledger.advance(3_600_000);
    ledger.dispatch.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await.len(), 2);
    let wrong: NewSubscription =
        serde_json::from_value(json!({"eventTypeGlob": "*", "workflowType": "x", "drainerId": "nobody"}))
            .unwrap();
    let error = ledger.dispatch.subscribe(&name("t"), wrong).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "drainerId: there is no drainer `nobody`; this stage has `workflow_runner`, `timeline`"
    );
}

#[tokio::test]
async fn what_is_told_about_dispatch_does_not_lead_to_more_of_it() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "note", "kind": "task"})).await;
    // More than may start on an event, and on what is told about that.
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

#[tokio::test]
async fn an_event_whose_payload_is_missing_is_not_started_with_less() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "note", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "note"})).await;
    let bucket = &ledger.store.names.payload_bucket;
    for (id, body) in [("gone", None), ("broken", Some("no JSON"))] {
        let mut part = event("t", id, ledger.now());
        let key = format!("events/{}/{id}-payload.json", part.entity_id);
        if let Some(body) = body {
            let put = ledger
                .store
                .clients
                .s3
                .put_object()
                .bucket(bucket)
                .key(&key)
                .body(body.as_bytes().to_vec().into());
            put.send().await.unwrap();
        }
        part.properties = json!({"_s3Overflow": {"bucket": bucket, "key": key}}).as_object().unwrap().clone();
        ledger.save(part).await;
        let drained = ledger.drain("t").await;
        assert!(drained.triggered.is_empty());
        assert!(drained.halted_on_event_id.is_some());
        let parked = ledger.dispatch.parked(&name("t"), true, 10, None).await.unwrap().items;
        assert!(
            parked.iter().all(|parked| parked.reason.contains("overflow") || parked.reason.contains("JSON")),
            "{parked:?}"
        );
    }
}

#[tokio::test]
async fn a_dropped_start_of_a_keyed_type_stays_dropped() {
    let ledger = Ledger::start().await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "keyed"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    assert!(ledger.drain("t").await.halted_on_event_id.is_some());
    let retrying = ledger.dispatch.parked(&name("t"), true, 10, None).await.unwrap().items;
    ledger.dispatch.drop_parked(&name("t"), &retrying[0].id).await.unwrap();
    ledger.register("t", json!({"workflowType": "keyed", "kind": "task", "idempotencyKey": "$.id"})).await;
    ledger.advance(60_000);
    assert!(ledger.drain("t").await.triggered.is_empty());
    ledger.save(event("t", "e2", ledger.now())).await;
    assert_eq!(ledger.drain("t").await.triggered.len(), 1);
}
