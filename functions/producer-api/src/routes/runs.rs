//! Runs: starting one, how runs fare, cancelling one, and driving one from elsewhere, event by event.

use std::{str::FromStr, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode},
};
use ledgerline_dispatch::{ForeignEvent, LogPlace, RunDetails, RunPage, RunSubmission, ShownRun, StartedRun};
use ledgerline_event::{Invalid, Name, RunState};
use serde::Deserialize;
use serde_json::{Value, json};

use super::listing::{Asked, InState, Paging};
use crate::{
    Api,
    access::{MayRead, MayWrite},
    body, idempotency,
    problem::Problem,
};

pub(crate) async fn start(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<StartedRun>), Problem> {
    let mut run: RunSubmission = body::read(body).await?;
    idempotency::fill_id(&headers, "runId", &mut run.run_id, Name::new)?;
    let started = api.dispatch.start_run(&api.emitter_of(tenant), run).await?;
    Ok((StatusCode::ACCEPTED, Json(started)))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    asked: Asked<InState<RunState>>,
) -> Result<Json<RunPage>, Problem> {
    let Query(asked) = asked?;
    Ok(Json(api.dispatch.runs(&tenant, asked.state, asked.limit()?, asked.cursor.as_deref()).await?))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    id: Result<Path<String>, PathRejection>,
    asked: Asked<Show>,
) -> Result<Json<RunDetails>, Problem> {
    let (Path(id), Query(asked)) = (id?, asked?);
    let ms = asked.wait_ms.unwrap_or(0);
    if ms > WAIT_MAX_MS {
        return Err(Invalid::new("waitMs", format!("is {ms}; at most {WAIT_MAX_MS} are allowed")).into());
    }
    let run = api.dispatch.wait_for_run(&tenant, &id, Duration::from_millis(ms)).await?;
    Ok(Json(api.dispatch.run_details(&tenant, run).await?))
}

/// A request on AWS has half a minute.
const WAIT_MAX_MS: u64 = 20_000;

/// How a run is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Show {
    /// How long to wait for its end before answering.
    #[serde(default)]
    wait_ms: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Cancel {
    #[serde(default)]
    reason: Option<String>,
}

pub(crate) async fn cancel(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Json<ShownRun>, Problem> {
    let Path(id) = id?;
    let cancel: Cancel = body::read_or_default(body).await?;
    Ok(Json(api.dispatch.cancel_run(&tenant, &id, cancel.reason.as_deref()).await?.into()))
}

pub(crate) async fn events(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    id: Result<Path<String>, PathRejection>,
    paging: Asked<Paging>,
) -> Result<Json<Value>, Problem> {
    let (Path(id), Query(paging)) = (id?, paging?);
    let from = paging.cursor.as_deref().map(LogPlace::from_str).transpose()?.unwrap_or_default();
    let (items, next) = api.dispatch.run_events_from(&tenant, &id, from, paging.limit()?).await?;
    Ok(Json(json!({ "items": items, "cursor": next.map(|next| next.to_string()) })))
}

pub(crate) async fn append(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let Path(id) = id?;
    let event: ForeignEvent = body::read(body).await?;
    let (event, history) = api.dispatch.append_foreign(&api.emitter_of(tenant), &id, event).await?;
    // `{"step": {…}}`, so that the answer names what the event is about.
    let mut answer = json!(history.entity(event.event_type.entity(), &event.correlation_id));
    answer["event"] = json!(event);
    Ok((StatusCode::CREATED, Json(answer)))
}
