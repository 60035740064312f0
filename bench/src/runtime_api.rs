//! Lambda's Runtime API on a loopback port: hands out one invocation and notes when what happens.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};

const REQUEST_ID: &str = "8476a536-e9f4-11e8-9739-2dfe598c3fcd";
const FUNCTION_ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:save-event-to-dynamo";
const TRACE_ID: &str = "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=0";
/// How long a function may take before something must be wrong with it.
const PATIENCE: Duration = Duration::from_secs(10);

/// One function's API.
pub(crate) struct RuntimeApi {
    pub(crate) address: SocketAddr,
    happened: mpsc::UnboundedReceiver<Happened>,
    server: JoinHandle<()>,
}

/// What the function did, and when.
enum Happened {
    /// It asked for its first invocation: it is initialised.
    Ready(Instant),
    /// It answered.
    Answered(Instant, String),
    /// It reported an error.
    Failed(String),
}

/// When the function was initialised, when it answered, and what.
pub(crate) struct Answer {
    pub(crate) ready: Instant,
    pub(crate) answered: Instant,
    pub(crate) body: String,
}

struct Shared {
    payload: Mutex<Option<String>>,
    happened: mpsc::UnboundedSender<Happened>,
}

impl RuntimeApi {
    /// Serves an API whose one invocation has this payload.
    pub(crate) async fn start(payload: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (sender, happened) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { payload: Mutex::new(Some(payload)), happened: sender });
        let router = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/response", post(answered))
            .route("/2018-06-01/runtime/invocation/{id}/error", post(failed))
            .route("/2018-06-01/runtime/init/error", post(failed))
            .with_state(shared);
        let server = tokio::spawn(async move {
            // Ends with the task; a failure shows as an answer that never comes.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, happened, server })
    }

    /// Waits for the answer to the invocation.
    pub(crate) async fn answer(&mut self) -> anyhow::Result<Answer> {
        let mut ready = None;
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                match self.happened.recv().await.context("the runtime API ended")? {
                    Happened::Ready(at) => ready = Some(at),
                    Happened::Answered(answered, body) => {
                        let ready = ready.context("an answer before the question")?;
                        return Ok(Answer { ready, answered, body });
                    }
                    Happened::Failed(error) => bail!("the function reported {error}"),
                }
            }
        });
        waited.await.context("the function did not answer")?
    }
}

impl Drop for RuntimeApi {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn next(State(shared): State<Arc<Shared>>) -> Response {
    let now = Instant::now();
    let Some(payload) = shared.payload.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        // There is no second invocation: the function waits as it does between two.
        return std::future::pending().await;
    };
    let _ = shared.happened.send(Happened::Ready(now));
    let deadline = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + Duration::from_secs(30);
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("lambda-runtime-aws-request-id", HeaderValue::from_static(REQUEST_ID)),
        ("lambda-runtime-invoked-function-arn", HeaderValue::from_static(FUNCTION_ARN)),
        ("lambda-runtime-trace-id", HeaderValue::from_static(TRACE_ID)),
        (
            "lambda-runtime-deadline-ms",
            HeaderValue::from(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX)),
        ),
        ("content-type", HeaderValue::from_static("application/json")),
    ] {
        headers.insert(HeaderName::from_static(name), value);
    }
    (headers, payload).into_response()
}

async fn answered(State(shared): State<Arc<Shared>>, Path(id): Path<String>, body: String) -> StatusCode {
    let now = Instant::now();
    let happened = if id == REQUEST_ID {
        Happened::Answered(now, body)
    } else {
        Happened::Failed(format!("on {id}: {body}"))
    };
    let _ = shared.happened.send(happened);
    StatusCode::ACCEPTED
}

async fn failed(State(shared): State<Arc<Shared>>, body: String) -> StatusCode {
    let _ = shared.happened.send(Happened::Failed(body));
    StatusCode::ACCEPTED
}
