//! `ledgerline worker`

use std::process::ExitCode;

use ledgerline_ledger::system_clock;
use ledgerline_outbox::QueueUrls;
use ledgerline_worker::{self as worker, Config, Stop, WorkerOptions};
use tokio::sync::watch;

use super::local::interrupted;
use crate::{args::WorkerArgs, target::Target};

pub(super) async fn run(target: &Target, args: WorkerArgs, config: Config) -> anyhow::Result<ExitCode> {
    let options = WorkerOptions {
        tasks: target.stage().await?.tasks,
        sqs: target.clients.sqs.clone(),
        queue_url: QueueUrls::find(&target.clients.sqs, &target.names).await?.tasks,
        config,
        grace: args.grace,
        until_idle: args.once,
        clock: system_clock(),
    };
    let (stop, stopped) = watch::channel(Stop::No);
    let working = worker::run(options, stopped);
    tokio::pin!(working);
    for next in [Stop::Gently, Stop::Now] {
        tokio::select! {
            () = &mut working => return Ok(ExitCode::SUCCESS),
            asked = interrupted() => asked?,
        }
        stop.send_replace(next);
    }
    tokio::select! {
        () = working => Ok(ExitCode::SUCCESS),
        // The third interrupt kills the running tasks; each runs again when its lease expires.
        asked = interrupted() => asked.map(|()| ExitCode::FAILURE),
    }
}

/// The task file, with the overrides of the command line.
pub(super) fn config(args: &WorkerArgs) -> anyhow::Result<Config> {
    let mut config = Config::read(&args.config)?;
    if let Some(concurrency) = args.concurrency {
        config.concurrency = concurrency.into();
    }
    Ok(config)
}
