//! What a job costs in requests and units, from its submission to its end: everything that the API, the bus, the
//! saver, the dispatcher and a worker do. It must grow with the tasks and their edges and not faster.
//!
//! Beside it the seed's way: what it reads at the completions of the same job, and nothing else.

use serde_json::json;

use crate::{
    pipeline::{Pipeline, Run},
    report::{Goal, Report, number},
    seed_jobs,
    shapes::{Shape, edges},
};

const SIZES: &[usize] = if cfg!(debug_assertions) { &[10, 50] } else { &[10, 100, 1_000] };
/// How long a task takes.
const TASK_MS: u64 = 1_000;
/// As good as nothing: everything happens within the time that drainers look back.
const SHORT_TASK_MS: u64 = 10;
/// Completions of the seed that are carried out; the others read as much.
const SEED_COMPLETIONS: usize = 10;
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
        "seed: reads/(N+E)",
        "seed: read units/(N+E)",
    ]);
    let slow = Shape::ALL.map(|shape| (shape, TASK_MS));
    for (shape, task_ms) in slow.into_iter().chain([(Shape::FanOut, SHORT_TASK_MS)]) {
        let mut before: Option<[f64; 3]> = None;
        for &size in SIZES {
            let tasks = shape.tasks(size);
            let parts = (size + edges(&tasks)) as f64;
            let tenant = format!("{}-{task_ms}-{size}", shape.name());
            let runtime = &pipeline.services.runtime;
            let run = runtime.block_on(pipeline.run(&tenant, tasks, task_ms))?;
            let (seed_requests, seed_units) = runtime.block_on(seed(&pipeline, &run))?;
            let requests = (run.to_tables + run.to_others) as f64;
            let per_part = [requests, run.write_units, run.read_units].map(|total| total / parts);
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
                json!(run.to_tables),
                number(per_part[0]),
                number(per_part[1]),
                number(per_part[2]),
                grown.map_or(json!(""), number),
                number(seed_requests / parts),
                number(seed_units / parts),
            ];
            report.row(cells, grown.unwrap_or(0.0), grown.map_or(Goal::None, |_| Goal::AtMost(GROWTH)));
        }
    }
    pipeline.services.stop();
    Ok(report)
}

/// Requests and read units of the seed for the same job.
async fn seed(pipeline: &Pipeline, run: &Run) -> anyhow::Result<(f64, f64)> {
    let count = run.completions.len();
    let (dynamo, table) = (&pipeline.clients.dynamo, &pipeline.services.names.events_table);
    let some: Vec<_> = run.completions.iter().step_by(count.div_ceil(SEED_COMPLETIONS)).collect();
    pipeline.meter.take();
    let mut requests = 0;
    for at in &some {
        requests += seed_jobs::completion(dynamo, table, (&run.tenant, &run.job_id), count, **at).await?;
    }
    let share = count as f64 / some.len() as f64;
    Ok((requests as f64 * share, pipeline.meter.take().read_units * share))
}
