//! The arguments of an operator's commands: API keys and `verify`.

use clap::{Args, Subcommand, ValueEnum};
use ledgerline_store::KeyScope;

/// `ledgerline keys`
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  ledgerline --local keys create --scope read --label dashboard
  ledgerline --stage prod --tenant acme keys list
  ledgerline --local keys revoke 3Jk1x0qPz_aB")]
#[allow(missing_docs)]
pub enum KeysCommand {
    /// Create a key; it is shown once
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
    /// Revoke a key
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
    /// Read everything
    Read,
    /// Also submit tasks and jobs, start runs, send events
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

/// `ledgerline verify`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local verify
  ledgerline --stage prod --tenant acme verify --rebuild
  ledgerline --stage prod --tenant acme verify --json | jq -r 'select(.standing == \"fault\").entityId'

It reads the tenant's whole ledger, so on AWS it costs what reading all of its events costs. Without --rebuild it
changes nothing. With --rebuild it rebuilds derived data only: the rows that `tasks` and `task` show, the lists of
`tasks` and `jobs`, run records that differ from their run log, and events of a run log that the ledger lacks. It
reports differences in authoritative records (lease holder, outcome, counts) and does not change them. A
difference that is less than a minute old, or that waits for the drainer `jobs`, is `not settled yet` and no fault.

Exit codes: 0 everything agrees, or does now; 1 there are faults.")]
pub struct VerifyArgs {
    /// Rebuild derived data that differs
    #[arg(long)]
    pub rebuild: bool,
}
