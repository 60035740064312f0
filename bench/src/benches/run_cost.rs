//! What a run costs in requests and units: starting it, executing it, and emitting its events. A step must cost one
//! write to the log, and as much in a long run as in a short one. An empty run, and runs with only a sleep, a wait for
//! an event or a hook, are measured for comparison.

use anyhow::ensure;
use ledgerline_embedded::Service;
use ledgerline_event::{Name, RunState};
use ledgerline_runs::HookAnswer;
use ledgerline_workflow::Visited;
use serde_json::{Value, json};

use crate::{
    report::{Goal, Report, number},
    run_pipeline::{Counted, RunPipeline},
    workflows::{AWAITED, NAP},
    workload::Workload,
};

const SIZES: &[u64] = if cfg!(debug_assertions) { &[1, 10, 50] } else { &[1, 10, 100, 1_000] };

/// The requests that append to a log.
const APPENDS: [&str; 2] = ["PutItem", "TransactWriteItems"];

/// What a run took, part by part.
pub(crate) struct RunCost {
    /// Starting it.
    begin: Counted,
    /// Executing it, and receiving what it waits for.
    work: Counted,
    /// Saving its events.
    save: Counted,
    /// Draining them.
    drain: Counted,
    events: usize,
}

/// What happens while a run waits.
enum Meanwhile<'a> {
    /// It does not.
    Nothing,
    Time,
    Event(&'a Value),
    Payload(&'a str),
}

/// Every kind of run.
pub(crate) fn run() -> anyhow::Result<Report> {
    let pipeline = RunPipeline::start()?;
    let mut report = Report::with_headings(&[
        "run",
        "steps",
        "events",
        "appends",
        "appends/step",
        "requests",
        "requests/step",
        "to tables",
        "SQS",
        "PutEvents",
        "control: written",
        "written/step",
        "control: read",
        "saver: requests",
        "events: written",
        "events: written/step",
        "drainers: requests",
        "drainers: read",
    ]);
    pipeline.services.runtime.block_on(async {
        let empty = cost(&pipeline, "empty", json!(0), &Meanwhile::Nothing).await?;
        row(&mut report, "empty", 0, &empty, None);
        for &size in SIZES {
            let run = cost(&pipeline, "sequence", json!(size), &Meanwhile::Nothing).await?;
            row(&mut report, "one after the other", size, &run, Some(&empty));
        }
        let run = cost(&pipeline, "fan-out", json!(100), &Meanwhile::Nothing).await?;
        row(&mut report, "at once", 100, &run, Some(&empty));
        let criteria = json!({ "invoiceId": "inv-2024-000017", "kind": "payment" });
        for (name, workflow, input, meanwhile) in [
            ("a sleep", "nap", json!(0), Meanwhile::Time),
            ("a wait for an event", "payment", criteria.clone(), Meanwhile::Event(&criteria)),
            ("a hook and a payload", "approval", json!("order-17"), Meanwhile::Payload("order-17")),
        ] {
            let run = cost(&pipeline, workflow, input, &meanwhile).await?;
            row(&mut report, name, 0, &run, None);
        }
        anyhow::Ok(())
    })?;
    pipeline.services.stop();
    Ok(report)
}

/// What a run of a workload takes.
pub(crate) async fn of_workload(pipeline: &RunPipeline, workload: Workload) -> anyhow::Result<RunCost> {
    cost(pipeline, workload.workflow(), json!(workload.steps()), &Meanwhile::Nothing).await
}

async fn cost(
    pipeline: &RunPipeline,
    workflow: &str,
    input: Value,
    meanwhile: &Meanwhile<'_>,
) -> anyhow::Result<RunCost> {
    pipeline.take();
    let run_id = pipeline.start_run(workflow, input).await?;
    let begin = pipeline.take();
    execute(pipeline, &run_id, meanwhile).await?;
    let work = pipeline.take();
    let events = pipeline.save().await?;
    let save = pipeline.take();
    pipeline.drain().await?;
    let drain = pipeline.take();
    let state = pipeline.run(&run_id).await?.view.run.state;
    ensure!(state == RunState::Completed, "the run of {workflow} is {state}");
    Ok(RunCost { begin, work, save, drain, events })
}

async fn execute(pipeline: &RunPipeline, run_id: &Name, meanwhile: &Meanwhile<'_>) -> anyhow::Result<()> {
    if !matches!(meanwhile, Meanwhile::Nothing) {
        pipeline.visit(run_id, Visited::Suspended).await?;
    }
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Time => pipeline.advance(u64::try_from(NAP.as_millis())?),
        Meanwhile::Event(matched) => drop(pipeline.send(AWAITED, (*matched).clone()).await?),
        Meanwhile::Payload(token) => {
            let payload = pipeline.stage.hooks.receive_by_hook(Some(&pipeline.tenant), token, json!(true));
            let answer = Box::pin(payload).await?;
            ensure!(matches!(answer, HookAnswer::Received { .. }), "the hook answered {answer:?}");
        }
    }
    pipeline.visit(run_id, Visited::Ended).await
}

impl RunCost {
    /// The requests that start, wake and execute the run.
    fn of_run(&self) -> Counted {
        self.begin.clone().and(&self.work)
    }

    /// In one line.
    pub(crate) fn summary(&self) -> String {
        let run = self.of_run();
        format!(
            "{} appends to the log; control table {} units written, {} read; {} events, for which the saver writes \
             {} units of the events table and {} of the control table; tables {}, SQS {}, PutEvents {} requests, \
             and {} of the saver",
            self.work.table_operations(&APPENDS),
            run.runs.units,
            run.runs.read_units,
            self.events,
            self.save.events.units,
            self.save.marks.units,
            run.to(Service::DynamoDb),
            run.to(Service::Sqs),
            run.to(Service::EventBridge),
            self.save.all(),
        )
    }
}

fn row(report: &mut Report, name: &str, steps: u64, cost: &RunCost, empty: Option<&RunCost>) {
    let run = cost.of_run();
    let per_step =
        |of: &dyn Fn(&RunCost) -> f64| empty.map_or(f64::NAN, |empty| (of(cost) - of(empty)) / steps as f64);
    let shown = |value: f64| if value.is_nan() { json!("") } else { number(value) };
    let appends = |cost: &RunCost| cost.work.table_operations(&APPENDS) as f64;
    let appends_per_step = per_step(&appends);
    let cells = vec![
        json!(name),
        json!(steps),
        json!(cost.events),
        number(appends(cost)),
        shown(appends_per_step),
        json!(run.all()),
        shown(per_step(&|cost| cost.of_run().all() as f64)),
        json!(run.to(Service::DynamoDb)),
        json!(run.to(Service::Sqs)),
        json!(run.to(Service::EventBridge)),
        number(run.runs.units),
        shown(per_step(&|cost| cost.of_run().runs.units)),
        number(run.runs.read_units),
        json!(cost.save.all()),
        number(cost.save.events.units),
        shown(per_step(&|cost| cost.save.events.units)),
        json!(cost.drain.all()),
        number(cost.drain.drains.read_units),
    ];
    // Steps that end together share their entries.
    let goal = match name {
        "at once" => Goal::AtMost(1.0),
        _ if empty.is_some() => Goal::Exactly(1.0),
        _ => Goal::None,
    };
    report.row(cells, appends_per_step, goal);
}
