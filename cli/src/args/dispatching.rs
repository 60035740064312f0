//! The arguments of everything that starts work: subscriptions, workflows, drainers, parked starts.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use ledgerline_drains::DEFAULT_DRAINER;
use ledgerline_event::parse_duration_ms;
use ledgerline_subscription::OnFailure;

/// `ledgerline subscriptions`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local subscriptions add 'vendor.cost_changed' vendor_cost_review --map vendor_id=$.entity_id
  ledgerline --local subscriptions add 'ar.*' ar_followup --filter 'event.properties.days_overdue > 30'
  ledgerline --local subscriptions test
  ledgerline --local subscriptions disable sub_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B")]
#[allow(missing_docs)]
pub enum SubscriptionsCommand {
    /// Start a workflow type for every event that matches
    Add(AddSubscriptionArgs),
    /// List subscriptions
    List,
    /// Show one
    Show {
        /// Its id
        id: String,
    },
    /// Show which subscriptions an event matches, the input of each start, and why the others do not match
    Test(TestArgs),
    /// Enable a subscription that was disabled
    Enable {
        /// Its id
        id: String,
    },
    /// Disable a subscription without deleting it
    Disable {
        /// Its id
        id: String,
    },
    /// Remove it; what it started goes on
    Rm {
        /// Its id
        id: String,
    },
}

/// `ledgerline subscriptions add`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local subscriptions add 'price.*' push_price --map item=$.entity_id --map price=$.payload.new_price
  ledgerline --local subscriptions add 'ar.*' ar_followup --filter 'event.properties.amount > 100' --on-failure halt
  ledgerline --local subscriptions add email.parsed file_email --drainer mail --start-at 2h

A recipe is a JSONPath over the event ($.payload.x is properties.x) or literal:TEXT. Without --map the
properties are the input. `*` does not reach the system's own events (`Task …`, `Job …`, …): spell out
their beginning.")]
pub struct AddSubscriptionArgs {
    /// Which event types: * is any run of characters, ? is one
    pub glob: String,
    /// What is started
    pub workflow_type: String,
    /// One field of the input
    #[arg(long = "map", value_name = "NAME=RECIPE", value_parser = pair)]
    pub mapper: Vec<(String, String)>,
    /// An expression (CEL) over `event` that must be true
    #[arg(long, value_name = "CEL")]
    pub filter: Option<String>,
    /// The drainer that it belongs to
    #[arg(long, value_name = "ID", default_value = DEFAULT_DRAINER)]
    pub drainer: String,
    /// What the drainer does with a start that fails
    #[arg(long, value_enum, default_value = "park")]
    pub on_failure: OnFailureArg,
    /// Start position if this drainer is new to the tenant [default: start of the ledger]
    #[arg(long, value_name = "TIME")]
    pub start_at: Option<String>,
    /// Add it disabled
    #[arg(long)]
    pub disabled: bool,
}

/// What the drainer does with a start that fails.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub enum OnFailureArg {
    /// Give up after the retries and continue
    Park,
    /// Stop before the event and retry without end
    Halt,
}

impl From<OnFailureArg> for OnFailure {
    fn from(arg: OnFailureArg) -> Self {
        match arg {
            OnFailureArg::Park => Self::Park,
            OnFailureArg::Halt => Self::Halt,
        }
    }
}

/// `ledgerline subscriptions test`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local subscriptions test
  ledgerline --local subscriptions test --type 'price.*'
  ledgerline --local subscriptions test --event evnt_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B
  echo '{\"eventType\":\"ar.overdue\",\"entityType\":\"INVOICE\",\"entityId\":\"7\",\"properties\":{\"amount\":120}}' |
    ledgerline --local subscriptions test --file -

It starts nothing. Without any of these options it takes the newest event.")]
#[group(multiple = false)]
pub struct TestArgs {
    /// The newest event of a type, or of a glob
    #[arg(long = "type", value_name = "GLOB")]
    pub event_type: Option<String>,
    /// An event that is in the ledger
    #[arg(long, value_name = "ID")]
    pub event: Option<String>,
    /// An event as JSON: at least eventType, entityType and entityId; - is standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `ledgerline workflows`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local workflows add push_price --kind task --timeout 5m --max-attempts 3
  ledgerline --local workflows add nightly --kind job --tasks nightly.yaml
  ledgerline --local workflows start push_price --input '{\"item\":\"10472\"}'")]
#[allow(missing_docs)]
pub enum WorkflowsCommand {
    /// Register a workflow type, or replace it
    Add(AddWorkflowArgs),
    /// List workflow types
    List,
    /// Remove a workflow type; starts of its subscriptions fail until it is registered again
    Rm {
        /// Its name
        #[arg(value_name = "TYPE")]
        workflow_type: String,
    },
    /// Start one by hand, by the path that events take
    Start {
        /// Its name
        #[arg(value_name = "TYPE")]
        workflow_type: String,
        /// A JSON object, @FILE, or - for standard input
        #[arg(long, default_value = "{}", value_name = "JSON")]
        input: String,
        /// Idempotency key: a repeat within 30 days starts nothing and prints the first id
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
}

/// `ledgerline workflows add`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local workflows add push_price --kind task --name push --timeout 5m --max-attempts 3
  ledgerline --local workflows add nightly --kind job --tasks nightly.yaml
  ledgerline --local workflows add approval --kind run --idempotency-key $.action_id
  ledgerline --local workflows add hitl.answered --kind send --match action=$.action_id

A task file is a list of {taskId, name, dependsOn?, input?}, as JSON or YAML; in an input a text that
begins with $ is a JSONPath over the start's input.")]
pub struct AddWorkflowArgs {
    /// Its name
    #[arg(value_name = "TYPE")]
    pub workflow_type: String,
    /// What a start becomes
    #[arg(long, value_enum)]
    pub kind: KindArg,
    /// task, run: name that the worker or runner has registered [default: TYPE]
    #[arg(long)]
    pub name: Option<String>,
    /// task: how long it may run (90s, 5m, 2h)
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub timeout: Option<u64>,
    /// task: how often it is tried
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<u32>,
    /// job: the tasks, as JSON or YAML; - is standard input
    #[arg(long, value_name = "FILE")]
    pub tasks: Option<PathBuf>,
    /// send: name of the sent event [default: TYPE]
    #[arg(long, value_name = "NAME")]
    pub event: Option<String>,
    /// send: one field of the match, made from the input; waiting runs compare it with their criteria
    #[arg(long = "match", value_name = "NAME=RECIPE", value_parser = pair)]
    pub matches: Vec<(String, String)>,
    /// A JSONPath over the input: one start per value
    #[arg(long, value_name = "PATH")]
    pub idempotency_key: Option<String>,
}

/// What a start becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum KindArg {
    /// One task for a worker
    Task,
    /// Several tasks that depend on each other
    Job,
    /// A durable workflow
    Run,
    /// A sent event, for runs that wait for it
    Send,
}

/// `ledgerline drain`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local drain
  ledgerline --stage prod --tenant acme drain --drainer timeline --json

Exit code 1 if the drainer is halted on an event, or a start waits for its retry.")]
pub struct DrainArgs {
    /// Which drainer
    #[arg(long, value_name = "ID", default_value = DEFAULT_DRAINER)]
    pub drainer: String,
}

/// `ledgerline drainers`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local drainers
  ledgerline --stage prod --tenant acme drainers --json | jq .lagMs")]
pub struct DrainersArgs {}

/// `ledgerline rewind`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local rewind --to 2h
  ledgerline --local rewind --to 2026-05-25T14:00:00Z --missing-only --yes
  ledgerline --stage prod --tenant acme rewind --drainer timeline --to evnt_01KA3Z7Q6Y8T2V4W5X6Y7Z8A9B

Shows how many events it will handle again, and asks. Then it drains, or watches the process that drains, until
the cursor is back where it was. Interrupting it stops only the watching.")]
pub struct RewindArgs {
    /// Which drainer
    #[arg(long, value_name = "ID", default_value = DEFAULT_DRAINER)]
    pub drainer: String,
    /// Where to go back to: epoch ms, RFC 3339, how long ago (90s, 5m, 2h, 1d), or an event's id
    #[arg(long, value_name = "TIME|EVENT_ID")]
    pub to: String,
    /// Start only what has no start yet, instead of everything again
    #[arg(long)]
    pub missing_only: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

/// `ledgerline parked`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local parked list
  ledgerline --local parked show 1767453739640-0f3a9c1d2b4e5f60
  ledgerline --local parked retry 1767453739640-0f3a9c1d2b4e5f60
  ledgerline --local parked list --json | jq -r .id | xargs ledgerline --local parked drop")]
#[allow(missing_docs)]
pub enum ParkedCommand {
    /// List parked starts, newest event first
    List {
        /// Also those that are still retried
        #[arg(long)]
        all: bool,
        /// Maximum number of rows
        #[arg(long, short = 'n', default_value = "50")]
        limit: NonZeroUsize,
    },
    /// Show one
    Show {
        /// Its id
        id: String,
    },
    /// Retry them; the cursor stays where it is
    Retry {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Drop them for good
    Drop {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, recipe)) if !name.is_empty() => Ok((name.to_owned(), recipe.to_owned())),
        _ => Err("NAME=RECIPE is expected, as in vendor_id=$.entity_id".into()),
    }
}

fn length(text: &str) -> Result<u64, String> {
    parse_duration_ms(text).ok_or_else(|| "a time like 90s, 5m or 2h is expected".into())
}
