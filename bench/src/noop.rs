//! A worker without commands: it acquires a task, emits that processing has started, and completes the task.

use std::time::Duration;

use anyhow::ensure;
use ledgerline_event::catalogue::TaskProcessingStarted;
use ledgerline_jobs::{Acquisition, EndAnswer, TaskEnd, TaskLease, TaskMessage};
use ledgerline_stage::Stage;
use serde_json::json;

/// How long a worker hides a message at a time.
const EXTENSION: Duration = Duration::from_secs(60);
const ATTEMPTS: u32 = 3;

/// Acquires the task of a message and emits that processing has started.
pub(crate) async fn begin(stage: &Stage, body: &str) -> anyhow::Result<TaskLease> {
    let message = TaskMessage::parse(body)?;
    let taken = stage.tasks.acquire(&message, body, "worker-1", EXTENSION, ATTEMPTS).await?;
    let Acquisition::Acquired(lease) = taken else { anyhow::bail!("not taken: {taken:?}") };
    let started = TaskProcessingStarted {
        request_id: message.request_id.to_string(),
        job_id: message.job_id.as_ref().map(ToString::to_string),
        effective_until: lease.until.seconds(),
        worker_id: lease.worker_id.clone(),
        process_id: std::process::id(),
    };
    stage.tasks.task_emitter(&lease).catalogued(message.request_id.as_str(), started).emit().await?;
    Ok(*lease)
}

/// Completes a task that took `duration_ms`.
pub(crate) async fn complete(stage: &Stage, lease: &TaskLease, duration_ms: u64) -> anyhow::Result<()> {
    let end = TaskEnd::Completed { output: json!({ "pages": 42 }), duration_ms, exit_code: 0, usage: None };
    let ended = stage.tasks.end(lease, end).await?;
    ensure!(ended == EndAnswer::Done, "the end of {} was refused", lease.message.request_id);
    Ok(())
}
