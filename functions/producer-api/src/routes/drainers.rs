//! Drainers: where they stand, draining at once, going back.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
};
use ledgerline_dispatch::{DEFAULT_DRAINER, DispatchError, Drained, Rewind};
use ledgerline_event::Name;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    Api,
    access::{MayAdminister, MayRead},
    body,
    problem::Problem,
};

/// API Gateway waits half a minute for an answer.
const DRAIN_FOR: Duration = Duration::from_secs(20);
/// A drainer at work may move while a rewind is prepared, and does so about once a page.
const REWIND_ATTEMPTS: usize = 10;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
) -> Result<Json<Value>, Problem> {
    let items = api.dispatch.drainer_states(&tenant).await?;
    Ok(Json(json!({ "items": items, "cursor": null })))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Drain {
    drainer_id: Option<String>,
}

pub(crate) async fn drain(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    body: Body,
) -> Result<Json<Drained>, Problem> {
    let asked: Drain = body::read_or_default(body).await?;
    let drainer = asked.drainer_id.as_deref().unwrap_or(DEFAULT_DRAINER);
    let drainer = api.dispatch.drainers().get("drainerId", drainer)?;
    Ok(Json(api.dispatch.drain(&tenant, &drainer.id, Some(Instant::now() + DRAIN_FOR)).await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Back {
    /// 13 digits, as a number or in quotes, RFC 3339, or the id of an event.
    to: Value,
    #[serde(default)]
    missing_only: bool,
}

pub(crate) async fn rewind(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    drainer: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Json<Rewind>, Problem> {
    let Path(drainer) = drainer?;
    let back: Back = body::read(body).await?;
    let to = match back.to {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        _ => {
            return Err(Problem::bad_request(
                "to: a time (13 digits or RFC 3339) or an event id is expected",
            ));
        }
    };
    if !api.dispatch.drainer_states(&tenant).await?.iter().any(|state| *state.drainer_id == *drainer) {
        let detail = format!("drainer: there is no `{drainer}` that has begun for this tenant");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    let mut done = api.go_back(&tenant, &drainer, &to, back.missing_only).await?;
    api.dispatch.follow_rewind(&tenant, &mut done, Instant::now() + DRAIN_FOR).await?;
    Ok(Json(done))
}

impl Api {
    async fn go_back(
        &self,
        tenant: &Name,
        drainer: &str,
        to: &str,
        missing_only: bool,
    ) -> Result<Rewind, DispatchError> {
        let mut plan = self.dispatch.plan_rewind(tenant, drainer, to, missing_only, true).await?;
        let events = plan.events;
        for _ in 1..REWIND_ATTEMPTS {
            match self.dispatch.rewind(tenant, &plan).await {
                Ok(()) => return Ok(plan),
                // Counting takes the longest, and the drainer has only gone on.
                Err(DispatchError::Refused(_)) => {
                    plan = self.dispatch.plan_rewind(tenant, drainer, to, missing_only, false).await?;
                    plan.events = events;
                }
                Err(error) => return Err(error),
            }
        }
        self.dispatch.rewind(tenant, &plan).await?;
        Ok(plan)
    }
}
