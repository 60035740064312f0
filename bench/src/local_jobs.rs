//! Jobs in a running local mode: submitting them, knowing when they are completed, and a worker's task file.

use std::{fs, path::PathBuf};

use anyhow::Context;
use ledgerline_embedded::{Call, Service};
use ledgerline_event::Name;
use ledgerline_jobs::{JobSubmission, SubmittedJobTask};
use ledgerline_ledger::{Emitter, Names};
use ledgerline_local::{Local, LocalOptions, STAGE};
use serde_json::Value;
use tempfile::TempDir;

use crate::sightings::Sightings;

/// How many tasks run at the same time.
pub(crate) const CONCURRENCY: usize = 8;

/// Local mode with an interceptor in it, and a worker for which every task is `command`, if there is one.
pub(crate) fn options(
    folder: &TempDir,
    sightings: &Sightings,
    names: impl Fn(&Call) -> Vec<String> + Send + Sync + 'static,
    command: Option<&str>,
) -> anyhow::Result<LocalOptions> {
    let worker = command.map(|command| task_file(folder, command)).transpose()?;
    let data = folder.path().join("data");
    Ok(LocalOptions { interceptor: Some(sightings.interceptor(names)), worker, ..LocalOptions::new(data) })
}

/// A task file in which every task is this command.
pub(crate) fn task_file(folder: &TempDir, command: &str) -> anyhow::Result<PathBuf> {
    let file = folder.path().join("worker.toml");
    let words: Vec<&str> = command.split_whitespace().collect();
    let text = format!("concurrency = {CONCURRENCY}\n\n[tasks.\"*\"]\ncommand = {words:?}\n");
    fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    Ok(file)
}

/// Submits a job.
pub(crate) async fn submit(
    local: &Local,
    tenant: &Name,
    tasks: Vec<SubmittedJobTask>,
) -> anyhow::Result<Name> {
    let app = Name::new("appName", "shop")?;
    let emitter = Emitter::new(&local.clients, &local.names, tenant.clone(), app);
    let submission = JobSubmission { job_id: None, request_id: None, tasks };
    Ok(Box::pin(local.stage.jobs.submit_job(&emitter, submission)).await?.job_id)
}

/// What the end of a job is called.
pub(crate) fn completed(job_id: &str) -> String {
    format!("completed {job_id}")
}

/// Names the end of a job: when its event is in the events table.
pub(crate) fn job_completed() -> impl Fn(&Call) -> Vec<String> + Send + Sync + 'static {
    const MARK: &[u8] = b"\"Job Completed\"";
    let table = Names::of_stage(STAGE).events_table;
    move |call: &Call| {
        let is_put = call.service == Service::DynamoDb && call.operation == "PutItem";
        if !is_put || !call.body.windows(MARK.len()).any(|window| window == MARK) {
            return Vec::new();
        }
        let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        let item = &body["Item"];
        let is_it = body["TableName"] == table.as_str() && item["eventType"]["S"] == "Job Completed";
        is_it.then(|| item["entityId"]["S"].as_str().map(completed)).flatten().into_iter().collect()
    }
}
