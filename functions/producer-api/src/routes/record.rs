//! `POST /api/events/record`: any event, by hand or from a system that speaks only HTTP.

use std::sync::Arc;

use axum::{Json, body::Body, extract::State, http::HeaderMap, http::StatusCode};
use ledgerline_event::{Invalid, MAX_AHEAD_MS, Millis, Name, Properties, content_hash};
use ledgerline_ledger::control::api_key::KeyScope;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Api, body, problem::Problem};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    event_type: String,
    entity_type: String,
    entity_id: String,
    #[serde(default)]
    properties: Properties,
    idempotency_key: Option<String>,
    caused_by: Option<String>,
    workflow_run_id: Option<String>,
    source_system: Option<String>,
    sequence_no: Option<u64>,
    /// 13 digits, as a number or in quotes, or RFC 3339.
    occurred_at: Option<Value>,
    app: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recorded {
    event_id: Name,
    collapsed: bool,
}

pub(crate) async fn record(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Recorded>), Problem> {
    let tenant = api.caller(&headers, KeyScope::Admin).await?;
    let record: Record = body::read(body).await?;
    let now = (api.clock)();

    let emitter = api.emitter_of(tenant.clone());
    let mut draft = emitter.event(record.event_type).entity(record.entity_type, record.entity_id);
    if let Some(time) = occurred_at(record.occurred_at, now)? {
        draft = draft.at(time);
    }
    if let Some(app) = record.app {
        draft = draft.app(app);
    }
    if let Some(cause) = record.caused_by {
        draft = draft.caused_by(cause);
    }
    if let Some(run) = record.workflow_run_id {
        draft = draft.workflow_run_id(run);
    }
    if let Some(system) = record.source_system {
        draft = draft.source_system(system);
    }
    if let Some(number) = record.sequence_no {
        draft = draft.sequence_no(number);
    }
    let mut draft = draft.properties(record.properties);
    if let Some(key) = record.idempotency_key {
        draft = draft.idempotency_key(key.clone());
        // Checked before the look-up, so that a bad event is told so whether or not its key is taken.
        let event = draft.clone().build_plain()?;
        if let Some(first) = api.control.marker(&tenant, &key, now).await? {
            if first.content_hash != content_hash(&event) {
                tracing::warn!(first = %first.event_id, key, "collapsed onto an event with other content");
                api.metrics.count(now, &[("CollapsedDifferent", 1)]);
            }
            return Ok((StatusCode::ACCEPTED, Json(Recorded { event_id: first.event_id, collapsed: true })));
        }
    }
    let event_id = draft.emit().await?;
    Ok((StatusCode::ACCEPTED, Json(Recorded { event_id, collapsed: false })))
}

fn occurred_at(given: Option<Value>, now: Millis) -> Result<Option<Millis>, Invalid> {
    let time = match given {
        None => return Ok(None),
        Some(Value::String(text)) => Millis::parse("occurredAt", &text)?,
        Some(other) => Millis::parse("occurredAt", &other.to_string())?,
    };
    let ahead = time.get().saturating_sub(now.get());
    if ahead > MAX_AHEAD_MS {
        return Err(Invalid::new(
            "occurredAt",
            format!("is {ahead} ms in the future; at most {MAX_AHEAD_MS} are allowed"),
        ));
    }
    Ok(Some(time))
}
