//! Events that are sent to runs, and what became of them.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
};
use ledgerline_dispatch::{EventSubmission, SentEventPage};
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::control::api_key::KeyScope;
use serde::Deserialize;
use serde_json::{Value, json};

use super::listing::{Asked, foreign_cursor, limit};
use crate::{Api, body, problem::Problem};

pub(crate) async fn send(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let tenant = api.caller(&headers, KeyScope::Write).await?;
    let event: EventSubmission = body::read(body).await?;
    let event_id = api.dispatch.send_event(&api.emitter_of(tenant), event, None).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "eventId": event_id }))))
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
    headers: HeaderMap,
    asked: Asked<OfName>,
) -> Result<Json<SentEventPage>, Problem> {
    let tenant = api.caller(&headers, KeyScope::Read).await?;
    let Query(asked) = asked?;
    let (name, limit) = (Name::new("event", asked.event)?, limit(asked.limit)?);
    if !asked.cursor.as_deref().is_none_or(is_place) {
        return Err(foreign_cursor().into());
    }
    Ok(Json(api.dispatch.sent_events(&tenant, &name, limit, asked.cursor.as_deref()).await?))
}

/// Whether it is the place of a sent event: its time and its id.
fn is_place(cursor: &str) -> bool {
    cursor.split_once('#').is_some_and(|(time, id)| {
        let digits = time.bytes().all(|byte| byte.is_ascii_digit());
        digits && Millis::parse("cursor", time).is_ok() && Name::new("cursor", id).is_ok()
    })
}
