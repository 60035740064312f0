//! Tasks: submitting one, the states of tasks, and the events of one.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use ledgerline_event::{
    TaskSummary,
    catalogue::{Catalogued, TaskPending, TaskState},
    dag::bare_id,
    keys::Scope,
};
use ledgerline_jobs::{SubmittedTask, TaskPage, TaskSubmission};
use ledgerline_ledger::EventQuery;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    Api,
    access::{MayRead, MayWrite},
    idempotency_key,
    json_body::JsonBody,
    problem::Problem,
    query_params::{Paging, PathId, QueryParams, StateFilter},
};

pub(crate) async fn submit(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    JsonBody(mut task): JsonBody<TaskSubmission>,
) -> Result<(StatusCode, Json<SubmittedTask>), Problem> {
    idempotency_key::fill_id(&headers, "requestId", &mut task.request_id, bare_id)?;
    let submitted = api.stage.tasks.submit_task(&api.emitter_of(tenant), task).await?;
    Ok((StatusCode::ACCEPTED, Json(submitted)))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    QueryParams(params): QueryParams<StateFilter<TaskState>>,
) -> Result<Json<TaskPage>, Problem> {
    Ok(Json(api.stage.tasks.tasks(&tenant, params.state, params.limit()?, params.cursor.as_deref()).await?))
}

/// A task, with its output if it is completed.
#[derive(Serialize)]
pub(crate) struct TaskDetails {
    #[serde(flatten)]
    task: TaskSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    PathId(id): PathId,
) -> Result<Json<TaskDetails>, Problem> {
    let task = api.stage.tasks.task(&tenant, &id).await?;
    let output = api.stage.tasks.task_output(&tenant, &task).await?;
    Ok(Json(TaskDetails { task, output }))
}

pub(crate) async fn history(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    PathId(id): PathId,
    QueryParams(paging): QueryParams<Paging>,
) -> Result<Json<Value>, Problem> {
    let query = EventQuery::new(&tenant, Scope::Entity(TaskPending::ENTITY_TYPE, &id));
    let page = api.reader.page(&query, paging.limit()?, paging.cursor.as_deref()).await?;
    if page.items.is_empty() && page.cursor.is_none() && paging.cursor.is_none() {
        // No events: the task is unknown, or was submitted a moment ago.
        api.stage.tasks.task(&tenant, &id).await?;
    }
    Ok(Json(json!({ "items": page.items, "cursor": page.cursor })))
}
