//! Parked starts: listing them, retrying one, and dropping one.

use std::sync::Arc;

use axum::{Json, extract::State};
use ledgerline_drains::{ParkedFilter, ParkedPage, ParkedStart, Retried};

use crate::{
    Api,
    access::{MayAdminister, MayRead},
    problem::Problem,
    query_params::{OpenFilter, PathId, QueryParams},
};

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    QueryParams(params): QueryParams<OpenFilter>,
) -> Result<Json<ParkedPage>, Problem> {
    let filter = if params.all { ParkedFilter::All } else { ParkedFilter::Parked };
    Ok(Json(api.stage.parked().parked(&tenant, filter, params.limit()?, params.cursor()?).await?))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    PathId(id): PathId,
) -> Result<Json<ParkedStart>, Problem> {
    Ok(Json(api.stage.parked().parked_start(&tenant, &id).await?))
}

pub(crate) async fn retry(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    PathId(id): PathId,
) -> Result<Json<Retried>, Problem> {
    Ok(Json(api.stage.drains.retry(&tenant, &id).await?))
}

pub(crate) async fn drop(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    PathId(id): PathId,
) -> Result<Json<ParkedStart>, Problem> {
    Ok(Json(api.stage.drains.drop_parked(&tenant, &id).await?))
}
