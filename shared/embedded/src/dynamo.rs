//! DynamoDB: dynoxide's own server on a thread of its own, reached over an internal loopback port.
//!
//! Its handlers block the thread they run on, so it gets a current-thread runtime to itself. The order of
//! checks and the wording of its errors live in its server rather than in its library, and clients depend on
//! them; hence a hop over kept-alive connections instead of calls into the library.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Request, header, request::Parts};
use axum::response::Response;
use dynoxide::Database;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};

use crate::answer::Fault;

const SWEEP_EVERY: Duration = Duration::from_secs(60);

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
    address: SocketAddr,
    lanes: Lanes,
}

/// Requests of one table that are under way together. There is one thread for all of them, so more would not be faster,
/// and a table with hundreds of writes to come would keep every other waiting behind them.
const LANE_WIDTH: usize = 2;

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

/// The threads that serve the tables; dropping it ends them in their own time.
pub(crate) struct Threads {
    stop_server: oneshot::Sender<()>,
    stop_sweeps: mpsc::Sender<()>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Ends the threads and waits until the tables are closed.
    pub(crate) fn stop(self) {
        drop((self.stop_server, self.stop_sweeps));
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the table store panicked");
            }
        }
    }
}

impl Dynamo {
    /// Opens the tables and serves them.
    pub(crate) fn start(file: Option<&Path>) -> Result<(Self, Threads), String> {
        let database = open(file).map_err(|error| error.to_string())?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;

        let (stop_server, stopped) = oneshot::channel::<()>();
        let served = database.clone();
        let server = std::thread::Builder::new().name("dynamodb".to_owned()).spawn(move || {
            let served = runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).map_err(|e| e.to_string())?;
                let shutdown = async move {
                    // A dropped sender stops the server too.
                    let _ = stopped.await;
                };
                dynoxide::server::serve_with_shutdown(listener, served, shutdown).await
            });
            if let Err(error) = served {
                tracing::error!(%error, "the table store ended");
            }
        });
        let (stop_sweeps, sweeps_stopped) = mpsc::channel();
        let mut threads = vec![server.map_err(|e| e.to_string())?];
        if file.is_some() {
            let sweeper = std::thread::Builder::new().name("dynamodb-ttl".to_owned());
            let sweeper = sweeper.spawn(move || sweep(&database, &sweeps_stopped));
            threads.push(sweeper.map_err(|e| e.to_string())?);
        }

        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok((Self { client, address, lanes: Lanes::default() }, Threads { stop_server, stop_sweeps, threads }))
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
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut request =
            Request::builder().method(&parts.method).uri(format!("http://{}/{query}", self.address));
        for name in &FORWARDED {
            if let Some(value) = parts.headers.get(name) {
                request = request.header(name, value);
            }
        }
        let lane = self.lanes.of(&body);
        let request = request.body(Body::from(body)).map_err(|e| Fault::internal(e.to_string()))?;
        // Never closed: an error lets the request through.
        let _turn = lane.acquire().await;
        let answer = self.client.request(request).await.map_err(|e| Fault::internal(e.to_string()))?;
        let (mut head, answer) = answer.into_parts();
        head.headers.remove(header::CONNECTION);
        let answer = axum::body::to_bytes(Body::new(answer), usize::MAX)
            .await
            .map_err(|e| Fault::internal(e.to_string()))?;
        Ok(Response::from_parts(head, Body::from(answer)))
    }
}

fn open(file: Option<&Path>) -> dynoxide::Result<Database> {
    let Some(file) = file else { return Database::memory() };
    let database = Database::new(&file.to_string_lossy())?;
    // The pair leaves SQLite at synchronous = NORMAL, which survives a kill; there is no other way to ask.
    database.enable_bulk_loading()?;
    database.disable_bulk_loading()?;
    Ok(database)
}

/// Deletes expired items now and then, as AWS does in its own time. It goes by the machine's clock, so tables in
/// memory, which tests use with clocks of their own, are left alone.
fn sweep(database: &Database, stopped: &mpsc::Receiver<()>) {
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(SWEEP_EVERY) {
        if let Err(error) = database.sweep_ttl() {
            tracing::warn!(%error, "expired items stay for now");
        }
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
