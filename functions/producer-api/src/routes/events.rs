//! Events of the ledger: `GET /api/events/recent`, newest first by whichever index fits the filters, and `POST /api/events/record`, any
//! event, by hand or from a system that speaks only HTTP.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use ledgerline_event::{Invalid, MAX_AHEAD_MS, Millis, Properties};
use ledgerline_ledger::{EventFilter, Order};
use ledgerline_outbox::RecordedEvent;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Api,
    access::{MayAdminister, MayRead},
    idempotency_key,
    json_body::JsonBody,
    problem::Problem,
    query_params::{QueryParams, limit},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RecentParams {
    #[serde(rename = "type")]
    event_type: Option<String>,
    entity_type: Option<String>,
    entity_id: Option<String>,
    app: Option<String>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(crate) async fn recent(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    QueryParams(params): QueryParams<RecentParams>,
) -> Result<Json<Value>, Problem> {
    let time = |field, text: Option<String>, otherwise| {
        text.map_or(Ok(otherwise), |text| Millis::parse(field, &text))
    };
    let limit = limit(params.limit)?;
    let filter = EventFilter {
        since: time("since", params.since, Millis::MIN)?,
        until: time("until", params.until, Millis::MAX)?,
        event_type: params.event_type,
        entity_type: params.entity_type,
        entity_id: params.entity_id,
        app: params.app,
    };
    let page = api
        .reader
        .recent(&tenant, &filter.checked()?, Order::NewestFirst, limit, params.cursor.as_deref())
        .await?;
    Ok(Json(json!({ "items": page.items, "cursor": page.cursor })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RecordRequest {
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

pub(crate) async fn record(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    headers: HeaderMap,
    JsonBody(mut record): JsonBody<RecordRequest>,
) -> Result<(StatusCode, Json<RecordedEvent>), Problem> {
    idempotency_key::fill(&headers, "idempotencyKey", &mut record.idempotency_key)?;
    let now = (api.clock)();

    let emitter = api.emitter_of(tenant);
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
        draft = draft.idempotency_key(key);
    }
    let recorded = api.stage.outbox.record_event(&emitter, draft.build_plain()?).await?;
    Ok((StatusCode::ACCEPTED, Json(recorded)))
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
