//! A client for applications: starts runs, sends them events and payloads, and waits for their end.

use std::{path::Path, time::Duration};

use ledgerline_drains::Drainers;
use ledgerline_event::{Invalid, Name, RunState};
use ledgerline_ledger::{
    Clients, Emitter, LocalState, Names, NoLocalState, parameter, system_clock, telemetry::Metrics,
};
use ledgerline_outbox::{ComponentError, QueueUrls};
use ledgerline_runs::{
    EventSubmission, HookAnswer, HookPayload, RunDetails, RunRecord, RunSubmission, SubmittedEvent,
};
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::StoreError;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Error, json};

/// How long one request waits for the end of a run.
const WAIT: Duration = Duration::from_secs(60);

/// Starts runs, sends them events and payloads, and reads their results. Cheap to clone.
///
/// ```no_run
/// use ledgerline_workflow::{Client, ClientError};
/// use serde_json::json;
///
/// async fn sell() -> Result<String, ClientError> {
///     let client = Client::local(".ledgerline", "shop").await?;
///     let run = client.start("order", &json!({ "orderId": "o-7", "lines": [] })).await?;
///     client.send_event("payment.received", json!({ "cents": 0 }), json!({ "orderId": "o-7" })).await?;
///     client.output(&run).await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    stage: Stage,
    emitter: Emitter,
}

/// Why a client could not do something.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no local mode.
    #[error(transparent)]
    NoLocalMode(#[from] NoLocalState),
    /// The ledger refused the request or failed.
    #[error(transparent)]
    Dispatch(#[from] ComponentError),
    /// The run has ended, and not with an output.
    #[error("the run {run_id} has {}: {error}", if *.cancelled { "been cancelled" } else { "failed" })]
    Ended {
        /// The run.
        run_id: Name,
        /// The error.
        error: String,
        /// The code of that error.
        code: Option<String>,
        /// Whether the run was cancelled; otherwise it failed.
        cancelled: bool,
    },
    /// A value is not JSON, or does not have the expected type.
    #[error("{0}")]
    Json(String),
}

impl From<StoreError> for ClientError {
    fn from(error: StoreError) -> Self {
        Self::Dispatch(error.into())
    }
}

impl From<Invalid> for ClientError {
    fn from(invalid: Invalid) -> Self {
        Self::Dispatch(invalid.into())
    }
}

impl From<Error> for ClientError {
    fn from(error: Error) -> Self {
        Self::Json(error.to_string())
    }
}

impl Client {
    /// A client that acts in the context of `emitter`: its tenant, its app, its cause.
    pub fn new(stage: Stage, emitter: Emitter) -> Self {
        Self { stage, emitter }
    }

    /// A client of the local mode with this data folder.
    pub async fn local(data: impl AsRef<Path>, app: &str) -> Result<Self, ClientError> {
        let state = LocalState::read(data.as_ref())?;
        let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
        Self::of(clients, Names::of_stage(&state.stage), &state.tenant, app, "--local".into()).await
    }

    /// A client of a tenant of a stage on AWS, with the usual AWS environment.
    pub async fn on_aws(stage: &str, tenant: &str, app: &str) -> Result<Self, ClientError> {
        let clients = Clients::from_environment().await;
        let mut names = Names::of_stage(stage);
        if let Some(bucket) = parameter(&clients.ssm, &names.payload_bucket_parameter).await? {
            names.payload_bucket = bucket;
        }
        Self::of(clients, names, tenant, app, format!("--stage {stage}")).await
    }

    async fn of(
        clients: Clients,
        names: Names,
        tenant: &str,
        app: &str,
        ledger_flag: String,
    ) -> Result<Self, ClientError> {
        let options = StageOptions {
            queues: QueueUrls::find(&clients.sqs, &names).await?,
            drainers: Drainers::parse("")?,
            slack: None,
            metrics: Metrics::silent(),
            ledger_flag,
            clock: system_clock(),
        };
        let stage = Stage::new(&clients, &names, options)?;
        let (tenant, app) = (Name::new("tenant", tenant)?, Name::new("app", app)?);
        Ok(Self { stage, emitter: Emitter::new(&clients, &names, tenant, app) })
    }

    fn tenant(&self) -> &Name {
        &self.emitter.scope().tenant
    }

    /// Starts a run of `workflow`.
    pub async fn start(&self, workflow: &str, input: &impl Serialize) -> Result<Name, ClientError> {
        self.submit(workflow, input, None).await
    }

    /// Starts a run under the id that the caller gives. A repeat with the same input gives the same run.
    pub async fn start_as(
        &self,
        run_id: &str,
        workflow: &str,
        input: &impl Serialize,
    ) -> Result<Name, ClientError> {
        self.submit(workflow, input, Some(run_id.to_owned())).await
    }

    async fn submit(
        &self,
        workflow: &str,
        input: &impl Serialize,
        run_id: Option<String>,
    ) -> Result<Name, ClientError> {
        let input = json::write("input", input)?;
        let submission = RunSubmission { workflow: workflow.to_owned(), input, run_id };
        Ok(self.stage.runs.start_run(&self.emitter, submission).await?.run_id)
    }

    /// Sends an event to the runs that wait for it, now or later. The result is its id.
    pub async fn send_event(&self, event: &str, data: Value, matched: Value) -> Result<Name, ClientError> {
        let submission =
            EventSubmission { event: event.to_owned(), data, r#match: matched, idempotency_key: None };
        Ok(self.stage.events.send_event(&self.emitter, submission, None).await?.event_id)
    }

    /// Sends an event under an idempotency key. A repeat with the same content sends nothing and gives the first event's id.
    /// Keys hold for 30 days.
    pub async fn send_event_once(
        &self,
        idempotency_key: &str,
        event: &str,
        data: Value,
        matched: Value,
    ) -> Result<SubmittedEvent, ClientError> {
        let idempotency_key = Some(idempotency_key.to_owned());
        let submission = EventSubmission { event: event.to_owned(), data, r#match: matched, idempotency_key };
        Ok(self.stage.events.send_event(&self.emitter, submission, None).await?)
    }

    /// Sends a payload to a hook.
    pub async fn send_to_hook(
        &self,
        token: &str,
        payload: &impl Serialize,
    ) -> Result<HookAnswer, ClientError> {
        let payload = json::write("payload", payload)?;
        Ok(self.stage.hooks.receive_by_hook(Some(self.tenant()), token, payload).await?)
    }

    /// Sends a payload to a hook under an idempotency key. The hook does not receive a repeat; the answer names the first
    /// event. Keys hold for 30 days.
    pub async fn send_to_hook_once(
        &self,
        idempotency_key: &str,
        token: &str,
        payload: &impl Serialize,
    ) -> Result<HookAnswer, ClientError> {
        let idempotency_key = Some(idempotency_key.to_owned());
        let payload = HookPayload { payload: json::write("payload", payload)?, idempotency_key };
        Ok(self.stage.hooks.receive_by_hook(Some(self.tenant()), token, payload).await?)
    }

    /// A run with its steps, hooks and waits.
    pub async fn run(&self, run_id: &str) -> Result<RunDetails, ClientError> {
        Ok(self.stage.runs.run(self.tenant(), run_id).await?)
    }

    /// Cancels a run that has not ended.
    pub async fn cancel(&self, run_id: &str, reason: Option<&str>) -> Result<RunRecord, ClientError> {
        Ok(self.stage.runs.cancel_run(self.tenant(), run_id, reason).await?)
    }

    /// Waits until a run has ended, and gives its output. It polls the run, less and less often.
    pub async fn output<T: DeserializeOwned>(&self, run_id: &str) -> Result<T, ClientError> {
        while !self.stage.runs.wait_for_run(self.tenant(), run_id, WAIT).await?.state.is_terminal() {}
        let run = self.run(run_id).await?.view.run.into_owned();
        match run.state {
            RunState::Completed => Ok(json::read("output", run.output.unwrap_or_default())?),
            RunState::Failed | RunState::Cancelled | RunState::Pending | RunState::Running => {
                let cancelled = run.state == RunState::Cancelled;
                let error = run.error.or(run.reason).unwrap_or_else(|| "no reason was given".into());
                Err(ClientError::Ended { run_id: run.run_id, error, code: run.error_code, cancelled })
            }
        }
    }
}
