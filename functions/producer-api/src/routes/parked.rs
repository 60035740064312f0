//! Parked starts: what did not start, starting it after all, giving it up.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, State, rejection::PathRejection},
};
use ledgerline_dispatch::{ParkedPage, ParkedStart, Retried};

use super::listing::{Asked, Open};
use crate::{
    Api,
    access::{MayAdminister, MayRead},
    problem::Problem,
};

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    asked: Asked<Open>,
) -> Result<Json<ParkedPage>, Problem> {
    let Query(asked) = asked?;
    Ok(Json(api.dispatch.parked(&tenant, asked.all, asked.limit()?, asked.cursor()?).await?))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ParkedStart>, Problem> {
    Ok(Json(api.dispatch.parked_start(&tenant, &id?.0).await?))
}

pub(crate) async fn retry(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Retried>, Problem> {
    Ok(Json(api.dispatch.retry(&tenant, &id?.0).await?))
}

pub(crate) async fn drop(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ParkedStart>, Problem> {
    Ok(Json(api.dispatch.drop_parked(&tenant, &id?.0).await?))
}
