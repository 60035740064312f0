//! Parked starts: what did not start, starting it after all, giving it up.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, State, rejection::PathRejection, rejection::QueryRejection},
    http::HeaderMap,
};
use ledgerline_dispatch::{ParkedPage, ParkedStart, Retried};
use ledgerline_ledger::control::{api_key::KeyScope, keys::is_failure_id};
use serde::Deserialize;

use super::limit;
use crate::{Api, problem::Problem};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Filters {
    /// Also those that are still tried again.
    #[serde(default)]
    all: bool,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    filters: Result<Query<Filters>, QueryRejection>,
) -> Result<Json<ParkedPage>, Problem> {
    let tenant = api.caller(&headers, KeyScope::Read).await?;
    let Query(filters) = filters?;
    // The ids of failed deliveries and of parked starts have the same form.
    if filters.cursor.as_deref().is_some_and(|cursor| !is_failure_id(cursor)) {
        return Err(Problem::bad_request("cursor: is not one that a list gave"));
    }
    let limit = limit(filters.limit)?;
    Ok(Json(api.dispatch.parked(&tenant, filters.all, limit, filters.cursor.as_deref()).await?))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ParkedStart>, Problem> {
    let tenant = api.caller(&headers, KeyScope::Read).await?;
    Ok(Json(api.dispatch.parked_start(&tenant, &id?.0).await?))
}

pub(crate) async fn retry(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Retried>, Problem> {
    let tenant = api.caller(&headers, KeyScope::Admin).await?;
    Ok(Json(api.dispatch.retry(&tenant, &id?.0).await?))
}

pub(crate) async fn drop(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ParkedStart>, Problem> {
    let tenant = api.caller(&headers, KeyScope::Admin).await?;
    Ok(Json(api.dispatch.drop_parked(&tenant, &id?.0).await?))
}
