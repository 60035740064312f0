//! The function `health-check`: each minute it measures how long running tasks have run and been silent, classifies
//! them, and alerts on what changed. `ledgerline-jobs` stores which tasks are not healthy. Lambda calls it, and local
//! mode in process.

mod handler;

pub use handler::Handler;
