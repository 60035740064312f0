//! The function `health-check`: each minute it measures how long tasks have been running, classifies them, and alerts on what changed.
//! `ledgerline-dispatch` stores the classes. Lambda calls it, and local mode in process.

mod handler;

pub use handler::Handler;
