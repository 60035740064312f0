//! What a job costs in requests and units, from its submission to its end: everything that the API, the bus, the
//! saver, the dispatcher and a worker do. It must grow with the tasks and their edges and not faster.
//!
//! Beside it what a naive polling dispatcher reads at the completions of the same job.

use serde_json::json;

use crate::{
    naive_job_reads,
    pipeline::{JobCost, Pipeline},
    report::{Goal, Report, number},
    shapes::{Shape, edges},
};

const SIZES: &[usize] = if cfg!(debug_assertions) { &[10, 50] } else { &[10, 100, 1_000] };
/// How long a task takes.
const TASK_MS: u64 = 1_000;
/// So short that everything happens within the time that drainers look back.
const SHORT_TASK_MS: u64 = 10;
/// How many completions of the naive dispatcher are carried out; the others read as much.
const NAIVE_COMPLETIONS: usize = 10;
/// Figures per task and edge may rise a little where pages and batches end.
const GROWTH: f64 = 1.2;

/// Every shape in every size.
pub(crate) fn run() -> anyhow::Result<Report> {
    let pipeline = Pipeline::start()?;
    let mut report = Report::with_headings(&[
        "job",
        "task takes",
        "N",
        "E",
        "requests",
        "of which tables",
        "requests/(N+E)",
        "write units/(N+E)",
        "read units/(N+E)",
        "most grown",
        "naive: reads/(N+E)",
        "naive: read units/(N+E)",
    ]);
    let slow = Shape::ALL.map(|shape| (shape, TASK_MS));
    for (shape, task_ms) in slow.into_iter().chain([(Shape::FanOut, SHORT_TASK_MS)]) {
        let mut before: Option<[f64; 3]> = None;
        for &size in SIZES {
            let tasks = shape.tasks(size);
            let parts = (size + edges(&tasks)) as f64;
            let tenant = format!("{}-{task_ms}-{size}", shape.name());
            let runtime = &pipeline.services.runtime;
            let cost = runtime.block_on(pipeline.run(&tenant, tasks, task_ms))?;
            let (naive_requests, naive_units) = runtime.block_on(naive_cost(&pipeline, &cost))?;
            let requests = (cost.to_tables + cost.to_others) as f64;
            let per_part = [requests, cost.write_units, cost.read_units].map(|total| total / parts);
            let grown = before.map(|before| {
                let ratios = per_part.iter().zip(before).map(|(now, before)| now / before);
                ratios.fold(0.0, f64::max)
            });
            before = Some(per_part);
            let cells = vec![
                json!(shape.name()),
                json!(format!("{task_ms} ms")),
                json!(size),
                json!(parts as usize - size),
                number(requests),
                json!(cost.to_tables),
                number(per_part[0]),
                number(per_part[1]),
                number(per_part[2]),
                grown.map_or(json!(""), number),
                number(naive_requests / parts),
                number(naive_units / parts),
            ];
            report.row(cells, grown.unwrap_or(0.0), grown.map_or(Goal::None, |_| Goal::AtMost(GROWTH)));
        }
    }
    pipeline.services.stop();
    Ok(report)
}

/// Requests and read units of the naive dispatcher for the same job.
async fn naive_cost(pipeline: &Pipeline, job: &JobCost) -> anyhow::Result<(f64, f64)> {
    let count = job.completions.len();
    let (dynamo, table) = (&pipeline.clients.dynamo, &pipeline.services.names.events_table);
    let some: Vec<_> = job.completions.iter().step_by(count.div_ceil(NAIVE_COMPLETIONS)).collect();
    pipeline.meter.take();
    let mut requests = 0;
    for at in &some {
        requests +=
            naive_job_reads::completion(dynamo, table, (&job.tenant, &job.job_id), count, **at).await?;
    }
    let share = count as f64 / some.len() as f64;
    Ok((requests as f64 * share, pipeline.meter.take().read_units * share))
}
