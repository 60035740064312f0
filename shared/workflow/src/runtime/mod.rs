//! Executes runs: loads the log, drives an [`Execution`](crate::Execution), appends the events that it wants, and releases the
//! run when it waits.

mod failed_visit_backoff;
mod log_cache;
mod next_past_event;
mod outbox_sender;
mod release;
mod runner;
mod sanitize;
mod visit;

pub use runner::{Runner, RunnerOptions, Visited};
