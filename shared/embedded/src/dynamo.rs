//! DynamoDB: requests take turns by table, and go to the one store that has all tables.

mod direct;
mod store;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Request, header, request::Parts};
use axum::response::Response;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::sync::Semaphore;

use self::store::Store;
pub(crate) use self::store::Threads;
use crate::answer::Fault;
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
    store: Store,
    lanes: Lanes,
}

/// Requests of one table that are under way together. There is one thread for all of them, so more would not be faster,
/// and a table with hundreds of writes to come would keep every other waiting behind them.
const LANE_WIDTH: usize = 1;

/// A lane for each table.
#[derive(Default)]
struct Lanes(Mutex<HashMap<String, Arc<Semaphore>>>);

impl Lanes {
    /// The lane of the first table that a request names.
    fn of(&self, body: &[u8]) -> Arc<Semaphore> {
        let table = table_of(body).unwrap_or_default();
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match lanes.get(table) {
            Some(lane) => lane.clone(),
            None => {
                lanes.entry(table.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(LANE_WIDTH))).clone()
            }
        }
    }
}

/// A name that cannot be found costs a request its fairness, and nothing more.
fn table_of(body: &[u8]) -> Option<&str> {
    const FIELD: &[u8] = b"\"TableName\":\"";
    let begin = body.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len();
    let length = body[begin..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&body[begin..begin + length]).ok()
}

impl Dynamo {
    /// Opens the tables and serves them.
    pub(crate) fn start(file: Option<&Path>) -> Result<(Self, Threads), String> {
        let (store, threads) = store::serve(store::open(file)?, file.is_some())?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok((Self { client, store, lanes: Lanes::default() }, threads))
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
            _ => body,
        };
        let lane = self.lanes.of(&body);
        // Never closed: an error lets the request through.
        let _turn = lane.acquire().await;
        if parts.extensions.get::<IsInProcess>().is_some()
            && let Some(answer) = self.carry_out(operation, &body).await?
        {
            return Ok(answer);
        }
        self.forward(parts, body).await
    }

    /// Serves a request on the store's own thread, without a connection, if it can be.
    async fn carry_out(&self, operation: &str, body: &Bytes) -> Result<Option<Response>, Fault> {
        let (database, operation, body) = (self.store.database.clone(), operation.to_owned(), body.clone());
        let served = self.store.runtime.spawn(async move { direct::carry_out(&database, &operation, &body) });
        served.await.map_err(|e| Fault::internal(e.to_string()))
    }

    async fn forward(&self, parts: &Parts, body: Bytes) -> Result<Response, Fault> {
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let address = self.store.address;
        let mut request = Request::builder().method(&parts.method).uri(format!("http://{address}/{query}"));
        for name in &FORWARDED {
            if let Some(value) = parts.headers.get(name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(Body::from(body)).map_err(|e| Fault::internal(e.to_string()))?;
        let answer = self.client.request(request).await.map_err(|e| Fault::internal(e.to_string()))?;
        let (mut head, answer) = answer.into_parts();
        head.headers.remove(header::CONNECTION);
        let answer = axum::body::to_bytes(Body::new(answer), usize::MAX)
            .await
            .map_err(|e| Fault::internal(e.to_string()))?;
        Ok(Response::from_parts(head, Body::from(answer)))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_a_request_is_the_first_that_it_names() {
        assert_eq!(table_of(br#"{"Item":{},"TableName":"events-local"}"#), Some("events-local"));
        assert_eq!(
            table_of(br#"{"TransactItems":[{"Put":{"TableName":"a"}},{"Put":{"TableName":"b"}}]}"#),
            Some("a")
        );
        assert_eq!(table_of(br#"{"TableName":"cut sho"#), None);
        assert_eq!(table_of(b""), None);
    }
}
