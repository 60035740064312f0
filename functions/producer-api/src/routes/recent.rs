//! `GET /api/events/recent`: newest first, by whichever index fits the filters.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Query, State},
};
use ledgerline_event::{Event, Millis};
use ledgerline_ledger::{EventFilter, Order};
use serde::Deserialize;
use serde_json::{Value, json};

use super::listing::{Asked, limit};
use crate::{Api, access::MayRead, problem::Problem};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Filters {
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

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    filters: Asked<Filters>,
) -> Result<Json<Value>, Problem> {
    let Query(filters) = filters?;
    let time = |field, text: Option<String>, otherwise| {
        text.map_or(Ok(otherwise), |text| Millis::parse(field, &text))
    };
    let limit = limit(filters.limit)?;
    let filter = EventFilter {
        since: time("since", filters.since, Millis::MIN)?,
        until: time("until", filters.until, Millis::MAX)?,
        event_type: filters.event_type,
        entity_type: filters.entity_type,
        entity_id: filters.entity_id,
        app: filters.app,
    };
    let page = api
        .reader
        .recent(&tenant, &filter.checked()?, Order::NewestFirst, limit, filters.cursor.as_deref())
        .await?;
    let items: Vec<Event> = page.items;
    Ok(Json(json!({ "items": items, "cursor": page.cursor })))
}
