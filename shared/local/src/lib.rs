//! Local mode: the whole pipeline in one process and one data folder.
//!
//! It promises what a deployed stage does: the same handlers, wired to the embedded services as `template.yaml` wires
//! them on AWS, and the HTTP API. It stores everything in the data folder, through the embedded services, and writes
//! `local.json` there, by which other processes find it. `ledgerline local` calls it, and so do tests and benchmarks.
//!
//! [`Local::start`] creates the resources (`provision`, from `wiring`), calls the functions (`functions`,
//! `queue_poller`, `periodic`), runs the dispatcher (`change_stream`, `dispatcher`, `visits`), and on request a runner
//! and a worker; the `supervisor` restarts each part that ends.

mod change_stream;
mod dispatcher;
mod functions;
mod health;
mod local_json;
mod local_mode;
mod periodic;
mod provision;
mod queue_poller;
mod runner;
mod supervisor;
mod visits;
mod wiring;
mod worker;

pub use ledgerline_ledger::LocalState;
pub use local_mode::{Local, LocalOptions, REGION, STAGE, TENANT};
pub use producer_api::{Finding, Level};
pub use provision::{Parameters, provision};
pub use wiring::{EventSource, QueueWiring, RuleWiring, Wiring, wiring};
pub use worker::LocalWorker;
