//! Tasks, which workers run, and jobs, which are DAGs of tasks; and the check of the health of running tasks.
//!
//! It promises that each generation of a task starts once and ends once, and that a child starts once with the outputs
//! of its parents. It stores records of tasks (leases, kept messages), rows that people list, jobs with their nodes,
//! ends and waits, and marks for the health check. The drainer `jobs` drives it by [`JobDriver`]; the API, workers and
//! runs call [`Tasks`] and [`Jobs`].

mod jobs;
mod task_health;
mod tasks;

pub use jobs::{
    AddedTasks, EndListener, Ended, Handled, JobDetails, JobDriver, JobInputs, JobPage, JobSubmission,
    JobTaskDetails, JobView, Jobs, Stop, SubmittedJob, SubmittedJobTask, names_own_job, outcome_of,
};
pub use ledgerline_store::{JobEnd, JobNode, JobRecord, Phase, SummaryRow, TaskOutcome, TaskRecord};
pub use task_health::{Health, HealthChecked, Thresholds};
pub use tasks::{
    Acquisition, DeadLetterEnd, EndAnswer, InputRef, MessageStorage, SubmittedTask, TaskEnd, TaskLease,
    TaskMessage, TaskPage, TaskStart, TaskSubmission, Tasks, next_row, seal,
};
