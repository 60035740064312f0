//! A run that waits again and again for events of one name: what each wait costs in requests and read units must not grow
//! with the number of waits, nor with the number of earlier events. In one case all events are there before the run begins.
//! In the other each event comes while the run waits, among others that do not fit; then each event causes a visit of the
//! same runner, which reads only the new entries of the log.

use ledgerline_workflow::Visited;
use serde_json::{Value, json};

use crate::{
    report::{Goal, Report, number},
    run_pipeline::{Counted, RunPipeline},
    workflows::AWAITED,
};

const SIZES: &[u64] = if cfg!(debug_assertions) { &[10, 100] } else { &[10, 100, 1_000] };
/// After this long, runs no longer search for events of senders before 0.1.0, which the measurement must not include.
const SETTLED_MS: u64 = 2 * 3_600_000;

/// When the events are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    BeforeTheRun,
    WhileItWaits,
}

/// Every size, both ways.
pub(crate) fn run() -> anyhow::Result<Report> {
    let headings =
        ["events", "waits", "requests/wait", "read units/wait", "write units/wait", "times as with few"];
    let mut report = Report::with_headings(&headings);
    for (about, sent) in [("all before the run", Sent::BeforeTheRun), ("one by one", Sent::WhileItWaits)] {
        let mut few: Option<f64> = None;
        for &size in SIZES {
            let pipeline = RunPipeline::start()?;
            let counted = pipeline.services.runtime.block_on(waits(&pipeline, size, sent))?;
            pipeline.services.stop();
            let each = |value: f64| value / size as f64;
            let (requests, read) = (each(counted.all() as f64), each(counted.runs.read_units));
            let cost = requests + read;
            let grown = few.map(|few| cost / few);
            few = few.or(Some(cost));
            let cells = vec![
                json!(about),
                json!(size),
                number(requests),
                number(read),
                number(each(counted.runs.units)),
                grown.map_or(json!(""), number),
            ];
            let goal = grown.map_or(Goal::None, |_| Goal::AtMost(1.2));
            report.row(cells, grown.unwrap_or(1.0), goal);
        }
    }
    Ok(report)
}

async fn waits(pipeline: &RunPipeline, size: u64, sent: Sent) -> anyhow::Result<Counted> {
    pipeline.send("first", json!({})).await?;
    pipeline.advance(SETTLED_MS);
    let event = |n: u64| -> Value { json!({ "orderId": "o-1", "n": n }) };
    let input = json!([size, { "orderId": "o-1" }]);
    if sent == Sent::BeforeTheRun {
        for n in 0..size {
            pipeline.send(AWAITED, event(n)).await?;
        }
        pipeline.take();
        let run_id = pipeline.start_run("payments", input).await?;
        pipeline.visit(&run_id, Visited::Ended).await?;
        return Ok(pipeline.take());
    }
    let run_id = pipeline.start_run("payments", input).await?;
    pipeline.visit(&run_id, Visited::Suspended).await?;
    pipeline.take();
    for n in 0..size {
        pipeline.send(AWAITED, json!({ "orderId": "o-2", "n": n })).await?;
        pipeline.send(AWAITED, event(n)).await?;
        let expected = if n + 1 == size { Visited::Ended } else { Visited::Suspended };
        pipeline.visit(&run_id, expected).await?;
    }
    Ok(pipeline.take())
}
