//! What a Ledgerline event is: its ids, its envelope, its sixteen keys, the catalogue of
//! the thirteen event types of tasks, jobs and health, the rules by which a saver admits
//! one, what makes tasks a job, the folds that tell where a task, a job or a run stands, and how
//! a sent event finds who waits for it.
//! Pure: no IO, no clock, no randomness; `now` and ids come in as arguments.

mod admit;
pub mod catalogue;
pub mod contain;
mod content;
pub mod dag;
mod envelope;
mod fold;
pub mod glob;
mod id;
mod invalid;
mod job;
pub mod keys;
pub mod leaves;
mod limits;
mod name;
pub mod overflow;
mod run;
mod run_log;
mod task;
mod time;

pub use admit::{Admitted, MAX_AHEAD_MS, Refusal, admit};
pub use content::content_hash;
pub use envelope::{Context, Event, Keyed, Properties, TEXT_MAX};
pub use id::Kind;
pub use invalid::Invalid;
pub use job::{JobEvent, JobFailure, JobHistory, JobNode, JobProgress, JobResume, JobState, job_state};
pub use limits::check_limits;
pub use name::Name;
pub use run::{
    EntityView, Hook, HookState, Illegal, InOrder, Run, RunHistory, RunState, RunView, Step, StepState, Wait,
    WaitFor, WaitOutcome, WaitState, read_draft,
};
pub use run_log::{LogDraft, LogEvent, RunEntity, RunEventType};
pub use task::{TaskEvent, TaskHistory, TaskSummary};
pub use time::{Millis, Seconds};
