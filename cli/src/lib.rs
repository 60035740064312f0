//! The `ledgerline` command. Local mode is a library too: tests and benchmarks start it in process.

pub mod args;
mod commands;
pub mod local;
mod log_writer;
mod logging;
mod output;
mod target;
mod times;
pub mod worker;

pub use commands::run;
pub use logging::{flush_logs, last_words};
