//! Parked starts: what did not start, starting it after all, giving it up.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, State, rejection::PathRejection},
    http::HeaderMap,
};
use ledgerline_dispatch::{ParkedPage, ParkedStart, Retried};
use ledgerline_ledger::control::api_key::KeyScope;

use super::listing::{Asked, Open};
use crate::{Api, problem::Problem};

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    asked: Asked<Open>,
) -> Result<Json<ParkedPage>, Problem> {
    let tenant = api.caller(&headers, KeyScope::Read).await?;
    let Query(asked) = asked?;
    Ok(Json(api.dispatch.parked(&tenant, asked.all, asked.limit()?, asked.cursor()?).await?))
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
