//! What tests stand on: a running local mode, or the store alone with faults of the test's choosing.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use ledgerline::local::{Local, LocalOptions, Parameters, provision, wiring};
use ledgerline_embedded::{Embedded, Hook};
use ledgerline_event::{Admitted, Context, Event, Keyed, Millis, Name};
use ledgerline_ledger::{Clients, Names, Payloads, Reader, Saver, control::ControlTable};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) type Item = HashMap<String, AttributeValue>;

/// Long enough for a loaded machine; nothing waits this long when all is well.
const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until `probe` answers, looking again and again; a probe that takes long is made less often, for what it waits
/// for needs the machine too.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let began = Instant::now();
    loop {
        let looked = Instant::now();
        if let Some(found) = probe().await {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "waited in vain until {what}");
        tokio::time::sleep(looked.elapsed().clamp(Duration::from_millis(5), Duration::from_secs(1))).await;
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new("name", text).unwrap()
}

pub(crate) fn at(ms: u64) -> Millis {
    Millis::try_from(ms).unwrap()
}

pub(crate) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(crate) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// Local mode in a folder of its own.
pub(crate) struct World {
    pub(crate) local: Local,
    pub(crate) folder: TempDir,
    pub(crate) http: reqwest::Client,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut LocalOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = LocalOptions::new(folder.path());
        change(&mut options);
        let local = Box::pin(Local::start(options)).await.unwrap();
        Self { local, folder, http: reqwest::Client::new() }
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.local.clients
    }

    pub(crate) fn reader(&self) -> Reader {
        let names = &self.local.names;
        let payloads = Payloads::new(self.clients().s3.clone(), &names.payload_bucket);
        Reader::new(self.clients().dynamo.clone(), &names.events_table, payloads)
    }

    pub(crate) fn control(&self) -> ControlTable {
        ControlTable::new(self.clients().dynamo.clone(), &self.local.names.control_table)
    }

    /// Puts details on the bus as a plain AWS client would.
    pub(crate) async fn put_events(&self, details: &[Value]) {
        for chunk in details.chunks(10) {
            let entries = chunk.iter().map(|detail| {
                PutEventsRequestEntry::builder()
                    .event_bus_name(&self.local.names.bus)
                    .source("task-workflow.test")
                    .detail_type("log-event")
                    .detail(detail.to_string())
                    .build()
            });
            let answer =
                self.clients().events.put_events().set_entries(Some(entries.collect())).send().await.unwrap();
            assert_eq!(answer.failed_entry_count(), 0);
        }
    }

    /// Every row of the events table.
    pub(crate) async fn rows(&self) -> Vec<Item> {
        scan(self.clients(), &self.local.names.events_table).await
    }

    /// Waits until the table has at least `count` rows and returns them.
    pub(crate) async fn rows_at_least(&self, count: usize) -> Vec<Item> {
        until("the rows are there", || async { Some(self.rows().await).filter(|rows| rows.len() >= count) })
            .await
    }

    /// Waits until nothing is on its way: neither queue holds a message.
    pub(crate) async fn quiet(&self) {
        let queues = self.local.embedded.queues();
        until("the queues are empty", || async {
            let busy = [&self.local.names.ingest_queue, &self.local.names.dead_letter_queue].into_iter().any(
                |queue| {
                    let counts = queues.counts(queue).unwrap();
                    counts.visible + counts.in_flight + counts.delayed > 0
                },
            );
            (!busy).then_some(())
        })
        .await;
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let request = self.http.get(format!("{}{path}", self.local.state.api_url));
        self.answer(request.bearer_auth(&self.local.state.api_key)).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let request = self.http.post(format!("{}{path}", self.local.state.api_url)).body(body);
        self.answer(request.bearer_auth(&self.local.state.api_key)).await
    }

    pub(crate) async fn answer(&self, request: reqwest::RequestBuilder) -> (u16, Value) {
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!(kind, if status < 400 { "application/json" } else { "application/problem+json" });
        (status, answer.json().await.unwrap())
    }
}

/// The store alone: tables, queues and bucket in memory, with faults from a hook.
pub(crate) struct Store {
    pub(crate) embedded: Embedded,
    pub(crate) clients: Clients,
    pub(crate) names: Names,
}

impl Store {
    pub(crate) async fn start(hook: Option<Hook>) -> Self {
        Self::with(ledgerline_embedded::Options { hook, ..Default::default() }).await
    }

    pub(crate) async fn with(options: ledgerline_embedded::Options) -> Self {
        let embedded = Embedded::start(options).await.unwrap();
        let clients = without_retries(&embedded.endpoint());
        let names = Names::of_stage("test");
        provision(&clients, &names, &wiring(&names), &Parameters::default()).await.unwrap();
        Self { embedded, clients, names }
    }

    pub(crate) fn control(&self) -> ControlTable {
        ControlTable::new(self.clients.dynamo.clone(), &self.names.control_table)
    }

    pub(crate) fn saver(&self) -> Saver {
        Saver::new(self.clients.dynamo.clone(), &self.names.events_table, self.control(), 0)
    }
}

/// Clients that meet every fault at once: retries of the SDK would hide them behind waiting.
pub(crate) fn without_retries(endpoint: &str) -> Clients {
    let credentials = aws_sdk_dynamodb::config::Credentials::new("test", "test", None, None, "test");
    let config = aws_config::SdkConfig::builder()
        .behavior_version(aws_config::BehaviorVersion::latest())
        .region(aws_config::Region::new("us-east-1"))
        .endpoint_url(endpoint)
        .credentials_provider(aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials))
        .retry_config(aws_config::retry::RetryConfig::disabled())
        .build();
    Clients::new(&config)
}

pub(crate) async fn scan(clients: &Clients, table: &str) -> Vec<Item> {
    let mut pages =
        clients.dynamo.scan().table_name(table).consistent_read(true).into_paginator().items().send();
    let mut rows = Vec::new();
    while let Some(row) = pages.next().await {
        rows.push(row.unwrap());
    }
    rows
}

/// The rows of one tenant.
pub(crate) async fn rows_of(clients: &Clients, table: &str, tenant: &str) -> Vec<Item> {
    let query =
        clients.dynamo.query().table_name(table).consistent_read(true).key_condition_expression("PK = :pk");
    let query = query.expression_attribute_values(":pk", text(&format!("TENANT#{tenant}")));
    let mut pages = query.into_paginator().items().send();
    let mut rows = Vec::new();
    while let Some(row) = pages.next().await {
        rows.push(row.unwrap());
    }
    rows
}

/// An event of `tenant`, everything else plain.
pub(crate) fn event(tenant: &str, id: &str, time: Millis) -> Event {
    Event {
        event_id: name(id),
        tenant_id: name(tenant),
        app_name: name("shop"),
        entity_type: name("ITEM"),
        entity_id: name("10472"),
        event_type: name("price.changed"),
        timestamp: time,
        context: Context::default(),
        properties: json!({"new": 1.48, "id": id}).as_object().unwrap().clone(),
        idempotency_key: None,
        caused_by: None,
        workflow_run_id: None,
        source_system: None,
        sequence_no: None,
        ttl: None,
        received_at: None,
    }
}

pub(crate) fn admitted(event: Event) -> Admitted {
    Admitted { keys: event.keys(), event }
}

/// An event as its sender puts it on the bus.
pub(crate) fn detail(event: &Event) -> Value {
    serde_json::to_value(Keyed { keys: &event.keys(), event }).unwrap()
}

/// The seeds of this run: from `LEDGERLINE_SEED` alone, or `count` of them.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("LEDGERLINE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => {
            let first = fastrand::u64(..u64::MAX / 2);
            println!("seeds {first} to {}; LEDGERLINE_SEED=<n> repeats one", first + count - 1);
            (first..first + count).collect()
        }
    }
}
