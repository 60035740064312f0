//! The arguments of the worker.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::times;

/// `ledgerline worker`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local worker
  ledgerline --stage prod worker --config scrapers.toml --concurrency 16 --json
  ledgerline --local worker --once --verbose

A task file, worker.toml:
  concurrency = 4                   # tasks at the same time
  heartbeat-seconds = 30            # a worker that is silent for three times as long loses its tasks

  [tasks.scrape-store]
  command = [\"node\", \"scrape.js\"]   # a list of words, or one line for `sh -c`
  timeout = \"10m\"                   # 90s, 15m, 1h; 1h if left out
  attempts = 3                      # 3 if left out
  directory = \"scraper\"             # from the task file's folder, which it is if left out
  environment = { LOG = \"info\" }    # beside the worker's own

  [tasks.\"*\"]                       # every other name; without it such tasks are left for other workers
  command = \"./run-any-task\"

It runs the tasks of every tenant. A timeout and a number of attempts that were given with the task come
before those of the file.

The command gets the input as JSON on standard input and writes its output as JSON to the file
$LEDGERLINE_OUTPUT (at most 5 MB; a field `usage` in it is told of in `Task Completed`). It may append lines
of JSON {type, stepName?} to $LEDGERLINE_ACTIVITY, which heartbeats pass on. Exit code 0 completes the task.
Otherwise it may say why in $LEDGERLINE_ERROR, {error, category}; without that the end of its standard
error counts. The categories timeout, network, rate-limit and server-error are tried again; auth,
validation and programming are not; what gives no sign is a server-error. Also set: LEDGERLINE_REQUEST_ID
LEDGERLINE_JOB_ID LEDGERLINE_TASK_NAME LEDGERLINE_TENANT LEDGERLINE_ATTEMPT LEDGERLINE_GENERATION.

Ctrl-C or SIGTERM: takes no more tasks and lets running ones finish within the grace; then, or at the second
Ctrl-C, they are ended and given back, and the attempt does not count.")]
pub struct WorkerArgs {
    /// The task file: what to run for which task
    #[arg(long, value_name = "FILE", default_value = "worker.toml")]
    pub config: PathBuf,
    /// Tasks at the same time, instead of what the task file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub concurrency: Option<u16>,
    /// How long running tasks may go on after Ctrl-C or SIGTERM (90s, 5m, 2h)
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = grace)]
    pub grace: Duration,
    /// End when no task waits or runs
    #[arg(long)]
    pub once: bool,
    /// Log also what tasks write to standard output and standard error
    #[arg(long, short)]
    pub verbose: bool,
}

fn grace(text: &str) -> Result<Duration, String> {
    let ms = times::length(text).ok_or("a time like 90s, 5m or 2h is expected")?;
    Ok(Duration::from_millis(ms))
}
