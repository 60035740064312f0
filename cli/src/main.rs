//! Parses the command line, runs the command, and turns its end into an exit code.

use std::process::ExitCode;

use clap::Parser;
use ledgerline::args::Cli;

/// Local mode allocates heavily from many threads; mimalloc is faster here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = Box::pin(ledgerline::run(Cli::parse())).await;
    ledgerline::flush_logs();
    match ended {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            ledgerline::print_last_line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// `ledgerline events | head` ends the reading side first; that is no failure.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
