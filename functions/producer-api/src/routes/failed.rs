//! Failed deliveries: what did not arrive, and sending it again.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::listing::{Asked, Open};
use crate::{
    Api,
    access::{MayAdminister, MayRead},
    body,
    problem::Problem,
};

/// Without ids everything open is redriven, this many at a time.
const REDRIVE_PAGE: usize = 100;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    asked: Asked<Open>,
) -> Result<Json<Value>, Problem> {
    let Query(asked) = asked?;
    let page = api.control.failures(&tenant, asked.all, asked.limit()?, asked.cursor()?).await?;
    Ok(Json(json!({ "items": page.items, "cursor": page.cursor })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Redrive {
    ids: Option<Vec<String>>,
}

pub(crate) async fn redrive(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    body: Body,
) -> Result<Json<Value>, Problem> {
    let asked: Redrive = body::read(body).await?;
    let ids = match asked.ids {
        Some(ids) if ids.len() > REDRIVE_PAGE => {
            return Err(Problem::bad_request(format!(
                "ids: {} are given; at most {REDRIVE_PAGE} at a time",
                ids.len()
            )));
        }
        Some(ids) => ids,
        None => {
            let open = api.control.failures(&tenant, false, REDRIVE_PAGE, None).await?;
            open.items.into_iter().map(|failure| failure.id).collect()
        }
    };
    let (mut redriven, mut refused) = (Vec::new(), Vec::new());
    let bus = (&api.clients.events, api.names.bus.as_str());
    for id in ids {
        match api.control.redrive(&tenant, &id, bus, &api.payloads, (api.clock)()).await {
            Ok(()) => redriven.push(id),
            Err(error) => refused.push(json!({ "id": id, "reason": error.to_string() })),
        }
    }
    Ok(Json(json!({ "redriven": redriven, "refused": refused })))
}
