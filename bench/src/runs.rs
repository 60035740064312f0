//! Measures runs of workflows in local mode. `bench/rivals/run` measures other products with the same workloads, the same
//! warm-up and the same figures. Each workload gets a process and a data folder of its own.

use std::{env, process::Command, time::Duration};

use anyhow::ensure;
use clap::Parser;

use crate::{
    run_calls::{Measuring, Waiting},
    workload::Workload,
};

/// Measures runs of workflows in local mode.
#[derive(Debug, Parser)]
#[command(name = "runs")]
struct Arguments {
    /// Which workloads [default: all]
    workloads: Vec<Workload>,
    /// Seconds of measuring
    #[arg(long, default_value_t = if cfg!(debug_assertions) { 2.0 } else { 10.0 })]
    seconds: f64,
    /// Seconds of warm-up before that
    #[arg(long, default_value_t = if cfg!(debug_assertions) { 1.0 } else { 5.0 })]
    warm_up: f64,
    /// Notify callers in this process when a run has ended; otherwise they wait in an HTTP request
    #[arg(long)]
    told: bool,
    /// Print the requests of two runs instead of measuring
    #[arg(long)]
    trace: bool,
    /// Measure one workload in this process
    #[arg(long, hide = true)]
    here: bool,
}

/// Measures the workloads that the command line names and prints a line of JSON for each. Everything else goes to standard
/// error.
pub fn runs() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let (true, [workload]) = (arguments.here, arguments.workloads.as_slice()) {
        let waiting = if arguments.told { Waiting::Told } else { Waiting::Asking };
        let seconds = Duration::try_from_secs_f64(arguments.seconds)?;
        let warm_up = Duration::try_from_secs_f64(arguments.warm_up)?;
        let measuring = Measuring { workload: *workload, waiting, warm_up, seconds };
        return if arguments.trace { measuring.trace() } else { measuring.measure() };
    }
    let all = Workload::ALL.to_vec();
    let workloads = if arguments.workloads.is_empty() { all } else { arguments.workloads };
    for workload in workloads {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--here", workload.name()]);
        command.args(["--seconds", &arguments.seconds.to_string()]);
        command.args(["--warm-up", &arguments.warm_up.to_string()]);
        command.args(arguments.told.then_some("--told"));
        command.args(arguments.trace.then_some("--trace"));
        let ended = command.status()?;
        ensure!(ended.success(), "measuring {} failed: {ended}", workload.name());
    }
    Ok(())
}
