//! Drainers: their states, draining at once, and rewinding.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, http::StatusCode};
use ledgerline_drains::{CountEvents, DEFAULT_DRAINER, Drained, Rewind, RewindScope};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    Api,
    access::{MayAdminister, MayRead},
    json_body::{JsonBody, JsonBodyOrDefault},
    problem::Problem,
    query_params::PathId,
};

/// API Gateway waits half a minute for an answer.
const DRAIN_FOR: Duration = Duration::from_secs(20);
/// A working drainer moves its cursor about once a page, and each move makes a planned rewind stale.
const REWIND_ATTEMPTS: usize = 10;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
) -> Result<Json<Value>, Problem> {
    let items = api.stage.drains.drainer_states(&tenant).await?;
    Ok(Json(json!({ "items": items, "cursor": null })))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DrainRequest {
    drainer_id: Option<String>,
}

pub(crate) async fn drain(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    JsonBodyOrDefault(request): JsonBodyOrDefault<DrainRequest>,
) -> Result<Json<Drained>, Problem> {
    let drainer = request.drainer_id.as_deref().unwrap_or(DEFAULT_DRAINER);
    let drainer = api.stage.drainers().get("drainerId", drainer)?;
    Ok(Json(api.stage.drains.drain(&tenant, &drainer.id, Some(Instant::now() + DRAIN_FOR)).await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RewindRequest {
    /// 13 digits, as a number or in quotes, RFC 3339, or the id of an event.
    to: Value,
    #[serde(default)]
    missing_only: bool,
}

pub(crate) async fn rewind(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    PathId(drainer): PathId,
    JsonBody(request): JsonBody<RewindRequest>,
) -> Result<Json<Rewind>, Problem> {
    let to = match request.to {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        _ => {
            return Err(Problem::bad_request(
                "to: a time (13 digits or RFC 3339) or an event id is expected",
            ));
        }
    };
    if !api.stage.drains.drainer_states(&tenant).await?.iter().any(|state| *state.drainer_id == *drainer) {
        let detail = format!("drainer: there is no `{drainer}` that has begun for this tenant");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    let drains = &api.stage.drains;
    let plan = drains
        .plan_rewind(&tenant, &drainer, &to, RewindScope::of(request.missing_only), CountEvents::Yes)
        .await?;
    let mut done = drains.rewind_with_retries(&tenant, plan, &to, REWIND_ATTEMPTS).await?;
    drains.follow_rewind(&tenant, &mut done, Instant::now() + DRAIN_FOR).await?;
    Ok(Json(done))
}
