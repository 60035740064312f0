//! DynamoDB: requests take turns by table, and go to the one store that has all tables.

mod connection;
mod direct;
mod store;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Request, header, request::Parts};
use axum::response::Response;
use serde_json::Value;
use tokio::sync::Semaphore;

use self::connection::Connection;
pub(crate) use self::store::Threads;
use self::store::{Medium, Store};
use crate::answer::AwsError;
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
    store: Store,
    /// Requests take turns on it: there is one thread behind it anyway. None before the first one.
    connection: Arc<tokio::sync::Mutex<Option<Connection>>>,
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
        let medium = if file.is_some() { Medium::File } else { Medium::Memory };
        let (store, threads) = store::serve(store::open(file)?, medium)?;
        Ok((Self { store, connection: Arc::default(), lanes: Lanes::default() }, threads))
    }

    /// Carries one request to the tables and its answer back.
    pub(crate) async fn handle(
        &self,
        parts: &Parts,
        operation: &str,
        body: Bytes,
    ) -> Result<Response, AwsError> {
        let body = match operation {
            "CreateTable" | "UpdateTable" => without_stream(body),
            _ => body,
        };
        let lane = self.lanes.of(&body);
        // Never closed: an error lets the request through.
        let _turn = lane.acquire().await;
        if parts.extensions.get::<IsInProcess>().is_some()
            && let Some(answer) = self.execute(operation, &body).await?
        {
            return Ok(answer);
        }
        self.forward(parts, body).await
    }

    /// Serves a request on the store's own thread, without a connection, if it can be.
    async fn execute(&self, operation: &str, body: &Bytes) -> Result<Option<Response>, AwsError> {
        let (database, operation, body) = (self.store.database.clone(), operation.to_owned(), body.clone());
        let served = self.store.runtime.spawn(async move { direct::execute(&database, &operation, &body) });
        served.await.map_err(|e| AwsError::internal(e.to_string()))
    }

    /// Sends a request to dynoxide's server. The connection lives on the store's own runtime, and so does the exchange: a
    /// client that goes away leaves no answer behind for the next request.
    async fn forward(&self, parts: &Parts, body: Bytes) -> Result<Response, AwsError> {
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut request =
            Request::builder().method(&parts.method).uri(format!("/{query}")).header(header::HOST, "tables");
        for name in &FORWARDED {
            if let Some(value) = parts.headers.get(name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(Body::from(body)).map_err(|e| AwsError::internal(e.to_string()))?;
        let (connection, database) = (self.connection.clone(), self.store.database.clone());
        let exchange = self.store.runtime.spawn(async move {
            let mut connection = connection.lock().await;
            if !connection.as_ref().is_some_and(Connection::is_open) {
                *connection = None;
            }
            let open = match connection.as_mut() {
                Some(open) => open,
                None => connection.insert(Connection::open(database).await?),
            };
            let answer = open.send(request).await;
            if answer.is_err() {
                *connection = None;
            }
            answer
        });
        let answer = exchange.await.map_err(|e| e.to_string()).and_then(|answer| answer);
        let (mut head, answer) = answer.map_err(AwsError::internal)?.into_parts();
        head.headers.remove(header::CONNECTION);
        Ok(Response::from_parts(head, Body::from(answer)))
    }
}

/// Takes the stream out of a table's definition: every write to a table with a stream scans a table of
/// stream records that is never trimmed. An interceptor at the gateway sees the writes.
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
