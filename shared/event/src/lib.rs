//! What a Ledgerline event is: its ids, its envelope, its sixteen keys, the catalogue of
//! the thirteen event types that the system itself emits, the rules by which a saver admits
//! one, what makes tasks a job, and the folds that tell where a task or a job stands.
//! Pure: no IO, no clock, no randomness; `now` and ids come in as arguments.

mod admit;
pub mod catalogue;
mod content;
pub mod dag;
mod envelope;
mod fold;
pub mod glob;
mod id;
mod invalid;
mod job;
pub mod keys;
mod limits;
mod name;
pub mod overflow;
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
pub use task::{TaskEvent, TaskHistory, TaskSummary};
pub use time::{Millis, Seconds};
