//! The worker: takes tasks from the queue and runs each as a process of its own.
//!
//! The lease in the control table ([`ledgerline_dispatch`]) keeps a task from running twice or ending twice; the
//! queue only delivers it. A worker may therefore die at any moment: the queue redelivers the message, and the next
//! worker acquires the lease once it has expired. The order at the end of a task matters: the worker stops the
//! heartbeats, claims the end, emits it, and only then deletes the message.

mod attempt;
mod backoff;
mod child;
mod classify;
mod config;
mod delivery;
mod exchange;
mod group;
mod outcome;
mod processes;
mod run;
mod settle;

pub use classify::classify;
pub use config::{Config, Entry};
pub use run::{Stop, Worker, WorkerOptions, run};
