//! Log lines on standard error, for people or for machines; `RUST_LOG` says how much.

use std::{
    io::{IsTerminal, Write},
    sync::OnceLock,
};

use tracing_subscriber::EnvFilter;

use crate::log_writer::LogWriter;

/// A worker tells when a task starts and ends…
pub(crate) const WORKER_TELLS: &str = "warn,ledgerline::worker=info";
/// …and if wanted also what the task itself says.
pub(crate) const WORKER_TALKS: &str = "warn,ledgerline::worker=debug";

static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// Log lines for people, away from the data.
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

/// Waits a moment until what was logged is written; to be called before the process ends.
pub fn flush_logs() {
    if let Some(writer) = WRITER.get() {
        writer.flush();
    }
}

/// Log lines that were dropped, and that the log has not told of.
pub(crate) fn dropped_lines() -> u64 {
    WRITER.get().map_or(0, LogWriter::dropped)
}

/// Says why the process ends. A standard error that cannot be written to does not matter any more.
pub fn last_words(text: &str) {
    flush_logs();
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn writer() -> LogWriter {
    let writer = WRITER.get_or_init(|| LogWriter::to(std::io::stderr())).clone();
    // The hook of the standard library writes to standard error by itself, and waits for a reader that does not read.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    writer
}

fn filter(level: &str) -> EnvFilter {
    EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},dynoxide=error,s3s=off")))
}
