//! Failed deliveries: events that did not arrive, and their redrive.

use std::{pin::pin, sync::Arc};

use axum::{Json, extract::State};
use futures::StreamExt;
use ledgerline_ledger::{Deliveries, RedriveOutcome};
use ledgerline_store::FailureFilter;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Api,
    access::{MayAdminister, MayRead},
    json_body::JsonBody,
    problem::Problem,
    query_params::{OpenFilter, QueryParams},
};

/// How many failed deliveries one request redrives at most: those that it names, or the newest that are open.
const REDRIVE_PAGE: usize = 100;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    QueryParams(params): QueryParams<OpenFilter>,
) -> Result<Json<Value>, Problem> {
    let filter = if params.all { FailureFilter::All } else { FailureFilter::Failed };
    let page = api.failed_deliveries.list(&tenant, filter, params.limit()?, params.cursor()?).await?;
    Ok(Json(json!({ "items": page.items, "cursor": page.cursor })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RedriveRequest {
    ids: Option<Vec<String>>,
}

pub(crate) async fn redrive(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    JsonBody(request): JsonBody<RedriveRequest>,
) -> Result<Json<Value>, Problem> {
    let deliveries = match request.ids {
        Some(ids) if ids.len() > REDRIVE_PAGE => {
            return Err(Problem::bad_request(format!(
                "ids: {} are given; at most {REDRIVE_PAGE} at a time",
                ids.len()
            )));
        }
        Some(ids) => Deliveries::Ids(ids),
        None => Deliveries::NewestOpen(REDRIVE_PAGE),
    };
    let (mut redriven, mut refused) = (Vec::new(), Vec::new());
    let mut outcomes = pin!(api.redrive.redrive(&tenant, deliveries).await?);
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            RedriveOutcome::Redriven { id } => redriven.push(id),
            RedriveOutcome::Refused { id, error } => {
                refused.push(json!({ "id": id, "reason": error.to_string() }));
            }
        }
    }
    Ok(Json(json!({ "redriven": redriven, "refused": refused })))
}
