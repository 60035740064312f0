//! A caller of the HTTP API: starts a run and waits until it has ended.

use anyhow::{Context, ensure};
use axum::{
    body::Body,
    http::{Method, Request, header},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use ledgerline_local::LocalState;
use serde_json::{Value, json};

/// The longest that the API waits.
const WAIT_MS: u64 = 20_000;

/// One caller, with a connection of its own.
pub(crate) struct Caller {
    client: Client<HttpConnector, Body>,
    api_url: String,
    authorization: String,
}

impl Caller {
    pub(crate) fn new(state: &LocalState) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(connector);
        let authorization = format!("Bearer {}", state.api_key);
        Self { client, api_url: state.api_url.clone(), authorization }
    }

    /// Starts a run under this id.
    pub(crate) async fn start(&self, workflow: &str, input: u64, run_id: &str) -> anyhow::Result<()> {
        let run = json!({ "workflow": workflow, "input": input, "runId": run_id });
        self.call(Method::POST, "/api/runs", Body::from(run.to_string())).await.map(drop)
    }

    /// The run, once it has ended: the API waits for that, and is asked again if it takes longer than it may wait.
    pub(crate) async fn ended(&self, run_id: &str) -> anyhow::Result<Value> {
        let path = format!("/api/runs/{run_id}?waitMs={WAIT_MS}");
        loop {
            let run = self.call(Method::GET, &path, Body::empty()).await?;
            match run["state"].as_str().context("a run without a state")? {
                "pending" | "running" => {}
                _ => return Ok(run),
            }
        }
    }

    async fn call(&self, method: Method, path: &str, body: Body) -> anyhow::Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.api_url))
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = axum::body::to_bytes(Body::new(answer.into_body()), usize::MAX).await?;
        ensure!(status.is_success(), "{path} answered {status}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).with_context(|| format!("the answer of {path}"))
    }
}
