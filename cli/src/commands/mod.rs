//! One file per command; a command that needs more has a folder of its own. Shared by several: `input`, `paging`, `watching`,
//! `canvas`, `attention`.

mod attention;
mod canvas;
mod doctor;
mod drain;
mod drainers;
mod emit;
mod events;
mod failed;
mod hook;
mod input;
mod job;
mod jobs;
mod keys;
mod local;
mod paging;
mod parked;
mod rewind;
mod run;
mod runs;
mod send_event;
mod submit;
mod subscriptions;
mod task;
mod tasks;
mod verify;
mod watching;
mod worker;
mod workflows;

use std::process::ExitCode;

use crate::{
    args::{Cli, Command},
    logging::{WORKER_AND_TASK_LOGS, WORKER_LOGS, json_logs_to_stderr, logs_to_stderr},
    output::Output,
    target::Target,
};

/// Runs one command.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let output = Output::new(cli.target.json);
    if let Command::Local(args) = cli.command {
        return Box::pin(local::run(cli.target.data, args, output)).await;
    }
    if let Command::Worker(args) = cli.command {
        let level = if args.verbose { WORKER_AND_TASK_LOGS } else { WORKER_LOGS };
        if output.is_json() {
            json_logs_to_stderr(level)
        } else {
            logs_to_stderr(level)
        }
        // First, so that an error in the task file is reported before the ledger is contacted.
        let config = worker::config(&args)?;
        return Box::pin(worker::run(&Target::find(&cli.target).await?, args, config)).await;
    }
    logs_to_stderr("warn");
    let target = Target::find(&cli.target).await?;
    match cli.command {
        Command::Local(_) | Command::Worker(_) => unreachable!("handled above: their logs say more"),
        Command::Submit(args) => submit::run(&target, args, output).await,
        Command::Job(command) => job::run(&target, command, output).await,
        Command::Jobs(args) => jobs::run(&target, args, output).await,
        Command::Task(args) => task::run(&target, args, output).await,
        Command::Tasks(args) => tasks::run(&target, args, output).await,
        Command::Run(command) => run::run(&target, command, output).await,
        Command::Runs(args) => runs::run(&target, args, output).await,
        Command::Hook(command) => hook::run(&target, command, output).await,
        Command::SendEvent(args) => send_event::run(&target, args, output).await,
        Command::SentEvents(args) => send_event::list(&target, args, output).await,
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
        Command::Verify(args) => Box::pin(verify::run(&target, args, output)).await,
        Command::Doctor => doctor::run(&target, output).await,
    }
}
