//! The command line.

mod dispatching;
mod runs;
mod tasks;
mod verify;
mod worker;

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use ledgerline_ledger::control::api_key::KeyScope;

pub use dispatching::{
    AddSubscriptionArgs, AddWorkflowArgs, DrainArgs, DrainersArgs, KindArg, OnFailureArg, ParkedCommand,
    RewindArgs, SubscriptionsCommand, TestArgs, WorkflowsCommand,
};
pub use runs::{
    AppendArgs, CancelRunArgs, HookCommand, RunCommand, RunEventsArgs, RunStateArg, RunsArgs, SendEventArgs,
    SendToHookArgs, SentEventsArgs, ShowRunArgs, StartRunArgs,
};
pub use tasks::{
    AddToJobArgs, JobCommand, JobStateArg, JobsArgs, ResumeJobArgs, ShowJobArgs, SubmitArgs, TaskArgs,
    TaskStateArg, TasksArgs,
};
pub use verify::VerifyArgs;
pub use worker::WorkerArgs;

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

/// Where the ledger is.
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
    /// Whose events; local mode's own tenant with --local
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
    /// Where runs receive data from outside
    #[command(subcommand)]
    Hook(HookCommand),
    /// Send an event to whichever runs wait for it
    SendEvent(SendEventArgs),
    /// List events that were sent to runs
    SentEvents(SentEventsArgs),
    /// Emit an event
    Emit(EmitArgs),
    /// List events, newest first, or follow them
    Events(EventsArgs),
    /// Which events start what
    #[command(subcommand)]
    Subscriptions(SubscriptionsCommand),
    /// What can be started
    #[command(subcommand)]
    Workflows(WorkflowsCommand),
    /// Start what there is to start, in this process
    Drain(DrainArgs),
    /// Say how far each drainer is, and what it stands before
    Drainers(DrainersArgs),
    /// Go back and handle events again
    Rewind(RewindArgs),
    /// Starts that did not work
    #[command(subcommand)]
    Parked(ParkedCommand),
    /// API keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Events that could not be delivered
    #[command(subcommand)]
    Failed(FailedCommand),
    /// Compare what is stored of tasks, jobs and runs with the ledger
    Verify(VerifyArgs),
    /// Say what is reachable and what is missing
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
    /// Drainers beside `workflow_runner`, each with how often it runs, or without for at once
    #[arg(long, default_value = "", hide_default_value = true, value_name = "LIST")]
    pub drainers: String,
    /// Delete events after so many days; 0 keeps them
    #[arg(long, default_value_t = 0, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(..=36_500))]
    pub retention_days: u64,
}

/// `ledgerline emit`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local emit price.changed --entity ITEM/10472 --properties '{\"old\":1.42,\"new\":1.48}'
  ledgerline --local emit sync.finished --entity STORE/s-1 --properties @result.json --idempotency-key sync:s-1:2026-05-25
  cat big.json | ledgerline --local emit report.made --entity REPORT/r-7 --properties -")]
pub struct EmitArgs {
    /// What happened
    #[arg(value_name = "TYPE")]
    pub event_type: String,
    /// What it is about
    #[arg(long, value_name = "TYPE/ID")]
    pub entity: String,
    /// A JSON object, @FILE, or - for standard input
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub properties: String,
    /// The app it comes from
    #[arg(long, default_value = "cli")]
    pub app: String,
    /// Events with the same key collapse onto the first, whose id is the answer; keys hold for 30 days
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// What led to it
    #[arg(long, value_name = "TEXT")]
    pub caused_by: Option<String>,
    /// The system that the fact comes from
    #[arg(long, value_name = "NAME")]
    pub source_system: Option<String>,
    /// When it happened: 13 digits, RFC 3339, or how long ago (90s, 5m, 2h, 1d)
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
}

/// `ledgerline events`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local events --type 'price.*' --since 2h
  ledgerline --local events --entity TASK/req-123 --json | jq .properties
  ledgerline --stage prod --tenant acme events --app checkout --follow")]
pub struct EventsArgs {
    /// An event type, or a glob: * is any run of characters, ? is one
    #[arg(long = "type", value_name = "GLOB")]
    pub event_type: Option<String>,
    /// One entity, or all of a type: TASK/req-123 or TASK
    #[arg(long, value_name = "TYPE[/ID]")]
    pub entity: Option<String>,
    /// One app
    #[arg(long)]
    pub app: Option<String>,
    /// From: 13 digits, RFC 3339, or how long ago (90s, 5m, 2h, 1d)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Up to and including
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// At most so many
    #[arg(long, short = 'n', default_value = "50")]
    pub limit: NonZeroUsize,
    /// Keep running and print what comes, up to a minute late
    #[arg(long, short, conflicts_with = "until")]
    pub follow: bool,
}

/// `ledgerline keys`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local keys create --scope read --label dashboard
  ledgerline --stage prod --tenant acme keys list
  ledgerline --local keys revoke 3Jk1x0qPz_aB")]
#[allow(missing_docs)]
pub enum KeysCommand {
    /// Make a key; it is shown once
    Create {
        /// What it may do: each scope includes the ones before it
        #[arg(long, value_enum)]
        scope: ScopeArg,
        /// What it is for
        #[arg(long)]
        label: Option<String>,
    },
    /// List keys
    List,
    /// Take a key back
    Revoke {
        /// The key's id, as `keys list` shows it
        #[arg(allow_hyphen_values = true)]
        id: String,
    },
}

/// A key's scope on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub enum ScopeArg {
    /// Every GET
    Read,
    /// Also tasks, jobs, runs, sent events
    Write,
    /// Everything
    Admin,
}

impl From<ScopeArg> for KeyScope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Read => Self::Read,
            ScopeArg::Write => Self::Write,
            ScopeArg::Admin => Self::Admin,
        }
    }
}

/// `ledgerline failed`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local failed list
  ledgerline --local failed show 1767453739640-ddf71f63-b036-4ac7-ad0f-77a7fdfca352
  ledgerline --local failed redrive --all")]
#[allow(missing_docs)]
pub enum FailedCommand {
    /// List failed deliveries, newest first
    List {
        /// Also those already redriven
        #[arg(long)]
        all: bool,
        /// At most so many
        #[arg(long, short = 'n', default_value = "50")]
        limit: NonZeroUsize,
    },
    /// Show one, with the message as it was
    Show {
        /// Its id
        id: String,
    },
    /// Put failed deliveries back on the bus
    Redrive {
        /// Their ids
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<String>,
        /// All that are not redriven yet
        #[arg(long)]
        all: bool,
    },
}
