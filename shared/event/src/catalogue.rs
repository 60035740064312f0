//! The thirteen event types of tasks, jobs and health, with their exact properties.
//!
//! An optional field is an `Option` (or a list that may be empty). Readers ignore fields that they do not know. The
//! properties of every other event type are plain JSON: [`Known::read`] gives `None`.

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
    /// The name by which a worker finds what to run.
    pub name: String,
    /// The ids of its parents within the job; only if it is part of a job.
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
    /// When the worker's lease of the task expires.
    pub effective_until: Seconds,
    /// The worker that runs it.
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
    /// The number of the attempt: 1, 2, 3, …
    pub attempt_number: u32,
    /// The error.
    pub error: String,
    /// The category of the error; always a retryable one.
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
    /// The task's output, for the tasks that depend on it; moved to S3 if it is large.
    #[serde(default)]
    pub output: Value,
    /// The time from start to end.
    pub duration_ms: u64,
    /// The exit code: 0.
    pub exit_code: i32,
    /// The task's usage, if the task reports it.
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
    /// Other counts that the task reports.
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
    /// The error.
    pub error: String,
    /// The category of the error: terminal from a worker, or that of the last attempt if retries ran out.
    pub error_category: ErrorCategory,
    /// How many attempts it had.
    pub retry_count: u32,
    /// The component that gave it up.
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
    /// The signal that ended it.
    pub signal: Signal,
}

/// The task still runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHeartbeat {
    /// The task's entity id.
    pub request_id: String,
    /// When the worker's lease of the task expires.
    pub effective_until: Seconds,
    /// The number of the heartbeat: 1, 2, 3, …
    pub heartbeat_number: u32,
    /// The time since the start.
    pub elapsed_ms: u64,
    /// The worker that runs it.
    pub worker_id: String,
    /// The process that runs it.
    pub process_id: u32,
    /// The memory of the whole process group.
    pub memory_usage: MemoryUsage,
    /// The last activity that the task reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<Activity>,
}

/// Memory in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// Resident bytes.
    pub rss: u64,
}

/// An activity that a task reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// `step_running`, `sdk_query`, `waiting`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The step, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_name: Option<String>,
    /// When it was reported.
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
    /// Its tasks.
    pub tasks: Vec<JobTask>,
    /// How many tasks it has.
    pub total_tasks: u32,
}

/// One node of a job's DAG.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTask {
    /// Its id within the job.
    pub task_id: String,
    /// The name by which a worker finds what to run.
    pub name: String,
    /// The ids of its parents, which must be completed first.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// Its static input.
    #[serde(default)]
    pub input: Map<String, Value>,
    /// How long it may run; by default as long as the worker allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How many attempts it has; by default as many as the worker allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
}

/// Tasks were added to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTasksAdded {
    /// The job's id.
    pub job_id: String,
    /// The added tasks.
    pub new_tasks: Vec<JobTask>,
    /// How many tasks the job had before.
    pub previous_total_tasks: u32,
    /// How many tasks the job has now.
    pub total_tasks_now: u32,
}

/// Every task of a job is completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCompleted {
    /// The job's id.
    pub job_id: String,
    /// How many tasks it has.
    pub total_tasks: u32,
    /// By the tasks' ids within the job.
    pub task_statuses: BTreeMap<String, Option<TaskState>>,
}

/// A task of a job failed for good; the other tasks continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFailureDetected {
    /// The job's id.
    pub job_id: String,
    /// The task's id within the job.
    pub failed_task_id: String,
    /// By the tasks' ids within the job; `null` for a task that was not started.
    pub task_statuses: BTreeMap<String, Option<TaskState>>,
}

/// The failed tasks of a job are started again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResumed {
    /// The job's id.
    pub job_id: String,
    /// The job's generation from now on.
    pub generation: u32,
    /// The generation of each task that is started, by its id within the job.
    pub tasks: BTreeMap<String, u32>,
}

/// The health of the running tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHealthCheck {
    /// How many tasks have which health.
    pub summary: HealthSummary,
    /// The tasks.
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
    /// Its health.
    pub health: Health,
    /// Milliseconds since it began.
    pub elapsed: u64,
    /// Milliseconds since its newest event.
    pub time_since_last_event: u64,
    /// The type of that event.
    pub last_event_type: String,
    /// The worker that runs it.
    pub worker_id: String,
}

/// The health of a running task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Health {
    Healthy,
    Warning,
    Critical,
    Overtime,
}

/// The state of a task.
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

/// The component that ended a failed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureSource {
    /// A worker, after an error that no retry can mend.
    Worker,
    /// Retries ran out.
    Dlq,
}

/// The signal that ended a process that ran too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// The process ended after the first signal.
    Sigterm,
    /// The process had to be killed.
    Sigkill,
}

#[cfg(test)]
mod tests;
