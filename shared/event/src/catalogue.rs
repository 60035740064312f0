//! The thirteen event types of tasks, jobs and health, with their exact properties.
//!
//! A field that may be left out is an `Option` (or a list that may be empty). Readers ignore
//! fields they do not know. Any other event type is plain JSON: [`Known::read`] answers `None`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{Properties, Seconds};

/// Properties that belong to one event type.
pub trait Catalogued: Serialize + DeserializeOwned {
    /// The event type.
    const EVENT_TYPE: &'static str;
    /// The type of the entity that such an event is about.
    const ENTITY_TYPE: &'static str;
}

macro_rules! catalogue {
    ($($name:ident $event:literal $entity:literal,)*) => {
        $(impl Catalogued for $name {
            const EVENT_TYPE: &'static str = $event;
            const ENTITY_TYPE: &'static str = $entity;
        })*

        /// Every event type of the catalogue.
        pub const EVENT_TYPES: [&str; 13] = [$($event),*];

        /// The properties of an event whose type is in the catalogue.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Known { $($name($name),)* }

        impl Known {
            /// Reads `properties` as those of an `event_type`; `None` for a type that is not in the catalogue.
            pub fn read(event_type: &str, properties: &Properties) -> Option<Result<Self, serde_json::Error>> {
                match event_type {
                    $($event => Some($name::deserialize(properties).map(Self::$name)),)*
                    _ => None,
                }
            }

            /// The event type.
            pub const fn event_type(&self) -> &'static str {
                match self { $(Self::$name(_) => $event,)* }
            }
        }
    };
}

catalogue! {
    TaskPending "Task Pending" "TASK",
    TaskProcessingStarted "Task Processing Started" "TASK",
    TaskProcessingFailed "Task Processing Failed" "TASK",
    TaskCompleted "Task Completed" "TASK",
    TaskFailed "Task Failed" "TASK",
    TaskTimeout "Task Timeout" "TASK",
    TaskHeartbeat "Task Heartbeat" "TASK",
    JobCreated "Job Created" "JOB",
    JobTasksAdded "Job Tasks Added" "JOB",
    JobCompleted "Job Completed" "JOB",
    JobFailureDetected "Job Failure Detected" "JOB",
    JobResumed "Job Resumed" "JOB",
    TaskHealthCheck "Task Health Check" "HEALTH",
}

/// A task waits for a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPending {
    /// The task's entity id.
    pub request_id: String,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// What a worker is to run.
    pub name: String,
    /// Bare task ids; only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
}

/// A worker has started the task's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskProcessingStarted {
    /// The task's entity id.
    pub request_id: String,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// Until when the worker's claim on the task holds.
    pub effective_until: Seconds,
    /// Who runs it.
    pub worker_id: String,
    /// The process that runs it.
    pub process_id: u32,
}

/// One attempt failed and another will follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskProcessingFailed {
    /// The task's entity id.
    pub request_id: String,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// Which attempt: 1, 2, 3, …
    pub attempt_number: u32,
    /// What went wrong.
    pub error: String,
    /// Always a retryable one.
    pub error_category: ErrorCategory,
}

/// The task's process ended with code 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskCompleted {
    /// The task's entity id.
    pub request_id: String,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// What the task gives to those that depend on it; moved to S3 when it is large.
    #[serde(default)]
    pub output: Value,
    /// From start to end.
    pub duration_ms: u64,
    /// 0.
    pub exit_code: i32,
    /// What it consumed, where the task reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Tokens that a task used; other counts pass through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Tokens read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Tokens read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    /// What else the task reports.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The task failed for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskFailed {
    /// The task's entity id.
    pub request_id: String,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// What went wrong.
    pub error: String,
    /// Terminal from a worker; the last attempt's when retries ran out.
    pub error_category: ErrorCategory,
    /// How many attempts there were.
    pub retry_count: u32,
    /// Who gave up.
    pub source: FailureSource,
}

/// A worker killed the task's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskTimeout {
    /// The task's entity id.
    pub request_id: String,
    /// Only if it is part of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// How long it was allowed to run.
    pub timeout_ms: u64,
    /// How long it ran.
    pub elapsed_ms: u64,
    /// What ended it.
    pub signal: Signal,
}

/// The task still runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHeartbeat {
    /// The task's entity id.
    pub request_id: String,
    /// Until when the worker's claim on the task holds.
    pub effective_until: Seconds,
    /// 1, 2, 3, …
    pub heartbeat_number: u32,
    /// Since the start.
    pub elapsed_ms: u64,
    /// Who runs it.
    pub worker_id: String,
    /// The process that runs it.
    pub process_id: u32,
    /// Of the whole process group.
    pub memory_usage: MemoryUsage,
    /// What the task last said of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Activity>,
}

/// Memory in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// Resident bytes.
    pub rss: u64,
}

/// What a task last said of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// `step_running`, `sdk_query`, `waiting`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The step, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_name: Option<String>,
    /// When.
    pub timestamp: Seconds,
}

/// A job of several tasks was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCreated {
    /// The job's id.
    pub job_id: String,
    /// The submission's id.
    pub request_id: String,
    /// The whole DAG.
    pub tasks: Vec<JobTask>,
    /// How many.
    pub total_tasks: u32,
}

/// One node of a job's DAG.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTask {
    /// Its id within the job.
    pub task_id: String,
    /// What a worker is to run.
    pub name: String,
    /// The tasks that must be completed before.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// Its static input.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// How long it may run; else as long as the worker allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How often it is tried; else as often as the worker does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
}

/// Tasks were added to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTasksAdded {
    /// The job's id.
    pub job_id: String,
    /// What was added.
    pub new_tasks: Vec<JobTask>,
    /// Tasks before.
    pub previous_total_tasks: u32,
    /// Tasks now.
    pub total_tasks_now: u32,
}

/// Every task of a job is completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCompleted {
    /// The job's id.
    pub job_id: String,
    /// How many tasks.
    pub total_tasks: u32,
    /// By bare task id.
    pub task_statuses: BTreeMap<String, Option<TaskState>>,
}

/// A task of a job failed for good; the rest goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFailureDetected {
    /// The job's id.
    pub job_id: String,
    /// The bare task id.
    pub failed_task_id: String,
    /// By bare task id; `null` for a task that has not begun.
    pub task_statuses: BTreeMap<String, Option<TaskState>>,
}

/// Tasks of a job that had failed are started again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResumed {
    /// The job's id.
    pub job_id: String,
    /// The job's generation from now on.
    pub generation: u32,
    /// By bare task id: the generation that the task is started as.
    pub tasks: BTreeMap<String, u32>,
}

/// How the tasks that are running fare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHealthCheck {
    /// In numbers.
    pub summary: HealthSummary,
    /// One by one.
    pub tasks: Vec<TaskHealth>,
}

/// Running tasks by health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct HealthSummary {
    pub total_processing: u32,
    pub healthy: u32,
    pub warning: u32,
    pub critical: u32,
    pub overtime: u32,
}

/// One running task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHealth {
    /// The task's entity id.
    pub request_id: String,
    /// How it fares.
    pub health: Health,
    /// Milliseconds since it began.
    pub elapsed: u64,
    /// Milliseconds since its newest event.
    pub time_since_last_event: u64,
    /// The type of that event.
    pub last_event_type: String,
    /// Who runs it.
    pub worker_id: String,
}

/// How a running task fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Health {
    Healthy,
    Warning,
    Critical,
    Overtime,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum TaskState {
    Pending,
    Processing,
    Completed,
    Failed,
}

impl TaskState {
    /// As it is written in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum ErrorCategory {
    Timeout,
    Network,
    RateLimit,
    ServerError,
    Auth,
    Validation,
    Programming,
}

impl ErrorCategory {
    /// As it is written in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Network => "network",
            Self::RateLimit => "rate-limit",
            Self::ServerError => "server-error",
            Self::Auth => "auth",
            Self::Validation => "validation",
            Self::Programming => "programming",
        }
    }

    /// Whether another attempt may succeed.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Timeout | Self::Network | Self::RateLimit | Self::ServerError => true,
            Self::Auth | Self::Validation | Self::Programming => false,
        }
    }
}

/// Who ended a failed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureSource {
    /// A worker met an error that no retry mends.
    Worker,
    /// Retries ran out.
    Dlq,
}

/// What ended a process that ran too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// It went when asked.
    Sigterm,
    /// It had to be killed.
    Sigkill,
}

#[cfg(test)]
mod tests;
