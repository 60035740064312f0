//! One file per command.

mod doctor;
mod drain;
mod drainers;
mod emit;
mod events;
mod failed;
mod given;
mod keys;
mod local;
mod parked;
mod rewind;
mod subscriptions;
mod workflows;

use std::process::ExitCode;

use crate::{
    args::{Cli, Command},
    output::Output,
    target::Target,
};

/// Runs one command.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let output = Output::new(cli.target.json);
    if let Command::Local(args) = cli.command {
        return local::run(cli.target.data, args, output).await;
    }
    logs_to_stderr("warn");
    let target = Target::find(&cli.target).await?;
    match cli.command {
        Command::Local(_) => unreachable!("handled above: it needs no target"),
        Command::Emit(args) => emit::run(&target, args, output).await,
        Command::Events(args) => events::run(&target, args, output).await,
        Command::Subscriptions(command) => subscriptions::run(&target, command, output).await,
        Command::Workflows(command) => workflows::run(&target, command, output).await,
        Command::Drain(args) => drain::run(&target, args, output).await,
        Command::Drainers(_) => drainers::run(&target, output).await,
        Command::Rewind(args) => rewind::run(&target, args, output).await,
        Command::Parked(command) => parked::run(&target, command, output).await,
        Command::Keys(command) => keys::run(&target, command, output).await,
        Command::Failed(command) => failed::run(&target, command, output).await,
        Command::Doctor => doctor::run(&target, output).await,
    }
}

/// Log lines for people, away from the data; `RUST_LOG` says how much.
fn logs_to_stderr(level: &str) {
    use std::io::IsTerminal;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},dynoxide=error")));
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter)
        .init();
}
