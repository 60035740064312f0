//! The command line of a runner that is a process of its own.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use ledgerline_workflow::RunnerOptions;

/// Executes runs of the workflows in this program, until it is stopped.
///
/// As a function on AWS Lambda the same program needs no options.
#[derive(Debug, Parser)]
#[command(
    after_help = "Ctrl-C or SIGTERM stops: no more runs are taken, and those in flight finish within --grace."
)]
pub(crate) struct Args {
    /// Runs of the running local mode
    #[arg(long)]
    pub(crate) local: bool,
    /// The data folder of local mode
    #[arg(long, env = "LEDGERLINE_DATA", value_name = "DIR", default_value = ".ledgerline")]
    pub(crate) data: PathBuf,
    /// Runs of this stage on AWS, through the usual AWS environment
    #[arg(long, env = "LEDGERLINE_STAGE")]
    pub(crate) stage: Option<String>,
    /// Runs at the same time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) concurrency: u16,
    /// Seconds that runs in flight may take to come to a halt once stopping
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=3_600))]
    pub(crate) grace: u64,
    /// Seconds after which other runners continue the runs of a runner that died
    #[arg(long, env = LEASE, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) lease: u64,
}

/// The variable with the length of a lease of a run.
pub(crate) const LEASE: &str = "LEDGERLINE_RUN_LEASE_SECONDS";

impl Args {
    pub(crate) fn runner_options(&self) -> RunnerOptions {
        RunnerOptions { lease_ms: self.lease * 1_000, ..RunnerOptions::default() }
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_secs(self.grace)
    }

    /// Once a minute, and more often if leases are shorter: the sweep finds the runs of a dead runner.
    pub(crate) fn sweep_every(&self) -> Duration {
        Duration::from_secs(self.lease.min(60))
    }
}

/// The options of a function, which has no command line: `text` is the value of [`LEASE`].
pub(crate) fn options_from(text: Option<&str>) -> anyhow::Result<RunnerOptions> {
    let Some(text) = text else { return Ok(RunnerOptions::default()) };
    match text.parse::<u64>() {
        Ok(seconds @ 1..=600) => Ok(RunnerOptions { lease_ms: seconds * 1_000, ..RunnerOptions::default() }),
        _ => anyhow::bail!("{LEASE} is `{text}`: it takes a number of seconds from 1 to 600"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_number_of_seconds_up_to_ten_minutes() {
        assert_eq!(options_from(None).unwrap().lease_ms, 60_000);
        assert_eq!(options_from(Some("5")).unwrap().lease_ms, 5_000);
        for wrong in ["0", "601", "-1", "1.5", "a minute"] {
            let told = options_from(Some(wrong)).unwrap_err().to_string();
            assert!(told.contains(LEASE) && told.contains(wrong), "{told}");
            assert!(Args::try_parse_from(["runner", "--lease", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_have_defaults() {
        let args = Args::try_parse_from(["runner", "--local"]).unwrap();
        assert_eq!((args.concurrency, args.lease, args.sweep_every().as_secs()), (32, 60, 60));
        let soon = Args::try_parse_from(["runner", "--local", "--lease", "2"]).unwrap();
        assert_eq!((soon.runner_options().lease_ms, soon.sweep_every().as_secs()), (2_000, 2));
        assert!(Args::try_parse_from(["runner", "--concurrency", "0"]).is_err());
    }
}
