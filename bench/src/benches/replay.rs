//! A run with 10,000 events in its log, which waits: what it takes until it can go on. The log as it comes from the
//! store, where each step stands after it, the code replayed, and the whole visit of a runner.

use std::{
    hint::black_box,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use anyhow::ensure;
use ledgerline_event::{LogEvent, Name, RunHistory};
use ledgerline_workflow::{Execution, Visited, Workflow};
use serde_json::json;

use crate::{
    report::{Goal, Report},
    run_pipeline::RunPipeline,
    spread::Spread,
    workflows::workflows,
};

const ROUNDS: usize = 20;
/// Created, started, three events for each step, and the wait at the end.
const STEPS: u64 = if cfg!(debug_assertions) { 300 } else { 3_333 };
const GOAL_MS: f64 = 50.0;
/// Shorter than the sleep.
const LATER_MS: u64 = 10;

/// Part by part, and all of it.
pub(crate) fn run() -> anyhow::Result<Report> {
    let pipeline = RunPipeline::start()?;
    let runtime = &pipeline.services.runtime;
    let run_id = runtime.block_on(async {
        let run_id = pipeline.start_run("nap-after-steps", json!(STEPS)).await?;
        pipeline.visit(&run_id, Visited::Suspended).await?;
        anyhow::Ok(run_id)
    })?;
    let tenant = &pipeline.tenant;
    let events = runtime.block_on(Box::pin(pipeline.stage.runs.run_events(tenant, &run_id)))?;
    let known = workflows();
    let Some(workflow) = known.get("nap-after-steps", None) else {
        anyhow::bail!("the workflow is not registered")
    };

    let mut report = Report::of_figures();
    report.figure("events in the log", events.len() as f64, "", Goal::None);
    let replay = rounds(|| replayed(workflow, &run_id, &events))?;
    let fold = rounds(|| folded(&events))?;
    let read = rounds(|| {
        let began = Instant::now();
        let entries = runtime.block_on(Box::pin(pipeline.stage.runs.logs.log_entries(tenant, &run_id, 0)))?;
        let took = began.elapsed();
        ensure!(entries.iter().map(|entry| entry.events.len()).sum::<usize>() == events.len(), "a short log");
        Ok(took)
    })?;
    let visit = rounds(|| {
        pipeline.advance(LATER_MS);
        let began = Instant::now();
        runtime.block_on(pipeline.visit(&run_id, Visited::Suspended))?;
        Ok(began.elapsed())
    })?;
    let both = replay.median() + fold.median();
    for (what, spread, goal) in [
        ("(a) the code, replayed until it waits", &replay, Goal::None),
        ("(b) the state of everything, folded", &fold, Goal::None),
        ("(c) the log, read from the embedded store", &read, Goal::None),
        ("a whole visit: taken, (c), (b), (a), let go", &visit, Goal::Under(GOAL_MS)),
    ] {
        report.figure(&format!("{what}, p50 of {ROUNDS}"), spread.median(), "ms", goal);
        report.figure(&format!("{what}, slowest"), spread.most(), "ms", Goal::None);
    }
    report.figure("(a) and (b) together, p50", both, "ms", Goal::Under(GOAL_MS));
    let all = both + read.median();
    report.figure("(a), (b) and (c) together, p50", all, "ms", Goal::Under(GOAL_MS));
    pipeline.services.stop();
    Ok(report)
}

/// In milliseconds; the first round, which finds nothing in the caches, is not counted.
fn rounds(mut round: impl FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<Spread> {
    round()?;
    (0..ROUNDS)
        .map(|_| Ok(round()?.as_secs_f64() * 1e3))
        .collect::<anyhow::Result<Vec<_>>>()
        .map(Spread::from_iter)
}

fn replayed(workflow: &Workflow, run_id: &Name, events: &[LogEvent]) -> anyhow::Result<Duration> {
    let (log, input) = (events.to_vec(), json!(STEPS));
    let Some(now) = events.last().map(|event| event.timestamp) else { anyhow::bail!("the log is empty") };
    let began = Instant::now();
    let mut execution = Execution::new(workflow, run_id, input, None);
    execution.feed(log);
    let polled = execution.poll(&mut Context::from_waker(Waker::noop()), now);
    let took = began.elapsed();
    ensure!(polled == Poll::Pending && execution.mismatch().is_none(), "the log does not fit the code");
    ensure!(execution.next_due().is_some_and(|due| due > now), "the run does not sleep");
    Ok(took)
}

fn folded(events: &[LogEvent]) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let history = black_box(RunHistory::of(events)?);
    let took = began.elapsed();
    ensure!(history.open_waits().count() == 1, "the run does not sleep");
    ensure!(history.run().is_some_and(|run| run.input == STEPS), "another run");
    Ok(took)
}
