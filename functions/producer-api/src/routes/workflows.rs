//! Workflow types: what subscriptions start, and starting it by hand.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode},
};
use ledgerline_dispatch::NewWorkflowType;
use ledgerline_subscription::WorkflowType;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    Api,
    access::{MayAdminister, MayRead, MayWrite},
    body, idempotency,
    problem::Problem,
};

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
) -> Result<Json<Value>, Problem> {
    let items = api.dispatch.workflow_types(&tenant).await?;
    Ok(Json(json!({ "items": items, "cursor": null })))
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    body: Body,
) -> Result<(StatusCode, Json<WorkflowType>), Problem> {
    let new: NewWorkflowType = body::read(body).await?;
    let made = new.created_at((api.clock)())?;
    api.dispatch.register(&tenant, &made).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    workflow_type: Result<Path<String>, PathRejection>,
) -> Result<Json<WorkflowType>, Problem> {
    Ok(Json(api.dispatch.unregister(&tenant, &workflow_type?.0).await?))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Start {
    #[serde(default)]
    input: Map<String, Value>,
}

pub(crate) async fn start(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    workflow_type: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let Path(workflow_type) = workflow_type?;
    let start: Start = body::read_or_default(body).await?;
    let key = idempotency::key(&headers)?;
    let start = api.dispatch.start(&tenant, &workflow_type, start.input, "api:start", key.as_deref()).await?;
    let answer =
        json!({ "workflowType": workflow_type, "collapsed": start.collapsed, "started": start.started });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}
