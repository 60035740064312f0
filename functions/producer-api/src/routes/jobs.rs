//! Jobs: submitting one, adding tasks to it, resuming it, and how jobs fare.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode},
};
use ledgerline_dispatch::{AddedTasks, JobDetails, JobPage, JobSubmission, SubmittedJob, SubmittedJobTask};
use ledgerline_event::{JobState, dag::bare_id};
use serde::Deserialize;
use serde_json::{Value, json};

use super::listing::{Asked, InState};
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
) -> Result<(StatusCode, Json<SubmittedJob>), Problem> {
    let mut job: JobSubmission = body::read(body).await?;
    idempotency::fill_id(&headers, "jobId", &mut job.job_id, bare_id)?;
    let submitted = api.dispatch.submit_job(&api.emitter_of(tenant), job).await?;
    Ok((StatusCode::ACCEPTED, Json(submitted)))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    asked: Asked<InState<JobState>>,
) -> Result<Json<JobPage>, Problem> {
    let Query(asked) = asked?;
    Ok(Json(api.dispatch.jobs(&tenant, asked.state, asked.limit()?, asked.cursor.as_deref()).await?))
}

pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    MayRead(tenant): MayRead,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<JobDetails>, Problem> {
    Ok(Json(api.dispatch.job(&tenant, &id?.0).await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Addition {
    tasks: Vec<SubmittedJobTask>,
}

pub(crate) async fn add(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<(StatusCode, Json<AddedTasks>), Problem> {
    let Path(id) = id?;
    let addition: Addition = body::read(body).await?;
    let added = api.dispatch.add_tasks(&api.emitter_of(tenant), &id, addition.tasks).await?;
    Ok((StatusCode::ACCEPTED, Json(added)))
}

pub(crate) async fn resume(
    State(api): State<Arc<Api>>,
    MayWrite(tenant): MayWrite,
    id: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let resumed = api.dispatch.resume_job(&api.emitter_of(tenant), &id?.0).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "resumed": resumed }))))
}
