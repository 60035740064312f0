//! Events as they are in practice: one of each type of the catalogue.

use std::collections::BTreeMap;

use ledgerline_event::{
    Context, Event, Kind, Millis, Name, Properties, Seconds,
    catalogue::{
        Activity, Catalogued, ErrorCategory, FailureSource, Health, HealthSummary, JobCompleted, JobCreated,
        JobFailureDetected, JobResumed, JobTask, JobTasksAdded, MemoryUsage, Signal, TaskCompleted,
        TaskFailed, TaskHealth, TaskHealthCheck, TaskHeartbeat, TaskPending, TaskProcessingFailed,
        TaskProcessingStarted, TaskState, TaskTimeout, Usage,
    },
};
use serde_json::{Map, Value, json};
use ulid::Ulid;

const TENANT: &str = "gbinnovations";
const APP: &str = "task-workflow";
const WORKER: &str = "worker-i-001";

/// The ids that an event and its properties name.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    event: Name,
    task: String,
    job: String,
}

impl Ids {
    /// Short ones, as people choose them; `number` makes the event's own.
    pub(crate) fn short(number: usize) -> anyhow::Result<Self> {
        Ok(Self {
            event: Name::new("eventId", format!("e-{number}"))?,
            task: "req-123".into(),
            job: "job-456".into(),
        })
    }

    /// New ones of our own making.
    pub(crate) fn ulids() -> Self {
        let id = |kind: Kind| kind.id(Ulid::generate());
        Self { event: id(Kind::Event), task: id(Kind::Task).to_string(), job: id(Kind::Job).to_string() }
    }

    /// The entity id of a task within the job.
    fn job_task(&self) -> String {
        format!("{}:task-C", self.job)
    }
}

/// A worker has started a task of a job, at `at`.
pub(crate) fn started(ids: &Ids, at: Millis) -> anyhow::Result<Event<TaskProcessingStarted>> {
    let properties = TaskProcessingStarted {
        request_id: ids.job_task(),
        job_id: Some(ids.job.clone()),
        effective_until: at.seconds().plus(900),
        worker_id: WORKER.into(),
        process_id: 12_345,
    };
    event(ids, at, &ids.job_task(), properties)
}

/// The event of the catalogue's `number`th type, counted round and round.
pub(crate) fn nth(number: usize, ids: &Ids, at: Millis) -> anyhow::Result<Event> {
    let (request_id, job_id) = (ids.job_task(), Some(ids.job.clone()));
    match number % ledgerline_event::catalogue::EVENT_TYPES.len() {
        0 => {
            let depends_on = Some(vec!["task-A".into()]);
            task(ids, at, TaskPending { request_id, job_id, name: "scrape-store".into(), depends_on })
        }
        1 => plain(started(ids, at)?),
        2 => {
            let (error, error_category) = ("connect ETIMEDOUT".into(), ErrorCategory::Network);
            task(
                ids,
                at,
                TaskProcessingFailed { request_id, job_id, attempt_number: 2, error, error_category },
            )
        }
        3 => {
            let usage = Usage {
                input_tokens: Some(12_000),
                output_tokens: Some(3_500),
                cache_read_tokens: Some(8_000),
                other: Map::new(),
            };
            let output = json!({"pages": 3, "storeId": "store-123"});
            let completed = TaskCompleted {
                request_id,
                job_id,
                output,
                duration_ms: 45_000,
                exit_code: 0,
                usage: Some(usage),
            };
            task(ids, at, completed)
        }
        4 => {
            let failed = TaskFailed {
                request_id,
                job_id,
                error: "Invalid API key".into(),
                error_category: ErrorCategory::Auth,
                retry_count: 3,
                source: FailureSource::Worker,
            };
            task(ids, at, failed)
        }
        5 => {
            let (timeout_ms, elapsed_ms) = (200_000, 200_050);
            task(ids, at, TaskTimeout { request_id, job_id, timeout_ms, elapsed_ms, signal: Signal::Sigkill })
        }
        6 => heartbeat(ids, at),
        7 => {
            let tasks = vec![node("task-A", &[]), node("task-B", &["task-A"]), node("task-C", &["task-A"])];
            let request_id = ids.task.clone();
            job(ids, at, JobCreated { job_id: ids.job.clone(), request_id, total_tasks: 3, tasks })
        }
        8 => {
            let new_tasks = vec![node("task-F", &["task-A"])];
            let (job_id, previous_total_tasks, total_tasks_now) = (ids.job.clone(), 5, 6);
            job(ids, at, JobTasksAdded { job_id, new_tasks, previous_total_tasks, total_tasks_now })
        }
        9 => {
            let task_statuses = states([Some(TaskState::Completed); 4]);
            job(ids, at, JobCompleted { job_id: ids.job.clone(), total_tasks: 4, task_statuses })
        }
        10 => {
            use TaskState::{Completed, Failed, Processing};
            let task_statuses = states([Some(Completed), Some(Processing), Some(Failed), None]);
            let failed_task_id = "task-C".into();
            job(ids, at, JobFailureDetected { job_id: ids.job.clone(), failed_task_id, task_statuses })
        }
        11 => {
            let tasks = BTreeMap::from([("task-C".to_owned(), 2)]);
            job(ids, at, JobResumed { job_id: ids.job.clone(), generation: 2, tasks })
        }
        _ => health_check(ids, at),
    }
}

fn heartbeat(ids: &Ids, at: Millis) -> anyhow::Result<Event> {
    let properties = TaskHeartbeat {
        request_id: ids.task.clone(),
        effective_until: at.seconds().plus(900),
        heartbeat_number: 3,
        elapsed_ms: 60_000,
        worker_id: WORKER.into(),
        process_id: 12_345,
        memory_usage: MemoryUsage { rss: 256_000_000 },
        last_activity: Some(Activity {
            kind: "step_running".into(),
            step_name: Some("color-tags".into()),
            timestamp: Seconds::new(at.seconds().get() - 5),
        }),
    };
    plain(event(ids, at, &ids.task, properties)?)
}

fn health_check(ids: &Ids, at: Millis) -> anyhow::Result<Event> {
    let running = TaskHealth {
        request_id: ids.task.clone(),
        health: Health::Healthy,
        elapsed: 120_000,
        time_since_last_event: 15_000,
        last_event_type: TaskHeartbeat::EVENT_TYPE.into(),
        worker_id: WORKER.into(),
    };
    let summary = HealthSummary { total_processing: 1, healthy: 1, ..HealthSummary::default() };
    plain(event(ids, at, "health-check", TaskHealthCheck { summary, tasks: vec![running] })?)
}

fn node(task_id: &str, depends_on: &[&str]) -> JobTask {
    JobTask {
        task_id: task_id.into(),
        name: "scrape-store".into(),
        depends_on: depends_on.iter().map(|&id| id.into()).collect(),
        input: Map::from_iter([("storeId".to_owned(), json!("store-123"))]),
        timeout_ms: None,
        max_attempts: None,
    }
}

fn states(of: [Option<TaskState>; 4]) -> BTreeMap<String, Option<TaskState>> {
    ["task-A", "task-B", "task-C", "task-D"].map(str::to_owned).into_iter().zip(of).collect()
}

fn task<P: Catalogued>(ids: &Ids, at: Millis, properties: P) -> anyhow::Result<Event> {
    plain(event(ids, at, &ids.job_task(), properties)?)
}

fn job<P: Catalogued>(ids: &Ids, at: Millis, properties: P) -> anyhow::Result<Event> {
    plain(event(ids, at, &ids.job, properties)?)
}

fn event<P: Catalogued>(ids: &Ids, at: Millis, entity_id: &str, properties: P) -> anyhow::Result<Event<P>> {
    Ok(Event {
        event_id: ids.event.clone(),
        tenant_id: Name::new("tenantId", TENANT)?,
        app_name: Name::new("appName", APP)?,
        entity_type: Name::new("entityType", P::ENTITY_TYPE)?,
        entity_id: Name::new("entityId", entity_id)?,
        event_type: Name::new("eventType", P::EVENT_TYPE)?,
        timestamp: at,
        context: Context {
            source: Some("system".into()),
            environment: Some("prod".into()),
            origin: Some("sqs-worker".into()),
            worker_id: Some(WORKER.into()),
            ..Context::default()
        },
        properties,
        idempotency_key: None,
        caused_by: None,
        workflow_run_id: None,
        source_system: None,
        sequence_no: None,
        ttl: None,
        received_at: None,
    })
}

/// The event as a reader of plain JSON has it.
fn plain<P: Catalogued>(event: Event<P>) -> anyhow::Result<Event> {
    match serde_json::to_value(&event.properties)? {
        Value::Object(properties) => Ok(event.map_properties(|_| -> Properties { properties })),
        other => anyhow::bail!("properties that are no object: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::catalogue::{EVENT_TYPES, Known};

    use super::*;

    #[test]
    fn there_is_one_of_each_type() {
        for (number, event_type) in EVENT_TYPES.into_iter().enumerate() {
            let event = nth(number, &Ids::ulids(), Millis::MIN).unwrap();
            assert_eq!(event.event_type.as_str(), event_type);
            assert!(Known::read(event_type, &event.properties).unwrap().is_ok());
        }
    }
}
