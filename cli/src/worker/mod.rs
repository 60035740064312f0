//! The worker: takes tasks from the queue and runs each as a process of its own.
//!
//! What keeps a task from running twice, or ending twice, is its lease in the ledger ([`ledgerline_dispatch`]);
//! the queue only brings it. A worker may therefore die at any moment: the message comes again, and whoever
//! receives it asks the lease. The order at the end of a task is the point: heartbeats stop, the end is
//! claimed and told, and only then the message is deleted.

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
