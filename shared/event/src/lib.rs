//! Events: their ids, envelope, keys and types, and the states that follow from them.
//!
//! Every other component depends on this crate and agrees by it on what an event is and what a log of events means. It
//! promises that the state of a task or a job does not depend on the order or the repetition of its events, that the
//! state of a run follows from its log by legal transitions only, and that a key parses back into the fields it was
//! built from. It stores nothing and is pure: no IO, no clock, no randomness; `now` and ids are arguments.
//!
//! - `name`, `id`, `time`, `duration`, `invalid`: names, ids, times and durations, and the error of a value that breaks
//!   a rule.
//! - `envelope`, [`keys`], [`catalogue`]: the fields of every event, its sixteen keys, the thirteen types of events
//!   about tasks, jobs and health with their properties.
//! - `validate`: the check before an event is saved.
//! - [`overflow`], `content_hash`: properties that are too large for the bus; the hash of an event's content.
//! - `task`, `job`, [`dag`], `limits`: states folded from events; which tasks can become a job.
//! - `run`, `run_log`: a run's log and the state machines of the run, its steps, hooks and waits.
//! - [`containment`], [`match_index`]: whether a sent event matches the criteria of a wait, and how the two find each
//!   other.
//! - [`glob`]: wildcards over event types.

pub mod catalogue;
pub mod containment;
mod content_hash;
pub mod dag;
mod duration;
mod envelope;
pub mod glob;
mod id;
mod invalid;
mod job;
mod keep_least;
pub mod keys;
mod limits;
pub mod match_index;
mod name;
pub mod overflow;
mod run;
mod run_log;
mod task;
mod time;
mod validate;

pub use content_hash::content_hash;
pub use duration::parse_duration_ms;
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
pub use validate::{MAX_AHEAD_MS, Refusal, ValidEvent, validate};
