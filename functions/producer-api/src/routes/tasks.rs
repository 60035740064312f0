//! Tasks: submitting one, and how tasks fare.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode},
};
use ledgerline_dispatch::{SubmittedTask, TaskPage, TaskSubmission};
use ledgerline_event::{
    TaskSummary,
    catalogue::{Catalogued, TaskPending, TaskState},
    dag::bare_id,
    keys::Scope,
};
use ledgerline_ledger::EventQuery;
use serde::Serialize;
use serde_json::{Value, json};

use super::listing::{Asked, InState, Paging};
use crate::{
    Api,
    access::{MayRead, MayWrite},
    body, idempotency,
    problem::Problem,
};

pub(crate) async fn submit(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<SubmittedTask>), Problem> {
    let mut task: TaskSubmission = body::read(body).await?;
    idempotency::fill_id(&headers, "requestId", &mut task.request_id, bare_id)?;
    let submitted = api.dispatch.submit_task(&api.emitter_of(tenant), task).await?;
    Ok((StatusCode::ACCEPTED, Json(submitted)))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    asked: Asked<InState<TaskState>>,
) -> Result<Json<TaskPage>, Problem> {
    let Query(asked) = asked?;
    Ok(Json(api.dispatch.tasks(&tenant, asked.state, asked.limit()?, asked.cursor.as_deref()).await?))
}

/// A task, and what it put out if it is completed.
#[derive(Serialize)]
pub(crate) struct Shown {
    #[serde(flatten)]
    task: TaskSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Shown>, Problem> {
    let task = api.dispatch.task(&tenant, &id?.0).await?;
    let output = api.dispatch.task_output(&tenant, &task).await?;
    Ok(Json(Shown { task, output }))
}

pub(crate) async fn history(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    id: Result<Path<String>, PathRejection>,
    paging: Asked<Paging>,
) -> Result<Json<Value>, Problem> {
    let (Path(id), Query(paging)) = (id?, paging?);
    let query = EventQuery::new(&tenant, Scope::Entity(TaskPending::ENTITY_TYPE, &id));
    let page = api.reader.page(&query, paging.limit()?, paging.cursor.as_deref()).await?;
    if page.items.is_empty() && page.cursor.is_none() && paging.cursor.is_none() {
        // None at all: it is unknown, or was submitted a moment ago.
        api.dispatch.task(&tenant, &id).await?;
    }
    Ok(Json(json!({ "items": page.items, "cursor": page.cursor })))
}
