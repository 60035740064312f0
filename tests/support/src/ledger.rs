//! What the tests of draining stand on: the real drain code over the embedded store, with a clock that the test moves.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ledgerline_drains::{Drained, Drainers, NewSubscription};
use ledgerline_embedded::{Interceptor, Receive};
use ledgerline_event::keys::Scope;
use ledgerline_event::{Event, Millis, Name, validate};
use ledgerline_ledger::{Clock, EventQuery, Reader, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::Payloads;
use ledgerline_subscription::WorkflowType;
use serde_json::{Value, json};

use crate::{Store, admitted, at, name};

/// When the clock of every ledger begins.
pub const BEGIN: u64 = 1_767_453_739_000;

/// A store, a dispatcher, and a clock.
pub struct Ledger {
    /// The embedded services.
    pub store: Store,
    /// The clock, which only the test moves.
    pub time: Arc<AtomicU64>,
    /// The code under test.
    pub stage: Stage,
}

impl Ledger {
    /// A ledger without faults.
    pub async fn start() -> Self {
        Self::with(None).await
    }

    /// A ledger whose requests the interceptor sees.
    pub async fn with(interceptor: Option<Interceptor>) -> Self {
        Self::over(Store::start(interceptor).await, Arc::new(AtomicU64::new(BEGIN))).await
    }

    /// A ledger whose queues, too, go by the clock that the test moves.
    pub async fn on_one_clock(interceptor: Option<Interceptor>) -> Self {
        let time = Arc::new(AtomicU64::new(BEGIN));
        let own = time.clone();
        let options = ledgerline_embedded::Options {
            interceptor,
            clock: Arc::new(move || own.load(Ordering::SeqCst)),
            ..Default::default()
        };
        Self::over(Store::with(options).await, time).await
    }

    async fn over(store: Store, time: Arc<AtomicU64>) -> Self {
        let clock = clock_of(&time);
        let options = StageOptions {
            queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
            drainers: Drainers::parse("timeline=1h").unwrap(),
            slack: None,
            metrics: Metrics::silent(),
            ledger_flag: "--stage test".into(),
            clock,
        };
        let stage = Stage::new(&store.clients, &store.names, options).unwrap();
        Self { store, time, stage }
    }

    /// The clock that the test moves.
    pub fn clock(&self) -> Clock {
        clock_of(&self.time)
    }

    /// The time of its clock.
    pub fn now(&self) -> Millis {
        at(self.time.load(Ordering::SeqCst))
    }

    /// Lets time pass.
    pub fn advance(&self, ms: u64) {
        self.time.fetch_add(ms, Ordering::SeqCst);
    }

    /// Registers a workflow type.
    pub async fn register(&self, tenant: &str, definition: Value) {
        let mut definition = definition;
        definition["createdAt"] = json!(self.now());
        let workflow_type: WorkflowType = serde_json::from_value(definition).unwrap();
        self.stage.registry().register(&name(tenant), &workflow_type).await.unwrap();
    }

    /// Makes a subscription, and answers its id.
    pub async fn subscribe(&self, tenant: &str, subscription: Value) -> Name {
        let new: NewSubscription = serde_json::from_value(subscription).unwrap();
        self.stage.registry().subscribe(&name(tenant), new).await.unwrap().subscription_id
    }

    /// Saves an event, past bus and queue.
    pub async fn save(&self, event: Event) {
        let outcomes = self.store.saver().save(&[admitted(event)], self.now()).await;
        outcomes.into_iter().for_each(|outcome| drop(outcome.unwrap()));
    }

    /// One visit of the drainer `workflow_runner`.
    pub async fn drain(&self, tenant: &str) -> Drained {
        self.stage.drains.drain(&name(tenant), &name("workflow_runner"), None).await.unwrap()
    }

    /// Saves what is on the bus, as the saver would. Returns how many events that were.
    pub async fn deliver(&self) -> usize {
        let mut delivered = 0;
        let queues = self.store.embedded.queues();
        let queue = &self.store.names.ingest_queue;
        loop {
            let receive = Receive { max: 10, wait: None, visibility_seconds: None };
            let messages = queues.receive_now(queue, &receive).unwrap();
            if messages.is_empty() {
                return delivered;
            }
            delivered += messages.len();
            for message in messages {
                let body: Value = serde_json::from_str(&message.body).unwrap();
                let admitted = validate(&body["detail"].to_string(), self.now()).unwrap();
                self.store.saver().save(&[admitted], self.now()).await.pop().unwrap().unwrap();
                queues.delete(queue, &message.receipt).unwrap();
            }
        }
    }

    /// Every event of a tenant with this type, delivered first.
    pub async fn events(&self, tenant: &str, event_type: &str) -> Vec<Event> {
        self.deliver().await;
        let payloads = Payloads::new(self.store.clients.s3.clone(), &self.store.names.payload_bucket);
        let reader = Reader::new(self.store.clients.dynamo.clone(), &self.store.names.events_table, payloads);
        let tenant = name(tenant);
        reader.all(&EventQuery::new(&tenant, Scope::Type(event_type))).await.unwrap()
    }

    /// How often each event was started, by `causedBy`.
    pub async fn starts(&self, tenant: &str) -> BTreeMap<String, usize> {
        let mut starts = BTreeMap::new();
        for pending in self.events(tenant, "Task Pending").await {
            let cause = pending.caused_by.unwrap();
            *starts.entry(cause.rsplit(':').next().unwrap().to_owned()).or_default() += 1;
        }
        starts
    }

    /// The messages on the task queue; they are hidden afterwards.
    pub fn tasks(&self) -> Vec<Value> {
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

fn clock_of(time: &Arc<AtomicU64>) -> Clock {
    let time = time.clone();
    Arc::new(move || at(time.load(Ordering::SeqCst)))
}

/// A dispatcher that remembers nothing.
pub async fn another_process(ledger: &Ledger) -> Stage {
    let time = ledger.time.clone();
    let options = StageOptions {
        queues: QueueUrls::find(&ledger.store.clients.sqs, &ledger.store.names).await.unwrap(),
        drainers: Drainers::parse("").unwrap(),
        slack: None,
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: Arc::new(move || at(time.load(Ordering::SeqCst))),
    };
    Stage::new(&ledger.store.clients, &ledger.store.names, options).unwrap()
}
