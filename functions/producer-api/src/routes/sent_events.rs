//! Events that are sent to runs, and the waits that they matched.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use ledgerline_event::{Invalid, Millis, Name};
use ledgerline_runs::{EventSubmission, SentEventPage, SubmittedEvent};
use serde::Deserialize;

use crate::{
    Api,
    access::{MayRead, MayWrite},
    idempotency_key,
    json_body::JsonBody,
    problem::Problem,
    query_params::{QueryParams, invalid_cursor, limit},
};

pub(crate) async fn send(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    JsonBody(mut event): JsonBody<EventSubmission>,
) -> Result<(StatusCode, Json<SubmittedEvent>), Problem> {
    idempotency_key::fill(&headers, "idempotencyKey", &mut event.idempotency_key)?;
    let sent = api.stage.events.send_event(&api.emitter_of(tenant), event, None).await?;
    Ok((StatusCode::ACCEPTED, Json(sent)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentEventParams {
    event: String,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    QueryParams(params): QueryParams<SentEventParams>,
) -> Result<Json<SentEventPage>, Problem> {
    let (name, limit) = (Name::new("event", params.event)?, limit(params.limit)?);
    let before = params.cursor.as_deref().map(position).transpose()?;
    let mut page = api.stage.runs.sent_events(&tenant, &name, limit, before.as_deref()).await?;
    // A `#` would end the address that carries the cursor.
    page.cursor = page.cursor.map(|position| position.replacen('#', "-", 1));
    Ok(Json(page))
}

/// The position of a sent event, `<time>#<id>`, that a cursor names.
fn position(cursor: &str) -> Result<String, Invalid> {
    let (time, id) = cursor.split_once('-').ok_or_else(invalid_cursor)?;
    let time: u64 = time.parse().map_err(|_| invalid_cursor())?;
    let time = Millis::try_from(time).map_err(|_| invalid_cursor())?;
    let id = Name::new("cursor", id).map_err(|_| invalid_cursor())?;
    Ok(format!("{time}#{id}"))
}
