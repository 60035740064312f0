//! Runs: starting one, the states of runs, cancelling one, and driving an external run event by event.

use std::{str::FromStr, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use ledgerline_event::{Invalid, Name, RunState};
use ledgerline_runs::{ExternalEvent, LogPlace, RunDetails, RunPage, RunSubmission, RunSummary, StartedRun};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Api,
    access::{MayRead, MayWrite},
    idempotency_key,
    json_body::{JsonBody, JsonBodyOrDefault},
    problem::Problem,
    query_params::{Paging, PathId, QueryParams, StateFilter},
};

pub(crate) async fn start(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    JsonBody(mut run): JsonBody<RunSubmission>,
) -> Result<(StatusCode, Json<StartedRun>), Problem> {
    idempotency_key::fill_id(&headers, "runId", &mut run.run_id, Name::new)?;
    let started = api.stage.runs.start_run(&api.emitter_of(tenant), run).await?;
    Ok((StatusCode::ACCEPTED, Json(started)))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    QueryParams(params): QueryParams<StateFilter<RunState>>,
) -> Result<Json<RunPage>, Problem> {
    Ok(Json(api.stage.runs.runs(&tenant, params.state, params.limit()?, params.cursor.as_deref()).await?))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    PathId(id): PathId,
    QueryParams(params): QueryParams<ShowParams>,
) -> Result<Json<RunDetails>, Problem> {
    let ms = params.wait_ms.unwrap_or(0);
    if ms > WAIT_MAX_MS {
        return Err(Invalid::new("waitMs", format!("is {ms}; at most {WAIT_MAX_MS} are allowed")).into());
    }
    let run = api.stage.runs.wait_for_run(&tenant, &id, Duration::from_millis(ms)).await?;
    Ok(Json(api.stage.runs.run_details(&tenant, run).await?))
}

/// A request on AWS has half a minute.
const WAIT_MAX_MS: u64 = 20_000;

/// The query of `GET /api/runs/{id}`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ShowParams {
    /// How long to wait for the end of the run before answering.
    #[serde(default)]
    wait_ms: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CancelRequest {
    #[serde(default)]
    reason: Option<String>,
}

pub(crate) async fn cancel(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    PathId(id): PathId,
    JsonBodyOrDefault(request): JsonBodyOrDefault<CancelRequest>,
) -> Result<Json<RunSummary>, Problem> {
    Ok(Json(api.stage.runs.cancel_run(&tenant, &id, request.reason.as_deref()).await?.into()))
}

pub(crate) async fn events(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    PathId(id): PathId,
    QueryParams(paging): QueryParams<Paging>,
) -> Result<Json<Value>, Problem> {
    let from = paging.cursor.as_deref().map(LogPlace::from_str).transpose()?.unwrap_or_default();
    let (items, next) = api.stage.runs.run_events_from(&tenant, &id, from, paging.limit()?).await?;
    Ok(Json(json!({ "items": items, "cursor": next.map(|next| next.to_string()) })))
}

pub(crate) async fn append(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    PathId(id): PathId,
    JsonBody(event): JsonBody<ExternalEvent>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let (event, history) =
        api.stage.external_runs.append_external(&api.emitter_of(tenant), &id, event).await?;
    // `{"step": {…}}`, so that the answer names what the event is about.
    let mut answer = json!(history.entity(event.event_type.entity(), &event.correlation_id));
    answer["event"] = json!(event);
    Ok((StatusCode::CREATED, Json(answer)))
}
