//! The arguments of everything about runs of workflows, their hooks, and the events that they wait for.

use std::num::NonZeroUsize;

use clap::{Args, Subcommand, ValueEnum, builder::PossibleValuesParser};
use ledgerline_event::{RunEventType, RunState};

/// `ledgerline run`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local run start fulfil-order --input '{\"orderId\":\"o-1\"}' --watch
  ledgerline --local run show wrun_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B
  ledgerline --local run cancel wrun_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B --reason 'ordered twice'")]
#[allow(missing_docs)]
pub enum RunCommand {
    /// Start a run of a workflow
    Start(StartRunArgs),
    /// Draw a run with its steps, hooks and waits
    Show(ShowRunArgs),
    /// List everything that happened in a run, in its order
    Events(RunEventsArgs),
    /// End a run that has not ended
    Cancel(CancelRunArgs),
    /// Append one event to an external run
    Append(AppendArgs),
}

/// `ledgerline run start`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local run start fulfil-order --input '{\"orderId\":\"o-1\"}'
  ledgerline --local run start fulfil-order --input @order.json --id order-o-1 --watch
  cat order.json | ledgerline --stage prod --tenant acme run start fulfil-order --input - --json

Starting the same id with the same content again changes nothing; with other content it is refused. Ctrl-C
leaves the watch; the run goes on.

Exit codes with --watch: 0 completed, 1 failed or cancelled, 130 left before the end.")]
pub struct StartRunArgs {
    /// Name of the workflow, as registered with the runner
    pub workflow: String,
    /// The run's input: JSON, @FILE, or - for standard input
    #[arg(long, default_value = "{}", value_name = "JSON", allow_negative_numbers = true)]
    pub input: String,
    /// The run's id; a new one without it
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Stay, and show what happens until it ends
    #[arg(long, short)]
    pub watch: bool,
    /// The app that its events come from
    #[arg(long, default_value = "cli")]
    pub app: String,
}

/// `ledgerline run show`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local run show wrun_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B
  ledgerline --local run show order-o-1 --watch
  ledgerline --local run show order-o-1 --json | jq '.steps[] | {stepName, state, attempt}'

Each step, hook and wait is a row, in the order in which they were created; its bar shows when, of all the time
that the run has taken: in full where it was executed, faintly where it waited.

Ctrl-C leaves the watch; the run goes on.
Exit codes with --watch: 0 completed, 1 failed or cancelled, 130 left before the end.")]
pub struct ShowRunArgs {
    /// Its id
    #[arg(value_name = "RUN")]
    pub run_id: String,
    /// Stay, and show what happens until it ends
    #[arg(long, short)]
    pub watch: bool,
}

/// `ledgerline run events`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local run events order-o-1
  ledgerline --local run events order-o-1 --json | jq -r '[.eventType, .correlationId] | @tsv'")]
pub struct RunEventsArgs {
    /// Its id
    #[arg(value_name = "RUN")]
    pub run_id: String,
}

/// `ledgerline run cancel`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local run cancel order-o-1
  ledgerline --local run cancel order-o-1 --reason 'ordered twice'

Its steps, hooks and waits end with it. What a step has done outside stays done.")]
pub struct CancelRunArgs {
    /// Its id
    #[arg(value_name = "RUN")]
    pub run_id: String,
    /// Why; it stays with the run
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// `ledgerline run append`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local run append backup-7 run_created --event-data '{\"workflowName\":\"backup\",\"input\":{}}'
  ledgerline --local run append backup-7 run_started
  ledgerline --local run append backup-7 step_created --correlation-id step_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B --event-data '{\"stepName\":\"dump\"}'
  ledgerline --local run append backup-7 run_completed --event-data '{\"output\":{\"bytes\":1024}}'

For external runs, which a program of yours executes, in any language. An event that cannot follow is
refused. docs/api.md says what the data of each event are.")]
pub struct AppendArgs {
    /// The run's id; run_created makes the run
    #[arg(value_name = "RUN")]
    pub run_id: String,
    /// What happened
    #[arg(value_parser = event_types())]
    pub event_type: String,
    /// The id of the step, hook or wait: step_…, hook_…, wait_… and a ULID
    #[arg(long, value_name = "ID")]
    pub correlation_id: Option<String>,
    /// The details: a JSON object, @FILE, or - for standard input
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub event_data: String,
    /// The app that its events come from, if this makes the run
    #[arg(long, default_value = "cli")]
    pub app: String,
}

fn event_types() -> PossibleValuesParser {
    PossibleValuesParser::new(RunEventType::ALL.iter().map(|event_type| event_type.as_str()))
}

/// `ledgerline runs`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local runs
  ledgerline --stage prod --tenant acme runs --state failed --json | jq -r .runId")]
pub struct RunsArgs {
    /// Those in one state; without it all, those under way first
    #[arg(long, value_enum)]
    pub state: Option<RunStateArg>,
    /// Maximum number of rows
    #[arg(long, short = 'n', default_value = "50")]
    pub limit: NonZeroUsize,
}

/// `ledgerline hook`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local hook send htok_7d9f0b4c2a1e48d6b3f5a7c9e1d3b5f7 --payload '{\"approved\":true}'
  ledgerline --local hook send approve-order-17 --payload @answer.json")]
#[allow(missing_docs)]
pub enum HookCommand {
    /// Send a payload to the run whose hook has this token
    Send(SendToHookArgs),
}

/// `ledgerline hook send`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local hook send htok_7d9f0b4c2a1e48d6b3f5a7c9e1d3b5f7 --payload '{\"approved\":true}'
  echo '\"yes\"' | ledgerline --local hook send approve-order-17 --payload -

`run show` says the tokens of a run's hooks.")]
pub struct SendToHookArgs {
    /// The hook's token
    pub token: String,
    /// JSON, @FILE, or - for standard input
    #[arg(long, default_value = "null", value_name = "JSON", allow_negative_numbers = true)]
    pub payload: String,
    /// Idempotency key: a repeat within 30 days sends nothing and names the same run
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

/// `ledgerline send-event`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local send-event payment.received --match '{\"orderId\":\"o-1\"}' --event-data '{\"amount\":12.5}'
  ledgerline --local send-event stock.counted --event-data @count.json --idempotency-key count-2026-05-25

A run that waits for an event of this name receives it if the match contains the wait's criteria: a wait for
{\"orderId\":\"o-1\"} receives {\"orderId\":\"o-1\",\"kind\":\"card\"}. A run that begins to wait later receives it too.")]
pub struct SendEventArgs {
    /// The event's name
    pub name: String,
    /// What the runs get: JSON, @FILE, or - for standard input
    #[arg(long, default_value = "null", value_name = "JSON", allow_negative_numbers = true)]
    pub event_data: String,
    /// The match, which must contain the criteria of a wait: a JSON object, @FILE, or - for standard input
    #[arg(long = "match", default_value = "{}", value_name = "JSON", id = "match")]
    pub matched: String,
    /// Idempotency key: a repeat within 30 days sends nothing and prints the first id
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// The app that it comes from
    #[arg(long, default_value = "cli")]
    pub app: String,
}

/// `ledgerline sent-events`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local sent-events payment.received
  ledgerline --local sent-events payment.received --json | jq 'select(.consumedCount == 0)'")]
pub struct SentEventsArgs {
    /// The events' name
    pub name: String,
    /// Maximum number of rows
    #[arg(long, short = 'n', default_value = "50")]
    pub limit: NonZeroUsize,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub enum RunStateArg {
    /// No runner has begun it
    Pending,
    /// A runner has begun it; it may wait for something
    Running,
    /// It ended with an output
    Completed,
    /// It ended with an error
    Failed,
    /// A cancel request ended it
    Cancelled,
}

impl From<RunStateArg> for RunState {
    fn from(arg: RunStateArg) -> Self {
        match arg {
            RunStateArg::Pending => Self::Pending,
            RunStateArg::Running => Self::Running,
            RunStateArg::Completed => Self::Completed,
            RunStateArg::Failed => Self::Failed,
            RunStateArg::Cancelled => Self::Cancelled,
        }
    }
}
