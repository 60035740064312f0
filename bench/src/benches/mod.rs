//! One bench per file, each of which returns a report. What they share lies beside this folder.

pub(crate) mod bad_events;
pub(crate) mod child_latency;
pub(crate) mod cold_start;
pub(crate) mod drain;
pub(crate) mod fan_out;
mod idle;
pub(crate) mod idle_worker;
pub(crate) mod job_cost;
pub(crate) mod keys_and_json;
pub(crate) mod latency;
pub(crate) mod matching;
pub(crate) mod replay;
pub(crate) mod run_cost;
pub(crate) mod save;
pub(crate) mod wait_loop;
pub(crate) mod waiters;
pub(crate) mod write_units;
