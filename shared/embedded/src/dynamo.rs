//! DynamoDB: requests go to whichever store has their table. A busy table may have a store of its own, with a file and a
//! thread; all others share one.

mod direct;
mod store;
mod tables;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Request, StatusCode, header, request::Parts};
use axum::response::Response;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::store::Store;
use crate::answer::{Fault, input};
use crate::in_process::IsInProcess;

/// What dynoxide reads of a request; the rest concerns our own connection.
const FORWARDED: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::AUTHORIZATION,
    header::DATE,
    HeaderName::from_static("x-amz-date"),
    HeaderName::from_static("x-amz-target"),
];

/// The way to the tables.
pub(crate) struct Dynamo {
    client: Client<HttpConnector, Body>,
    /// The store of all tables that have none of their own.
    shared: Store,
    apart: HashMap<String, Store>,
    lanes: Lanes,
}

/// Requests of one table that are under way together. A store has one thread for all of them, so more would not be
/// faster, and a table with hundreds of writes to come would keep every other waiting behind them.
const LANE_WIDTH: usize = 2;

/// A lane for each table.
#[derive(Default)]
struct Lanes(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Lanes {
    fn of(&self, table: &str) -> Arc<Semaphore> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match lanes.get(table) {
            Some(lane) => lane.clone(),
            None => {
                lanes.entry(table.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(LANE_WIDTH))).clone()
            }
        }
    }
}

/// The threads that serve the tables; dropping it ends them in their own time.
pub(crate) struct Threads(Vec<store::Threads>);

impl Threads {
    /// Ends the threads and waits until the tables are closed.
    pub(crate) fn stop(self) {
        self.0.into_iter().for_each(store::Threads::stop);
    }
}

impl Dynamo {
    /// Opens the tables in a folder, or in memory, and serves them. Each table of `apart` gets a store of its own, unless
    /// the shared one has it already.
    pub(crate) fn start(folder: Option<&Path>, apart: &[String]) -> Result<(Self, Threads), String> {
        let open = |name: &str| {
            let file = folder.map(|folder| folder.join(name));
            store::open(file.as_deref())
        };
        let database = open("tables.sqlite")?;
        let mut threads = Vec::new();
        let mut stores = HashMap::new();
        for table in apart {
            if database.get_table_metadata(table).map_err(|error| error.to_string())?.is_some() {
                continue;
            }
            let (store, served) = store::serve(open(&format!("table-{table}.sqlite"))?, folder.is_some())?;
            threads.push(served);
            stores.insert(table.clone(), store);
        }
        let (shared, served) = store::serve(database, folder.is_some())?;
        threads.push(served);
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok((Self { client, shared, apart: stores, lanes: Lanes::default() }, Threads(threads)))
    }

    /// Carries one request to the tables and its answer back.
    pub(crate) async fn handle(
        &self,
        parts: &Parts,
        operation: &str,
        body: Bytes,
    ) -> Result<Response, Fault> {
        let body = match operation {
            "CreateTable" | "UpdateTable" => without_stream(body),
            "ListTables" if !self.apart.is_empty() => return self.list(parts, &body).await,
            _ => body,
        };
        let named = tables::named(operation, &body);
        let store = self.store_of(&named)?;
        let lane = self.lanes.of(named.first().map_or("", String::as_str));
        // Never closed: an error lets the request through.
        let _turn = lane.acquire().await;
        if parts.extensions.get::<IsInProcess>().is_some()
            && let Some(answer) = carry_out(store, operation, &body).await?
        {
            return Ok(answer);
        }
        let (mut head, answer) = self.forward(store, parts, body).await?.into_parts();
        head.headers.remove(header::CONNECTION);
        let answer = axum::body::to_bytes(answer, usize::MAX).await;
        let answer = answer.map_err(|e| Fault::internal(e.to_string()))?;
        Ok(Response::from_parts(head, Body::from(answer)))
    }

    /// The store that has all of these tables.
    fn store_of(&self, named: &[String]) -> Result<&Store, Fault> {
        let mut stores = named.iter().map(|table| self.apart.get(table).unwrap_or(&self.shared));
        let first = stores.next().unwrap_or(&self.shared);
        if stores.any(|store| store.address != first.address) {
            let apart: Vec<&str> = self.apart.keys().map(String::as_str).collect();
            let message =
                format!("here a request for {} cannot be one for other tables too", apart.join(", "));
            return Err(Fault::sender("com.amazon.coral.validate#ValidationException", message));
        }
        Ok(first)
    }

    async fn forward(&self, store: &Store, parts: &Parts, body: Bytes) -> Result<Response, Fault> {
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let Store { address, .. } = store;
        let mut request = Request::builder().method(&parts.method).uri(format!("http://{address}/{query}"));
        for name in &FORWARDED {
            if let Some(value) = parts.headers.get(name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(Body::from(body)).map_err(|e| Fault::internal(e.to_string()))?;
        let answer = self.client.request(request).await.map_err(|e| Fault::internal(e.to_string()))?;
        Ok(answer.map(Body::new))
    }

    /// The names of all tables, a page of them.
    async fn list(&self, parts: &Parts, body: &[u8]) -> Result<Response, Fault> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Asked {
            exclusive_start_table_name: Option<String>,
            limit: Option<usize>,
        }
        let Asked { exclusive_start_table_name: after, limit } = input(body)?;
        let mut names = Vec::new();
        for store in self.apart.values().chain([&self.shared]) {
            let page = json!({ "ExclusiveStartTableName": &after, "Limit": limit });
            let mut page = page.as_object().cloned().unwrap_or_default();
            page.retain(|_, value| !value.is_null());
            let answer = self.forward(store, parts, Value::Object(page).to_string().into()).await?;
            if answer.status() != StatusCode::OK {
                return Ok(answer);
            }
            let answer = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
            let answer = answer.map_err(|e| Fault::internal(e.to_string()))?;
            let page: Value = serde_json::from_slice(&answer).map_err(|e| Fault::internal(e.to_string()))?;
            let page = page["TableNames"].as_array().into_iter().flatten();
            names.extend(page.filter_map(Value::as_str).map(str::to_owned));
        }
        names.sort();
        let mut page = json!({});
        // Each store gave as many as there may be.
        let limit = limit.unwrap_or(100);
        if names.len() > limit {
            names.truncate(limit);
            page["LastEvaluatedTableName"] = names.last().cloned().into();
        }
        page["TableNames"] = names.into();
        let answer = Response::builder().header(header::CONTENT_TYPE, "application/x-amz-json-1.0");
        answer.body(Body::from(page.to_string())).map_err(|e| Fault::internal(e.to_string()))
    }
}

/// Serves a request on the store's own thread, without a connection, if it can be.
async fn carry_out(store: &Store, operation: &str, body: &Bytes) -> Result<Option<Response>, Fault> {
    let (database, operation, body) = (store.database.clone(), operation.to_owned(), body.clone());
    let served = store.runtime.spawn(async move { direct::carry_out(&database, &operation, &body) });
    served.await.map_err(|e| Fault::internal(e.to_string()))
}

/// Takes the stream out of a table's definition: every write to a table with a stream scans a table of
/// stream records that is never trimmed. Who needs to hear of writes listens at the gateway.
fn without_stream(body: Bytes) -> Bytes {
    match serde_json::from_slice::<Value>(&body) {
        Ok(Value::Object(mut table)) => match table.remove("StreamSpecification") {
            Some(_) => Value::Object(table).to_string().into(),
            None => body,
        },
        // Not ours to refuse: the store words the error.
        _ => body,
    }
}
