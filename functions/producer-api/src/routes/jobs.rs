//! Jobs: listing and showing them, submitting one, adding tasks to it, and resuming it.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use ledgerline_event::{JobState, dag::bare_id};
use ledgerline_jobs::{AddedTasks, JobDetails, JobPage, JobSubmission, SubmittedJob, SubmittedJobTask};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Api,
    access::{MayRead, MayWrite},
    idempotency_key,
    json_body::JsonBody,
    problem::Problem,
    query_params::{PathId, QueryParams, StateFilter},
};

pub(crate) async fn submit(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    headers: HeaderMap,
    JsonBody(mut job): JsonBody<JobSubmission>,
) -> Result<(StatusCode, Json<SubmittedJob>), Problem> {
    idempotency_key::fill_id(&headers, "jobId", &mut job.job_id, bare_id)?;
    let submitted = api.stage.jobs.submit_job(&api.emitter_of(tenant), job).await?;
    Ok((StatusCode::ACCEPTED, Json(submitted)))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    QueryParams(params): QueryParams<StateFilter<JobState>>,
) -> Result<Json<JobPage>, Problem> {
    Ok(Json(api.stage.jobs.jobs(&tenant, params.state, params.limit()?, params.cursor.as_deref()).await?))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    PathId(id): PathId,
) -> Result<Json<JobDetails>, Problem> {
    Ok(Json(api.stage.jobs.job(&tenant, &id).await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AddTasksRequest {
    tasks: Vec<SubmittedJobTask>,
}

pub(crate) async fn add(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    PathId(id): PathId,
    JsonBody(request): JsonBody<AddTasksRequest>,
) -> Result<(StatusCode, Json<AddedTasks>), Problem> {
    let added = api.stage.jobs.add_tasks(&api.emitter_of(tenant), &id, request.tasks).await?;
    Ok((StatusCode::ACCEPTED, Json(added)))
}

pub(crate) async fn resume(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    PathId(id): PathId,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let resumed = api.stage.jobs.resume_job(&api.emitter_of(tenant), &id).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "resumed": resumed }))))
}
