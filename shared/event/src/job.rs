//! The state of a job, from its own events and the states of its tasks. Like that of a task, the history of a job is a
//! join-semilattice: the result does not depend on the order or the repetition of events.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Event, Millis, Name, Properties,
    catalogue::{Catalogued, JobCreated, JobTask, TaskState},
    envelope::read_field,
    keep_least::keep_least,
};

/// The types of events about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobEvent {
    /// It was submitted.
    Created,
    /// It got more tasks.
    TasksAdded,
    /// Every task is completed.
    Completed,
    /// A task failed for good.
    FailureDetected,
    /// Its failed tasks were started again.
    Resumed,
}

impl JobEvent {
    /// Every type.
    pub const ALL: [Self; 5] =
        [Self::Created, Self::TasksAdded, Self::Completed, Self::FailureDetected, Self::Resumed];

    /// The type of `event`; `None` if it is not about a job.
    pub fn of<P>(event: &Event<P>) -> Option<Self> {
        let of_job = event.entity_type.as_str() == JobCreated::ENTITY_TYPE;
        Self::ALL.into_iter().find(|kind| of_job && kind.event_type() == event.event_type.as_str())
    }

    /// The event type.
    pub const fn event_type(self) -> &'static str {
        match self {
            Self::Created => "Job Created",
            Self::TasksAdded => "Job Tasks Added",
            Self::Completed => "Job Completed",
            Self::FailureDetected => "Job Failure Detected",
            Self::Resumed => "Job Resumed",
        }
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// No task has failed, and not every task is completed.
    Running,
    /// A task has failed, and another one waits for a worker or runs.
    Failing,
    /// A task has failed, and none waits for a worker or runs: the job can be resumed.
    Failed,
    /// Every task is completed.
    Completed,
}

impl JobState {
    /// As it is written in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Failing => "failing",
            Self::Failed => "failed",
            Self::Completed => "completed",
        }
    }
}

/// The state of a job with `failed` failed tasks and `active` tasks that are pending or processing. A completed job stays
/// completed.
pub const fn job_state(completed_at: Option<Millis>, failed: u64, active: u64) -> JobState {
    match (completed_at, failed > 0, active > 0) {
        (Some(_), true | false, true | false) => JobState::Completed,
        (None, true, true) => JobState::Failing,
        (None, true, false) => JobState::Failed,
        // Between a task's end and the start of its children no task may be active.
        (None, false, true | false) => JobState::Running,
    }
}

/// What the events of a job say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobHistory {
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<Millis>,
    /// Whether `tasks` has the tasks with which it was created.
    listed: bool,
    /// The greatest total that an event names.
    stated_total: u64,
    tasks: BTreeMap<String, JobNode>,
    failures: BTreeSet<JobFailure>,
    resumes: BTreeSet<JobResume>,
}

/// One task of a job's DAG, as it was first defined.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobNode {
    /// When it was added.
    pub added_at: Millis,
    /// The event that added it.
    pub added_by: Name,
    /// The name by which a worker finds what to run.
    pub name: String,
    /// The tasks that must be completed before.
    pub depends_on: Vec<String>,
}

/// A failure that was detected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFailure {
    /// The time of the event.
    pub at: Millis,
    /// The event's id.
    pub event_id: Name,
    /// The task's id within the job, if the event names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The task's generation, if the event's context names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
}

/// A resume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResume {
    /// The time of the event.
    pub at: Millis,
    /// The event's id.
    pub event_id: Name,
    /// The job's generation since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// The generation of each task that was started, by its id within the job.
    #[serde(default)]
    pub tasks: BTreeMap<String, u32>,
}

/// The progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// Its state.
    pub state: JobState,
    /// The number of its tasks.
    pub total: u64,
    /// Tasks without events: their parents are not completed.
    pub waiting: u64,
    /// Tasks that wait for a worker.
    pub pending: u64,
    /// Tasks that run.
    pub processing: u64,
    /// Tasks that are completed.
    pub completed: u64,
    /// Tasks that failed for good.
    pub failed: u64,
}

impl JobHistory {
    /// Adds an event. An event that is not about a job changes nothing.
    pub fn add(&mut self, event: &Event) {
        if let Some(kind) = JobEvent::of(event) {
            self.join(&Self::of(kind, event));
        }
    }

    /// Adds what another history of the same job knows.
    pub fn join(&mut self, other: &Self) {
        keep_least(&mut self.job_id, &other.job_id);
        keep_least(&mut self.request_id, &other.request_id);
        keep_least(&mut self.created_at, &other.created_at);
        keep_least(&mut self.completed_at, &other.completed_at);
        self.listed |= other.listed;
        self.stated_total = self.stated_total.max(other.stated_total);
        for (id, node) in &other.tasks {
            // The first definition counts, as in the control table.
            let first = self.tasks.entry(id.clone()).or_insert_with(|| node.clone());
            if node < first {
                *first = node.clone();
            }
        }
        self.failures.extend(other.failures.iter().cloned());
        self.resumes.extend(other.resumes.iter().cloned());
    }

    /// The job's id; `None` if nothing is known of it.
    pub fn job_id(&self) -> Option<&Name> {
        self.job_id.as_ref()
    }

    /// The submission's id.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// When it was submitted.
    pub fn created_at(&self) -> Option<Millis> {
        self.created_at
    }

    /// When it was completed.
    pub fn completed_at(&self) -> Option<Millis> {
        self.completed_at
    }

    /// Its tasks, by their ids within the job.
    pub fn tasks(&self) -> &BTreeMap<String, JobNode> {
        &self.tasks
    }

    /// How many tasks it has: the number of listed tasks, or the number that events state while the event that lists the
    /// job's first tasks is missing.
    pub fn total(&self) -> u64 {
        let listed = self.tasks.len() as u64;
        if self.listed { listed } else { listed.max(self.stated_total) }
    }

    /// The failures that were detected, earliest first.
    pub fn failures(&self) -> &BTreeSet<JobFailure> {
        &self.failures
    }

    /// The resumes, earliest first.
    pub fn resumes(&self) -> &BTreeSet<JobResume> {
        &self.resumes
    }

    /// 1, and one more with each resume.
    pub fn generation(&self) -> u32 {
        self.resumes.iter().filter_map(|resume| resume.generation).fold(1, u32::max)
    }

    /// Its progress, given the states of its tasks by their ids within the job (`None`: the task was not started).
    pub fn progress(&self, state_of: impl Fn(&str) -> Option<TaskState>) -> JobProgress {
        let (mut pending, mut processing, mut completed, mut failed) = (0, 0, 0, 0);
        for id in self.tasks.keys() {
            match state_of(id) {
                None => {}
                Some(TaskState::Pending) => pending += 1,
                Some(TaskState::Processing) => processing += 1,
                Some(TaskState::Completed) => completed += 1,
                Some(TaskState::Failed) => failed += 1,
            }
        }
        let total = self.total();
        let waiting = total - pending - processing - completed - failed;
        let state = job_state(self.completed_at, failed, pending + processing);
        JobProgress { state, total, waiting, pending, processing, completed, failed }
    }

    /// The history of one event. Properties that cannot be read are missing; the event still counts.
    fn of(kind: JobEvent, event: &Event) -> Self {
        let of = &event.properties;
        let (at, event_id) = (event.timestamp, event.event_id.clone());
        let own = Self { job_id: Some(event.entity_id.clone()), ..Self::default() };
        match kind {
            JobEvent::Created => Self {
                request_id: read_field(of, "requestId"),
                created_at: Some(at),
                listed: read_field::<Vec<JobTask>>(of, "tasks").is_some(),
                stated_total: read_field(of, "totalTasks").unwrap_or(0),
                tasks: nodes(event, of, "tasks"),
                ..own
            },
            JobEvent::TasksAdded => Self {
                stated_total: read_field(of, "totalTasksNow").unwrap_or(0),
                tasks: nodes(event, of, "newTasks"),
                ..own
            },
            JobEvent::Completed => {
                let stated_total = read_field(of, "totalTasks").unwrap_or(0);
                Self { completed_at: Some(at), stated_total, ..own }
            }
            JobEvent::FailureDetected => {
                let (task_id, generation) = (read_field(of, "failedTaskId"), event.context.generation);
                let failure = JobFailure { at, event_id, task_id, generation };
                Self { failures: [failure].into(), ..own }
            }
            JobEvent::Resumed => {
                let (generation, tasks) =
                    (read_field(of, "generation"), read_field(of, "tasks").unwrap_or_default());
                Self { resumes: [JobResume { at, event_id, generation, tasks }].into(), ..own }
            }
        }
    }
}

/// The tasks that the event lists. Of two with the same id the least is kept, as if two events had listed them.
fn nodes(event: &Event, properties: &Properties, field: &str) -> BTreeMap<String, JobNode> {
    let listed = properties.get(field).and_then(Value::as_array).into_iter().flatten();
    let mut nodes = BTreeMap::new();
    for task in listed.filter_map(|task| JobTask::deserialize(task).ok()) {
        let node = JobNode {
            added_at: event.timestamp,
            added_by: event.event_id.clone(),
            name: task.name,
            depends_on: task.depends_on,
        };
        let first = nodes.entry(task.task_id).or_insert_with(|| node.clone());
        if node < *first {
            *first = node;
        }
    }
    nodes
}

#[cfg(test)]
mod tests;
