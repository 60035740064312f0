//! Durable workflows.

mod asked;
mod ctx;
mod engine;
mod error;
mod execution;
mod hook;
mod json;
mod mismatch;
mod outside;
mod retry;
mod runtime;
mod started;
mod step;
mod together;
mod waiting;
mod workflows;

pub use ctx::Ctx;
pub use error::Error;
pub use execution::{Ended, Execution};
pub use hook::{Dispose, Hook, NewHook, Next};
pub use ledgerline_event::Millis;
pub use mismatch::Mismatch;
pub use outside::Outside;
pub use retry::Retry;
pub use runtime::{Runner, RunnerOptions, Visited};
pub use started::{Job, SendEvent, Task};
pub use step::Step;
pub use together::{All, First, all, first};
pub use waiting::{ReceivedEvent, Sleep, WaitForEvent};
pub use workflows::{Workflow, Workflows};

/// A step that runs longer than this is shown as running; one that is faster costs a single entry of the log.
pub const VISIBLE_AFTER_MS: u64 = 50;
