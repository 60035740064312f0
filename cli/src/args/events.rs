//! The arguments of everything about events: emit, list, and redrive those that could not be saved.

use std::num::NonZeroUsize;

use clap::{Args, Subcommand};

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
    /// Events with the same key collapse onto the first, whose id is printed; keys hold for 30 days
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// What led to it
    #[arg(long, value_name = "TEXT")]
    pub caused_by: Option<String>,
    /// The system that the fact comes from
    #[arg(long, value_name = "NAME")]
    pub source_system: Option<String>,
    /// When it happened: epoch ms, RFC 3339, or how long ago (90s, 5m, 2h, 1d)
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
    /// From this time on: epoch ms, RFC 3339, or how long ago (90s, 5m, 2h, 1d)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Up to and including this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Maximum number of rows
    #[arg(long, short = 'n', default_value = "50")]
    pub limit: NonZeroUsize,
    /// Keep running and print new events, also those that arrive up to a minute late
    #[arg(long, short, conflicts_with = "until")]
    pub follow: bool,
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
        /// Maximum number of rows
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
