//! The arguments of `ledgerline verify`.

use clap::Args;

/// `ledgerline verify`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ledgerline --local verify
  ledgerline --stage prod --tenant acme verify --rebuild
  ledgerline --stage prod --tenant acme verify --json | jq -r 'select(.standing == \"fault\").entityId'

Reads the tenant's whole ledger, so on AWS it costs what reading all of its events costs. It changes nothing
without --rebuild, and with it only what is derived: the rows that `tasks` and `task` show, and the lists of
`tasks` and `jobs`. What decides (who has run, what has ended, how many are left) is told of and left alone.
What happened within the last minute, or is waiting for the drainer `jobs`, is `not settled yet` and no fault.

Exit codes: 0 everything agrees, or does now; 1 there are faults.")]
pub struct VerifyArgs {
    /// Make what is derived again, where it differs
    #[arg(long)]
    pub rebuild: bool,
}
