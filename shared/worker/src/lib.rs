//! The worker: receives tasks from the queue and runs each as a process of its own.
//!
//! It promises that a task runs under one lease at a time and ends once. The lease in the control table
//! ([`ledgerline_jobs`]) ensures that; the queue only delivers. A worker may therefore die at any moment: SQS
//! redelivers the message, and the next worker acquires the lease once it has expired. The order at the end of a task
//! matters: the worker stops the heartbeats, stores the end with its event, emits the event, and only then deletes the
//! message. The crate stores nothing itself. `ledgerline worker` calls it, and so does local mode with a task file.
//!
//! The way of a task: `worker` polls → `handle_message` acquires the lease → `attempt` runs the `process` with
//! `heartbeat`s → `attempt_result` decides → `handle_message` writes the result and deletes or hides the message.

mod attempt;
mod attempt_result;
mod config;
mod error_category;
mod handle_message;
mod heartbeat;
mod process;
mod process_group;
mod retry_delay;
mod task_files;
mod task_queue;
mod worker;

pub use config::{Config, Entry};
pub use worker::{Stop, Worker, WorkerOptions, run};
