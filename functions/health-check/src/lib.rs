//! The function `health-check`: each minute it measures how long tasks have been running, classifies them, and alerts on what changed.
//! `ledgerline-jobs` stores each task's health. Lambda calls it, and local mode in process.

mod handler;

pub use handler::Handler;
