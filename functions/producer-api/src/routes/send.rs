//! Events that are sent to runs, and what became of them.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
};
use ledgerline_dispatch::{EventSubmission, SentEventPage, SubmittedEvent};
use ledgerline_event::{Invalid, Millis, Name};
use serde::Deserialize;

use super::listing::{Asked, foreign_cursor, limit};
use crate::{
    Api,
    access::{MayRead, MayWrite},
    body, idempotency,
    problem::Problem,
};

pub(crate) async fn send(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<SubmittedEvent>), Problem> {
    let mut event: EventSubmission = body::read(body).await?;
    idempotency::fill(&headers, "idempotencyKey", &mut event.idempotency_key)?;
    let sent = api.dispatch.send_event(&api.emitter_of(tenant), event, None).await?;
    Ok((StatusCode::ACCEPTED, Json(sent)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfName {
    event: String,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    asked: Asked<OfName>,
) -> Result<Json<SentEventPage>, Problem> {
    let Query(asked) = asked?;
    let (name, limit) = (Name::new("event", asked.event)?, limit(asked.limit)?);
    let before = asked.cursor.as_deref().map(place).transpose()?;
    let mut page = api.dispatch.sent_events(&tenant, &name, limit, before.as_deref()).await?;
    // In an address `#` would be the end of it.
    page.cursor = page.cursor.map(|place| place.replacen('#', "-", 1));
    Ok(Json(page))
}

/// The place of a sent event, its time and its id, that a cursor names.
fn place(cursor: &str) -> Result<String, Invalid> {
    let (time, id) = cursor.split_once('-').ok_or_else(foreign_cursor)?;
    let time: u64 = time.parse().map_err(|_| foreign_cursor())?;
    let time = Millis::try_from(time).map_err(|_| foreign_cursor())?;
    let id = Name::new("cursor", id).map_err(|_| foreign_cursor())?;
    Ok(format!("{time}#{id}"))
}
