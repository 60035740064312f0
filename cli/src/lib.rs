//! The `ledgerline` command: arguments, one file per command, and output.
//!
//! It promises stable output for scripts (`--json`, exit codes) and stores nothing itself. Local mode
//! (`ledgerline_local`) and the worker (`ledgerline_worker`) are libraries of their own, which tests and benchmarks
//! start in process; this crate turns arguments into calls and results into text. `main.rs` calls [`run`].

pub mod args;
mod commands;
mod log_writer;
mod logging;
mod output;
mod target;
mod times;

pub use commands::run;
pub use logging::{flush_logs, print_last_line};
