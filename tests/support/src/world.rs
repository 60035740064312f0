//! A running local mode.

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use ledgerline_ledger::{Clients, Reader};
use ledgerline_store::{ApiKeys, ControlTable, FailedDeliveries, Payloads};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Item,
    local::{Local, LocalOptions},
    scan, until,
};

/// Local mode in a folder of its own.
pub struct World {
    /// The local mode.
    pub local: Local,
    /// Its data folder.
    pub folder: TempDir,
    /// A client for its HTTP API.
    pub http: reqwest::Client,
}

impl World {
    /// Local mode with its usual options.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Local mode with other options.
    pub async fn with(change: impl FnOnce(&mut LocalOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = LocalOptions::new(folder.path());
        change(&mut options);
        let local = Box::pin(Local::start(options)).await.unwrap();
        Self { local, folder, http: reqwest::Client::new() }
    }

    /// AWS clients that lead to it.
    pub fn clients(&self) -> &Clients {
        &self.local.clients
    }

    /// A reader of its ledger.
    pub fn reader(&self) -> Reader {
        let names = &self.local.names;
        let payloads = Payloads::new(self.clients().s3.clone(), &names.payload_bucket);
        Reader::new(self.clients().dynamo.clone(), &names.events_table, payloads)
    }

    /// Its API keys.
    pub fn api_keys(&self) -> ApiKeys {
        ApiKeys::new(self.control())
    }

    /// Events that were not saved.
    pub fn failed_deliveries(&self) -> FailedDeliveries {
        FailedDeliveries::new(self.control())
    }

    /// Its control table.
    pub fn control(&self) -> ControlTable {
        ControlTable::new(self.clients().dynamo.clone(), &self.local.names.control_table)
    }

    /// Puts details on the bus as a plain AWS client would.
    pub async fn put_events(&self, details: &[Value]) {
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
    pub async fn rows(&self) -> Vec<Item> {
        scan(self.clients(), &self.local.names.events_table).await
    }

    /// Waits until the table has at least `count` rows and returns them.
    pub async fn rows_at_least(&self, count: usize) -> Vec<Item> {
        until("the rows are there", || async { Some(self.rows().await).filter(|rows| rows.len() >= count) })
            .await
    }

    /// Waits until nothing is on its way: neither queue holds a message.
    pub async fn quiet(&self) {
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

    /// `GET` as the administrator.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        let request = self.http.get(format!("{}{path}", self.local.state.api_url));
        self.answer(request.bearer_auth(&self.local.state.api_key)).await
    }

    /// `POST` as the administrator.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let request = self.http.post(format!("{}{path}", self.local.state.api_url)).body(body);
        self.answer(request.bearer_auth(&self.local.state.api_key)).await
    }

    /// Sends a request: the status and the body of the answer.
    pub async fn answer(&self, request: reqwest::RequestBuilder) -> (u16, Value) {
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!(kind, if status < 400 { "application/json" } else { "application/problem+json" });
        (status, answer.json().await.unwrap())
    }
}
