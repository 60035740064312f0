//! Runs from the side of an application: starting them, telling them something, waiting for their end.

use std::{path::Path, time::Duration};

use ledgerline_dispatch::{
    Dispatch, DispatchError, DispatchOptions, Drainers, EventSubmission, HookAnswer, HookPayload, QueueUrls,
    RunDetails, RunRecord, RunSubmission, SubmittedEvent,
};
use ledgerline_event::{Invalid, Name, RunState};
use ledgerline_ledger::{
    Clients, Emitter, LocalState, Names, NoLocalState, StoreError, parameter, system_clock,
    telemetry::Metrics,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Error, json};

/// How long a run is waited for at a time.
const LOOK: Duration = Duration::from_secs(60);

/// Starts runs and talks to them. Cheap to clone.
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
    dispatch: Dispatch,
    emitter: Emitter,
}

/// Why a client could not do something.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no local mode.
    #[error(transparent)]
    NoLocalMode(#[from] NoLocalState),
    /// The ledger did not do it, and why.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// The run has ended, and not with an output.
    #[error("the run {run_id} has {}: {error}", if *.cancelled { "been cancelled" } else { "failed" })]
    Ended {
        /// Which run.
        run_id: Name,
        /// Why.
        error: String,
        /// The same, for programs.
        code: Option<String>,
        /// Whether the run was cancelled; otherwise it failed.
        cancelled: bool,
    },
    /// What was given or found does not fit.
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
    /// What starts runs in the context of `emitter`: its tenant, its app, its cause.
    pub fn new(dispatch: Dispatch, emitter: Emitter) -> Self {
        Self { dispatch, emitter }
    }

    /// For the local mode with this data folder.
    pub async fn local(data: impl AsRef<Path>, app: &str) -> Result<Self, ClientError> {
        let state = LocalState::read(data.as_ref())?;
        let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
        Self::of(clients, Names::of_stage(&state.stage), &state.tenant, app, "--local".into()).await
    }

    /// For a tenant of a stage on AWS, with the usual AWS environment.
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
        let options = DispatchOptions {
            queues: QueueUrls::find(&clients.sqs, &names).await?,
            drainers: Drainers::parse("")?,
            slack: None,
            metrics: Metrics::silent(),
            ledger_flag,
            clock: system_clock(),
        };
        let dispatch = Dispatch::new(&clients, &names, options)?;
        let (tenant, app) = (Name::new("tenant", tenant)?, Name::new("app", app)?);
        Ok(Self { dispatch, emitter: Emitter::new(&clients, &names, tenant, app) })
    }

    fn tenant(&self) -> &Name {
        &self.emitter.origin().tenant
    }

    /// Starts a run of `workflow`.
    pub async fn start(&self, workflow: &str, input: &impl Serialize) -> Result<Name, ClientError> {
        self.submit(workflow, input, None).await
    }

    /// Starts a run under an id of the caller's: with the same input as before it is the same run.
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
        Ok(self.dispatch.start_run(&self.emitter, submission).await?.run_id)
    }

    /// Sends an event to whichever runs wait for it, or will. The answer is its id.
    pub async fn send_event(&self, event: &str, data: Value, matched: Value) -> Result<Name, ClientError> {
        let submission =
            EventSubmission { event: event.to_owned(), data, r#match: matched, idempotency_key: None };
        Ok(self.dispatch.send_event(&self.emitter, submission, None).await?.event_id)
    }

    /// Sends an event under a key of the caller's: with the same content as before nothing is sent again, and the
    /// answer is the first event's id. Keys hold for 30 days.
    pub async fn send_event_once(
        &self,
        idempotency_key: &str,
        event: &str,
        data: Value,
        matched: Value,
    ) -> Result<SubmittedEvent, ClientError> {
        let idempotency_key = Some(idempotency_key.to_owned());
        let submission = EventSubmission { event: event.to_owned(), data, r#match: matched, idempotency_key };
        Ok(self.dispatch.send_event(&self.emitter, submission, None).await?)
    }

    /// Gives a payload to a hook.
    pub async fn send_to_hook(
        &self,
        token: &str,
        payload: &impl Serialize,
    ) -> Result<HookAnswer, ClientError> {
        let payload = json::write("payload", payload)?;
        Ok(self.dispatch.receive_by_hook(Some(self.tenant()), token, payload).await?)
    }

    /// Gives a payload to a hook under a key of the caller's: the same again is not received again, and the answer
    /// names the first event. Keys hold for 30 days.
    pub async fn send_to_hook_once(
        &self,
        idempotency_key: &str,
        token: &str,
        payload: &impl Serialize,
    ) -> Result<HookAnswer, ClientError> {
        let idempotency_key = Some(idempotency_key.to_owned());
        let payload = HookPayload { payload: json::write("payload", payload)?, idempotency_key };
        Ok(self.dispatch.receive_by_hook(Some(self.tenant()), token, payload).await?)
    }

    /// A run with its steps, hooks and waits.
    pub async fn run(&self, run_id: &str) -> Result<RunDetails, ClientError> {
        Ok(self.dispatch.run(self.tenant(), run_id).await?)
    }

    /// Cancels a run that has not ended.
    pub async fn cancel(&self, run_id: &str, reason: Option<&str>) -> Result<RunRecord, ClientError> {
        Ok(self.dispatch.cancel_run(self.tenant(), run_id, reason).await?)
    }

    /// Waits until a run has ended, and gives its output. It looks again and again, ever more rarely.
    pub async fn output<T: DeserializeOwned>(&self, run_id: &str) -> Result<T, ClientError> {
        while !self.dispatch.wait_for_run(self.tenant(), run_id, LOOK).await?.state.is_terminal() {}
        let run = self.run(run_id).await?.view.run.into_owned();
        match run.state {
            RunState::Completed => Ok(json::read("output", run.output.unwrap_or_default())?),
            RunState::Failed | RunState::Cancelled | RunState::Pending | RunState::Running => {
                let cancelled = run.state == RunState::Cancelled;
                let error = run.error.or(run.reason).unwrap_or_else(|| "nobody said why".into());
                Err(ClientError::Ended { run_id: run.run_id, error, code: run.error_code, cancelled })
            }
        }
    }
}
