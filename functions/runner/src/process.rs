//! The runner as a process, which polls the run queue of local mode or of a stage on AWS.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use clap::Parser;
use ledgerline_drains::Drainers;
use ledgerline_ledger::{
    Clients, LocalState, Names, for_long_polls, parameter, system_clock, telemetry::Metrics,
};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_workflow::{Runner, Workflows};
use tokio::{sync::watch, time::Instant};
use tracing_subscriber::EnvFilter;

use crate::{Handler, Polling, args::Args, poll, run_queue::SqsRunQueue};

/// The ledger whose runs the process executes.
struct Target {
    clients: Clients,
    names: Names,
    /// Its flag on the command line.
    flag: String,
    /// Its name in a sentence.
    name: String,
}

pub(crate) async fn serve(workflows: Workflows) -> anyhow::Result<()> {
    let args = Args::parse();
    logs_to_stderr();
    let target = Target::find(&args).await?;
    let queues = QueueUrls::find(&target.clients.sqs, &target.names)
        .await
        .with_context(|| format!("{} does not answer", target.name))?;
    let queue = SqsRunQueue {
        polls: for_long_polls(&target.clients.sqs),
        sqs: target.clients.sqs.clone(),
        url: queues.runs.clone(),
    };
    let options = StageOptions {
        queues,
        drainers: Drainers::parse("")?,
        slack: None,
        metrics: Metrics::silent(),
        ledger_flag: target.flag,
        clock: system_clock(),
    };
    let stage = Stage::new(&target.clients, &target.names, options)?;
    let handler = Handler {
        runner: Runner::new(stage, workflows, args.runner_options()),
        metrics: Metrics::silent(),
        clock: system_clock(),
    };
    handler.runner.publish().await.context("publishing the workflows")?;
    let names: Vec<&str> = handler.runner.workflows().names().collect();
    tracing::info!("{}; waiting for runs of {}", listed(&names), target.name);

    let (stop, stopped) = watch::channel(false);
    let polling = Polling { concurrency: args.concurrency.into(), grace: args.grace() };
    let sweeping = tokio::spawn(sweep(handler.clone(), args.sweep_every(), stopped.clone()));
    let polling = poll(handler, queue, polling, stopped);
    tokio::pin!(polling);
    tokio::select! {
        () = &mut polling => {}
        interrupt = interrupted() => {
            interrupt?;
            tracing::info!("stopping: taking no more runs, and finishing those in flight");
            stop.send_replace(true);
            tokio::select! {
                () = polling => {}
                // The second interrupt exits at once; other runners continue the runs when the leases expire.
                again = interrupted() => again?,
            }
        }
    }
    sweeping.abort();
    Ok(())
}

impl Target {
    async fn find(args: &Args) -> anyhow::Result<Self> {
        match (&args.stage, args.local) {
            (_, true) => {
                let state = LocalState::read(&args.data)?;
                Ok(Self {
                    clients: Clients::at_endpoint(&state.aws_endpoint, &state.region),
                    names: Names::of_stage(&state.stage),
                    flag: "--local".into(),
                    name: format!("local mode at {}", state.api_url),
                })
            }
            (Some(stage), false) => {
                let clients = Clients::from_environment().await;
                let mut names = Names::of_stage(stage);
                let name = format!("stage {stage} on AWS");
                let bucket = parameter(&clients.ssm, &names.payload_bucket_parameter).await;
                let bucket = bucket.with_context(|| format!("{name} does not answer"))?;
                // Bucket names are global, so the deployment publishes the one that it was given.
                names.payload_bucket = bucket.with_context(|| {
                    format!("{name} has no parameter {}: is it deployed?", names.payload_bucket_parameter)
                })?;
                Ok(Self { clients, names, flag: format!("--stage {stage}"), name })
            }
            (None, false) => {
                bail!("say whose runs: --local for the running local mode, or --stage STAGE on AWS")
            }
        }
    }
}

/// `3 workflows: approval, order, saga`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => "no workflows".to_owned(),
        [only] => format!("1 workflow: {only}"),
        many => format!("{} workflows: {}", many.len(), many.join(", ")),
    }
}

/// Sweeps the runs that are due.
async fn sweep(handler: Handler, every: std::time::Duration, mut stopped: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = handler.tick(Instant::now() + every).await {
            tracing::warn!(%error, "the sweep of runs failed; the next one tries again");
        }
    }
}

/// Logs to standard error, filtered by `RUST_LOG`. A program that has set up a log of its own keeps it.
fn logs_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter)
        .try_init();
}

async fn interrupted() -> anyhow::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            result = tokio::signal::ctrl_c() => result?,
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workflows_are_counted_and_listed() {
        assert_eq!(listed(&[]), "no workflows");
        assert_eq!(listed(&["order"]), "1 workflow: order");
        assert_eq!(listed(&["approval", "order"]), "2 workflows: approval, order");
    }
}
