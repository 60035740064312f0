//! Workflow types, which subscriptions start: listing, registering and removing them, and starting one by hand.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use ledgerline_drains::NewWorkflowType;
use ledgerline_subscription::WorkflowType;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    Api,
    access::{MayAdminister, MayRead, MayWrite},
    idempotency_key,
    json_body::{JsonBody, JsonBodyOrDefault},
    problem::Problem,
    query_params::PathId,
};

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
) -> Result<Json<Value>, Problem> {
    let items = api.stage.registry().workflow_types(&tenant).await?;
    Ok(Json(json!({ "items": items, "cursor": null })))
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    JsonBody(new): JsonBody<NewWorkflowType>,
) -> Result<(StatusCode, Json<WorkflowType>), Problem> {
    let made = new.created_at((api.clock)())?;
    api.stage.registry().register(&tenant, &made).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

pub(crate) async fn remove(
    State(api): State<Arc<Api>>,
    MayAdminister(tenant): MayAdminister,
    PathId(workflow_type): PathId,
) -> Result<Json<WorkflowType>, Problem> {
    Ok(Json(api.stage.registry().unregister(&tenant, &workflow_type).await?))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StartRequest {
    #[serde(default)]
    input: Map<String, Value>,
}

pub(crate) async fn start(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    PathId(workflow_type): PathId,
    JsonBodyOrDefault(request): JsonBodyOrDefault<StartRequest>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let key = idempotency_key::read(&headers)?;
    let outcome =
        api.stage.drains.start(&tenant, &workflow_type, request.input, "api:start", key.as_deref()).await?;
    let answer =
        json!({ "workflowType": workflow_type, "collapsed": outcome.collapsed, "started": outcome.started });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}
