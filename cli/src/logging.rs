//! Log lines on standard error, for people or for machines; `RUST_LOG` sets the level.

use std::{
    io::{IsTerminal, Write},
    sync::OnceLock,
};

use tracing_subscriber::EnvFilter;

use crate::log_writer::LogWriter;

/// Also the worker's lines about the start and end of each task…
pub(crate) const WORKER_LOGS: &str = "warn,ledgerline_worker=info";
/// …and what the tasks write.
pub(crate) const WORKER_AND_TASK_LOGS: &str = "warn,ledgerline_worker=debug";

static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// Log lines for people, apart from the data on standard output.
pub(crate) fn logs_to_stderr(level: &str) {
    tracing_subscriber::fmt()
        .with_writer(writer())
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter(level))
        .init();
}

/// The same for machines: one JSON object a line.
pub(crate) fn json_logs_to_stderr(level: &str) {
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_writer(writer())
        .with_target(false)
        .with_env_filter(filter(level))
        .init();
}

/// Waits for a moment until log lines are written. Call it before the process ends.
pub fn flush_logs() {
    if let Some(writer) = WRITER.get() {
        writer.flush();
    }
}

/// How many log lines were dropped that the log has not reported.
pub(crate) fn dropped_lines() -> u64 {
    WRITER.get().map_or(0, LogWriter::dropped)
}

/// Prints why the process ends. If standard error cannot be written, the exit code has to do.
pub fn print_last_line(text: &str) {
    flush_logs();
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn writer() -> LogWriter {
    let writer = WRITER.get_or_init(|| LogWriter::to(std::io::stderr())).clone();
    // The standard library's panic hook writes to standard error itself, and blocks if its reader does not read.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    writer
}

fn filter(level: &str) -> EnvFilter {
    EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},dynoxide=error,s3s=off")))
}
