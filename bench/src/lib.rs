//! Measured figures: `cargo run --release -p ledgerline-bench [name …]`, and runs of workflows beside other
//! products: the program `runs`, which `bench/rivals/run` calls.
//!
//! Each bench has a file of its own under `benches/` and returns a `Report`, which shows each figure beside its goal.
//! `docs/figures.md` describes what is measured.

mod backlog;
mod benches;
mod conditions;
mod cpu;
mod deliveries;
mod function;
mod item_size;
mod local_jobs;
mod memory;
mod meter;
mod naive_job_reads;
mod naive_loop;
mod noop;
mod one_by_one;
mod pipeline;
mod probes;
mod report;
mod run_calls;
mod run_ends;
mod run_pipeline;
mod runs;
mod runs_api;
mod runtime_api;
mod samples;
mod saving;
mod services;
mod shapes;
mod sightings;
mod spread;
mod subscribers;
mod trace;
mod workflows;
mod workload;

use std::io::Write;

use anyhow::Context;
use clap::Parser;

pub use runs::runs;

use crate::{conditions::Conditions, report::Report};

/// Measures Ledgerline on the embedded services.
#[derive(Debug, Parser)]
#[command(name = "ledgerline-bench")]
struct Arguments {
    /// Which benches to run; all of them if none is named
    #[arg(value_parser = names())]
    benches: Vec<String>,
    /// List the benches and run none
    #[arg(long)]
    list: bool,
    /// Print one JSON object per line instead of tables
    #[arg(long)]
    json: bool,
}

struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn() -> anyhow::Result<Report>,
}

/// Counts before times: what does not depend on the machine comes first.
const BENCHES: [Bench; 16] = [
    Bench {
        name: "write-units",
        about: "bytes and write units of the thirteen event types of the catalogue",
        run: benches::write_units::run,
    },
    Bench {
        name: "job-cost",
        about: "requests and units of jobs of 10, 100 and 1,000 tasks, beside the reads of a naive polling dispatcher",
        run: benches::job_cost::run,
    },
    Bench {
        name: "run-cost",
        about: "requests and units of runs of 1 to 1,000 steps, and of a sleep, a wait and a hook",
        run: benches::run_cost::run,
    },
    Bench {
        name: "waiters",
        about: "what an event reads to find its waiter among 100, 10,000 and 100,000",
        run: benches::waiters::run,
    },
    Bench {
        name: "wait-loop",
        about: "requests and units of runs that wait 10 to 1,000 times for events of one name",
        run: benches::wait_loop::run,
    },
    Bench {
        name: "keys-and-json",
        about: "time to build the keys and the JSON of one event",
        run: benches::keys_and_json::run,
    },
    Bench {
        name: "matching",
        about: "time to decide about one event with 10, 100 and 1,000 subscriptions",
        run: benches::matching::run,
    },
    Bench {
        name: "replay",
        about: "replaying a run with 10,000 events in its log",
        run: benches::replay::run,
    },
    Bench {
        name: "save",
        about: "saves through the function's handler, beside plain puts",
        run: benches::save::run,
    },
    Bench {
        name: "drain",
        about: "draining a backlog with exactly-once starts, beside a naive polling loop",
        run: benches::drain::run,
    },
    Bench {
        name: "bad-events",
        about: "draining 10,000 events of which one in a hundred does not start, beside the others alone",
        run: benches::bad_events::run,
    },
    Bench {
        name: "latency",
        about: "from the save of an event to the start of its workflow in local mode",
        run: benches::latency::run,
    },
    Bench {
        name: "fan-out",
        about: "jobs of 100 and 1,000 no-op tasks in local mode, beside the processes alone",
        run: benches::fan_out::run,
    },
    Bench {
        name: "child-latency",
        about: "from the completion of a task to the start of its child in local mode",
        run: benches::child_latency::run,
    },
    Bench {
        name: "idle-worker",
        about: "polls and memory of a worker that has nothing to do",
        run: benches::idle_worker::run,
    },
    Bench {
        name: "cold-start",
        about: "from the start of the function's process to its first answer",
        run: benches::cold_start::run,
    },
];

fn names() -> clap::builder::PossibleValuesParser {
    BENCHES.map(|bench| bench.name).into()
}

/// Runs the benches that the command line names.
pub fn measure() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut out = std::io::stdout().lock();
    if arguments.list {
        for bench in &BENCHES {
            writeln!(out, "{:<14} {}", bench.name, bench.about)?;
        }
        return Ok(());
    }
    let wanted = |bench: &&Bench| {
        arguments.benches.is_empty() || arguments.benches.iter().any(|name| name == bench.name)
    };
    for bench in BENCHES.iter().filter(wanted) {
        let before = Conditions::now();
        eprintln!("{} …", bench.name);
        let report = (bench.run)().with_context(|| format!("running {}", bench.name))?;
        if arguments.json {
            for line in report.json_lines(bench.name, &before) {
                writeln!(out, "{line}")?;
            }
        } else {
            writeln!(out, "\n{}: {}\n{before}\n\n{report}", bench.name, bench.about)?;
        }
    }
    Ok(())
}
