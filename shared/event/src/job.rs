//! Where a job stands: what its own events say, and the states of its tasks. As with a task, the
//! history is a join-semilattice, so neither order nor repetition of events can show.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Event, Millis, Name, Properties,
    catalogue::{Catalogued, JobCreated, JobTask, TaskState},
    fold::{least, read},
};

/// What can happen to a job.
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
    /// What had failed is started again.
    Resumed,
}

impl JobEvent {
    /// Every one of them.
    pub const ALL: [Self; 5] =
        [Self::Created, Self::TasksAdded, Self::Completed, Self::FailureDetected, Self::Resumed];

    /// What `event` says about a job; `None` if it is about something else.
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

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Nothing has failed, and not everything is completed.
    Running,
    /// Something has failed, and something is still waiting for a worker or running.
    Failing,
    /// Something has failed and nothing runs any more: it can be resumed.
    Failed,
    /// Everything is completed.
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

/// Where a job stands of which so many tasks are `failed` and so many are `active`, which is pending or
/// processing. That it was completed is final.
pub const fn job_state(completed: bool, failed: u64, active: u64) -> JobState {
    match (completed, failed > 0, active > 0) {
        (true, true | false, true | false) => JobState::Completed,
        (false, true, true) => JobState::Failing,
        (false, true, false) => JobState::Failed,
        // Nothing may be active for a moment: between a task's end and the start of its children.
        (false, false, true | false) => JobState::Running,
    }
}

/// What is known of one job from its own events.
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
    /// Whether the tasks that it was created with are among `tasks`.
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
    /// When.
    pub added_at: Millis,
    /// By which event.
    pub added_by: Name,
    /// What a worker is to run.
    pub name: String,
    /// The tasks that must be completed before.
    pub depends_on: Vec<String>,
}

/// A failure that was detected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFailure {
    /// When.
    pub at: Millis,
    /// By which event.
    pub event_id: Name,
    /// The bare task id, if the event names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Which generation of it, if the event's context names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
}

/// A resume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResume {
    /// When.
    pub at: Millis,
    /// By which event.
    pub event_id: Name,
    /// The job's generation since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// By bare task id: the generation that the task was started as.
    #[serde(default)]
    pub tasks: BTreeMap<String, u32>,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// Where it stands.
    pub state: JobState,
    /// Its tasks.
    pub total: u64,
    /// Those of which nothing is known yet: their parents are not completed.
    pub waiting: u64,
    /// Those that wait for a worker.
    pub pending: u64,
    /// Those that run.
    pub processing: u64,
    /// Those that are done.
    pub completed: u64,
    /// Those that failed for good.
    pub failed: u64,
}

impl JobHistory {
    /// Takes in one event of the job; one that is about something else changes nothing.
    pub fn add(&mut self, event: &Event) {
        if let Some(kind) = JobEvent::of(event) {
            self.join(&Self::of(kind, event));
        }
    }

    /// Takes in what another history of the same job knows.
    pub fn join(&mut self, other: &Self) {
        least(&mut self.job_id, &other.job_id);
        least(&mut self.request_id, &other.request_id);
        least(&mut self.created_at, &other.created_at);
        least(&mut self.completed_at, &other.completed_at);
        self.listed |= other.listed;
        self.stated_total = self.stated_total.max(other.stated_total);
        for (id, node) in &other.tasks {
            // The definition that came first stands, as it does in the control table.
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

    /// Its tasks, by bare id.
    pub fn tasks(&self) -> &BTreeMap<String, JobNode> {
        &self.tasks
    }

    /// How many tasks it has. What is listed is counted; what events merely say is believed only while
    /// the list that the job was created with is missing.
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

    /// How far it is, given the states of its tasks by bare id (`None`: not begun).
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
        let state = job_state(self.completed_at.is_some(), failed, pending + processing);
        JobProgress { state, total, waiting, pending, processing, completed, failed }
    }

    /// The history of one event. Properties that cannot be read are missing; the event still counts.
    fn of(kind: JobEvent, event: &Event) -> Self {
        let of = &event.properties;
        let (at, event_id) = (event.timestamp, event.event_id.clone());
        let own = Self { job_id: Some(event.entity_id.clone()), ..Self::default() };
        match kind {
            JobEvent::Created => Self {
                request_id: read(of, "requestId"),
                created_at: Some(at),
                listed: read::<Vec<JobTask>>(of, "tasks").is_some(),
                stated_total: read(of, "totalTasks").unwrap_or(0),
                tasks: nodes(event, of, "tasks"),
                ..own
            },
            JobEvent::TasksAdded => Self {
                stated_total: read(of, "totalTasksNow").unwrap_or(0),
                tasks: nodes(event, of, "newTasks"),
                ..own
            },
            JobEvent::Completed => {
                let stated_total = read(of, "totalTasks").unwrap_or(0);
                Self { completed_at: Some(at), stated_total, ..own }
            }
            JobEvent::FailureDetected => {
                let (task_id, generation) = (read(of, "failedTaskId"), event.context.generation);
                let failure = JobFailure { at, event_id, task_id, generation };
                Self { failures: [failure].into(), ..own }
            }
            JobEvent::Resumed => {
                let (generation, tasks) = (read(of, "generation"), read(of, "tasks").unwrap_or_default());
                Self { resumes: [JobResume { at, event_id, generation, tasks }].into(), ..own }
            }
        }
    }
}

/// The tasks that the event lists. Of two with one id the least is kept, as if two events had listed them.
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
