//! The command line.

mod dispatching;
mod events;
mod operating;
mod runs;
mod tasks;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use dispatching::{
    AddSubscriptionArgs, AddWorkflowArgs, DrainArgs, DrainersArgs, KindArg, OnFailureArg, ParkedCommand,
    RewindArgs, SubscriptionsCommand, TestArgs, WorkflowsCommand,
};
pub use events::{EmitArgs, EventsArgs, FailedCommand};
pub use operating::{KeysCommand, ScopeArg, VerifyArgs};
pub use runs::{
    AppendArgs, CancelRunArgs, HookCommand, RunCommand, RunEventsArgs, RunStateArg, RunsArgs, SendEventArgs,
    SendToHookArgs, SentEventsArgs, ShowRunArgs, StartRunArgs,
};
pub use tasks::{
    AddToJobArgs, JobCommand, JobStateArg, JobsArgs, ResumeJobArgs, ShowJobArgs, SubmitArgs, TaskArgs,
    TaskStateArg, TasksArgs, WorkerArgs,
};

/// An append-only event ledger, and everything driven by it, in your own AWS account.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "Examples:
  ledgerline local --demo                       the whole pipeline on this machine
  ledgerline --local emit price.changed --entity ITEM/10472 --properties '{\"new\":1.48}'
  ledgerline --local events --follow            what happens, as it happens
  ledgerline --local submit pipeline.yaml --watch
  ledgerline --local run start fulfil-order --input '{\"orderId\":\"o-1\"}' --watch
  ledgerline --local workflows add push_price --kind task
  ledgerline --local subscriptions add 'price.*' push_price
  ledgerline --stage prod doctor                what is reachable on AWS, what is missing

Exit codes: 0 done, 1 failed or something is missing, 2 the command line is wrong."
)]
pub struct Cli {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub target: TargetArgs,
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: Command,
}

/// Which ledger to use.
#[derive(Clone, Debug, Args)]
pub struct TargetArgs {
    /// The ledger on AWS with this stage, through the usual AWS environment
    #[arg(long, global = true, env = "LEDGERLINE_STAGE")]
    pub stage: Option<String>,
    /// The running local mode
    #[arg(long, global = true)]
    pub local: bool,
    /// The data folder of local mode
    #[arg(long, global = true, env = "LEDGERLINE_DATA", value_name = "DIR", default_value = ".ledgerline")]
    pub data: PathBuf,
    /// The tenant; with --local its own by default
    #[arg(long, global = true, env = "LEDGERLINE_TENANT")]
    pub tenant: Option<String>,
    /// One JSON object per line instead of tables
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum Command {
    /// Run the whole pipeline in this process
    Local(LocalArgs),
    /// Run tasks: each as a process of its own, as a task file says
    Worker(WorkerArgs),
    /// Submit a job or a task
    Submit(SubmitArgs),
    /// One job: show it, add to it, resume it
    #[command(subcommand)]
    Job(JobCommand),
    /// List jobs
    Jobs(JobsArgs),
    /// Show one task
    Task(TaskArgs),
    /// List tasks
    Tasks(TasksArgs),
    /// One run of a workflow: start it, show it, cancel it
    #[command(subcommand)]
    Run(RunCommand),
    /// List runs
    Runs(RunsArgs),
    /// Hooks: addresses at which runs receive payloads
    #[command(subcommand)]
    Hook(HookCommand),
    /// Send an event to the runs that wait for it
    SendEvent(SendEventArgs),
    /// List events that were sent to runs
    SentEvents(SentEventsArgs),
    /// Emit an event
    Emit(EmitArgs),
    /// List events, newest first, or follow them
    Events(EventsArgs),
    /// Subscriptions: which events start which workflow types
    #[command(subcommand)]
    Subscriptions(SubscriptionsCommand),
    /// Workflow types: what subscriptions can start
    #[command(subcommand)]
    Workflows(WorkflowsCommand),
    /// Run a drainer once, in this process
    Drain(DrainArgs),
    /// Show how far each drainer is, and the event on which it is halted
    Drainers(DrainersArgs),
    /// Move a drainer's cursor back, so that it handles events again
    Rewind(RewindArgs),
    /// Parked starts: those that failed and wait for an operator
    #[command(subcommand)]
    Parked(ParkedCommand),
    /// API keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Events that could not be delivered
    #[command(subcommand)]
    Failed(FailedCommand),
    /// Compare the records of tasks, jobs and runs with the ledger
    Verify(VerifyArgs),
    /// Check which parts of a stage are reachable and which are missing
    Doctor,
}

/// `ledgerline local`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline local --demo
  ledgerline local --data /var/tmp/ledger --aws-port 0 --port 0
  ledgerline local --worker worker.toml
  ledgerline local --drainers timeline=1h,anomalies=15m
  AWS_ENDPOINT_URL=http://127.0.0.1:4566 aws dynamodb scan --table-name events-local")]
pub struct LocalArgs {
    /// The port of the AWS services; 0 picks a free one
    #[arg(long, default_value_t = 4566)]
    pub aws_port: u16,
    /// The port of the HTTP API; 0 picks a free one
    #[arg(long, default_value_t = 8787)]
    pub port: u16,
    /// Also run a worker with this task file, in the same process
    #[arg(long, value_name = "FILE")]
    pub worker: Option<PathBuf>,
    /// Emit a few events, run a job of five tasks, and say where to look
    #[arg(long)]
    pub demo: bool,
    /// Send alerts to this Slack webhook instead of printing them
    #[arg(long, value_name = "URL")]
    pub slack_webhook: Option<String>,
    /// Drainers besides `workflow_runner`, as NAME=PERIOD, or NAME for one that runs at once
    #[arg(long, default_value = "", hide_default_value = true, value_name = "LIST")]
    pub drainers: String,
    /// Delete events after this many days; 0 keeps them
    #[arg(long, default_value_t = 0, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(..=36_500))]
    pub retention_days: u64,
}
