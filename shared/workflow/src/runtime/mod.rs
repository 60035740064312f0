//! What executes runs: loads the log, drives an [`Execution`](crate::Execution), appends what it wants, suspends.

mod known_logs;
mod looking;
mod release;
mod runner;
mod storable;
mod telling;
mod trouble;
mod visit;

pub use runner::{Runner, RunnerOptions, Visited};
