//! The records of jobs as events make them.

use ledgerline_event::{Event, Invalid, Name, Seconds, catalogue::JobTask};
use ledgerline_store::{JobNode, JobRecord};

/// A job's records outlive its events by this: a job that waits for a worker or an operator must not lose its tasks.
const KEPT_LONGER_SECONDS: u64 = 365 * 24 * 60 * 60;

/// The expiry of a job's records that are written because of an event with this expiry.
pub(super) fn kept_until(ttl: Option<Seconds>) -> Option<Seconds> {
    ttl.map(|ttl| ttl.plus(KEPT_LONGER_SECONDS))
}

/// The job that an event makes.
pub(super) fn new_job(
    tenant: &Name,
    job_id: &Name,
    request_id: &str,
    event: &Event,
    total: usize,
) -> JobRecord {
    let mut record = JobRecord {
        job_id: job_id.clone(),
        request_id: request_id.to_owned(),
        app_name: event.app_name.clone(),
        created_at: event.timestamp,
        completed_at: None,
        total: u32::try_from(total).unwrap_or(u32::MAX),
        done: 0,
        failed: 0,
        active: 0,
        generation: 1,
        created_by: event.event_id.clone(),
        laid_out: false,
        workflow_run_id: event.workflow_run_id.as_deref().and_then(|id| Name::new("workflowRunId", id).ok()),
        content_hash: None,
        list_in: None,
        list_at: None,
        claim_state: None,
        ttl: kept_until(event.ttl),
    };
    record.list_in = Some(record.list(tenant));
    record.list_at = Some(format!("{}#{job_id}", record.created_at));
    record
}

/// The node of a task, its input left out.
pub(super) fn new_node(task: &JobTask, event: &Event) -> Result<JobNode, Invalid> {
    Ok(JobNode {
        task_id: Name::new("taskId", task.task_id.as_str())?,
        name: task.name.clone(),
        depends_on: task.depends_on.clone(),
        input: None,
        input_key: None,
        timeout_ms: task.timeout_ms,
        max_attempts: task.max_attempts,
        added_by: event.event_id.clone(),
        ttl: kept_until(event.ttl),
    })
}
