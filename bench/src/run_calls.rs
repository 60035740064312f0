//! Calls of a workflow in local mode over the HTTP API, again and again: a call is `POST /api/runs`, and then the caller
//! has to learn of the end. Callers are in the process of local mode, on a thread of their own, and so a little of the
//! memory is theirs.

use std::{
    cell::Cell,
    io::Write,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use ledgerline_embedded::{Interceptor, Service};
use ledgerline_local::{Local, LocalOptions};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use ulid::Ulid;

use crate::{
    benches::run_cost, memory, run_ends::RunEnds, run_pipeline::RunPipeline, runs_api::Caller,
    spread::Spread, trace::Trace, workflows::workflows, workload::Workload,
};

/// How long no event may have been sent to the ledger until it counts as complete.
const QUIET: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(20);

/// How a caller learns of the end of its run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    /// By `GET /api/runs/{id}?waitMs=…`, which answers then.
    Asking,
    /// The bench notifies it in process when the log has the end; it gets no result.
    Told,
}

/// What to measure, and how.
pub(crate) struct Measuring {
    pub(crate) workload: Workload,
    pub(crate) waiting: Waiting,
    pub(crate) warm_up: Duration,
    pub(crate) seconds: Duration,
}

/// Local mode, and those who call it.
struct Calling {
    local: Local,
    /// Where local mode runs; callers run elsewhere.
    runtime: Runtime,
    callers: Vec<Caller>,
    ends: RunEnds,
    made: Cell<usize>,
    workload: Workload,
    waiting: Waiting,
    _folder: TempDir,
}

struct Calls {
    latencies: Spread,
    took: Duration,
}

impl Measuring {
    /// Prints one line of JSON, and to standard error what the runs asked of the services.
    pub(crate) fn measure(&self) -> anyhow::Result<()> {
        let Self { workload, .. } = self;
        let calling = Calling::start(self, |ends| ends)?;
        let here = Builder::new_current_thread().enable_all().build()?;
        let rate = here.block_on(calling.warm_up(self.warm_up))?;
        let left = Cell::new((rate * self.seconds.as_secs_f64()).ceil() as usize);
        let calls = here.block_on(calling.call_while(|| {
            let more = left.get() > 0;
            left.set(left.get().saturating_sub(1));
            more
        }))?;
        let peak = memory::peak_mb()?;
        let (count, seconds) = (calls.latencies.count(), calls.took.as_secs_f64());
        let round = |value: f64, places: i32| (value * 10_f64.powi(places)).round() / 10_f64.powi(places);
        let line = json!({
            "workload": workload.name(),
            "p50Ms": round(calls.latencies.quantile(0.5), 3),
            "p99Ms": round(calls.latencies.quantile(0.99), 3),
            "runsPerSecond": round(count as f64 / seconds, 2),
            "peakRssMb": round(peak, 1),
            "runs": count,
            "seconds": round(seconds, 2),
            "way": self.waiting.to_string(),
        });
        writeln!(std::io::stdout().lock(), "{line}")?;

        let began = Instant::now();
        here.block_on(calling.settle())?;
        calling.tell(began.elapsed().saturating_sub(QUIET));
        calling.stop();
        let pipeline = RunPipeline::start()?;
        let cost = pipeline.services.runtime.block_on(run_cost::of_workload(&pipeline, *workload))?;
        eprintln!("  one run by hand, nothing beside it: {}", cost.summary());
        pipeline.services.stop();
        Ok(())
    }

    /// Prints the requests of a run with everything at rest, and of the one that follows it at once.
    pub(crate) fn trace(&self) -> anyhow::Result<()> {
        let trace = Trace::default();
        let calling = Calling::start(self, |ends| trace.interceptor(ends))?;
        let here = Builder::new_current_thread().enable_all().build()?;
        here.block_on(calling.warm_up(self.warm_up))?;
        here.block_on(calling.settle())?;
        for when in ["at rest", "at once after it"] {
            let began = Instant::now();
            let latency = here.block_on(calling.call(&calling.callers[0]))?;
            eprintln!("{}, {when}: {latency:.2} ms\n{}", self.workload.name(), trace.take(began));
        }
        let rest = Instant::now();
        here.block_on(calling.settle())?;
        eprintln!("afterwards:\n{}", trace.take(rest));
        calling.stop();
        Ok(())
    }
}

impl Calling {
    fn start(measuring: &Measuring, around: impl FnOnce(Interceptor) -> Interceptor) -> anyhow::Result<Self> {
        let Measuring { workload, waiting, .. } = *measuring;
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let (folder, ends) = (tempfile::tempdir()?, RunEnds::default());
        let options = LocalOptions {
            workflows: Some(workflows()),
            interceptor: Some(around(ends.interceptor())),
            ..LocalOptions::new(folder.path().join("data"))
        };
        let local = runtime.block_on(async { Box::pin(Local::start(options)).await })?;
        local.embedded.reset_requests();
        let callers = (0..workload.callers()).map(|_| Caller::new(&local.state)).collect();
        let made = Cell::default();
        Ok(Self { local, runtime, callers, ends, made, workload, waiting, _folder: folder })
    }

    /// The rate of the second half, in runs per second: the first is slower than what comes after.
    async fn warm_up(&self, time: Duration) -> anyhow::Result<f64> {
        let mut rate = 0.0;
        for _ in 0..2 {
            let until = Instant::now() + time / 2;
            let calls = self.call_while(|| Instant::now() < until).await?;
            rate = calls.latencies.count() as f64 / calls.took.as_secs_f64();
        }
        Ok(rate)
    }

    /// Calls as long as `more` says so, from all callers at once.
    async fn call_while(&self, more: impl Fn() -> bool) -> anyhow::Result<Calls> {
        let began = Instant::now();
        let latencies = try_join_all(self.callers.iter().map(|caller| async {
            let mut latencies = Vec::new();
            while more() {
                latencies.push(self.call(caller).await?);
            }
            anyhow::Ok(latencies)
        }))
        .await?;
        Ok(Calls { latencies: latencies.into_iter().flatten().collect(), took: began.elapsed() })
    }

    /// One call, in milliseconds.
    async fn call(&self, caller: &Caller) -> anyhow::Result<f64> {
        let run_id = format!("run_{}", Ulid::generate());
        let (workflow, input) = (self.workload.workflow(), self.workload.steps());
        self.made.set(self.made.get() + 1);
        let end = self.ends.of(&run_id);
        let began = Instant::now();
        caller.start(workflow, input, &run_id).await?;
        let ended = match self.waiting {
            Waiting::Told => end.await.context("local mode is gone")?,
            Waiting::Asking => {
                let run = caller.ended(&run_id).await?;
                let ended = Instant::now();
                let (state, output) = (&run["state"], &run["output"]);
                ensure!(
                    state == "completed" && *output == self.workload.expected(),
                    "{run_id} answered {run}"
                );
                ended
            }
        };
        Ok(ended.saturating_duration_since(began).as_secs_f64() * 1e3)
    }

    /// Waits until the ledger has everything.
    async fn settle(&self) -> anyhow::Result<()> {
        let (queues, mut quiet_since) = (self.local.embedded.queues(), Instant::now());
        while quiet_since.elapsed() < QUIET {
            tokio::time::sleep(LOOK).await;
            let counts = queues.counts(&self.local.names.ingest_queue)?;
            let runs = queues.counts(&self.local.names.run_queue)?;
            if [counts, runs].iter().any(|counts| counts.visible + counts.in_flight > 0) {
                quiet_since = Instant::now();
            }
        }
        Ok(())
    }

    /// What all runs so far, warm-up included, asked of the services.
    fn tell(&self, caught_up: Duration) {
        let runs = self.made.get() as f64;
        let requests = self.local.embedded.requests();
        let to = |service: Service| {
            let counted = requests.iter().filter(|((to, _), _)| *to == service);
            counted.map(|(_, count)| *count as f64).sum::<f64>() / runs
        };
        eprintln!("{}: {}", self.workload.name(), self.waiting);
        eprintln!(
            "  requests per run: tables {:.1}, SQS {:.1}, PutEvents {:.1}",
            to(Service::DynamoDb),
            to(Service::Sqs),
            to(Service::EventBridge),
        );
        let each: Vec<String> = requests
            .iter()
            .map(|((_, operation), count)| format!("{operation} {:.2}", *count as f64 / runs))
            .collect();
        eprintln!("  of which, with drainers and saver: {}", each.join(", "));
        eprintln!("  the ledger had everything {:.1} s after the last run", caught_up.as_secs_f64());
    }

    fn stop(self) {
        self.runtime.block_on(self.local.stop());
    }
}

impl std::fmt::Display for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Asking => f.write_str("callers wait by GET /api/runs/{id}?waitMs=20000"),
            Self::Told => f.write_str("callers are told in process when the end is in the log"),
        }
    }
}
