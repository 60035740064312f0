//! From the completion of a task to the start of its child, in local mode with a worker: a chain of tasks, each a
//! process. Once with a rest in each task, so that everything else is idle when it completes; once without.

use std::time::Instant;

use ledgerline_embedded::{Call, Service};
use ledgerline_event::{Name, dag::task_entity};
use ledgerline_local::{Local, TENANT};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    local_jobs,
    report::{Goal, Report},
    shapes::{Shape, task_id},
    sightings::Sightings,
    spread::Spread,
};

const SAMPLES: usize = if cfg!(debug_assertions) { 10 } else { 200 };
/// Not counted: they find no connections.
const FIRST: usize = 5;

const COMPLETED: &str = "Task Completed";
const STARTED: &str = "Task Processing Started";
const QUEUED: &str = "queued";

/// With and without a rest.
pub(crate) fn run() -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::of_figures();
    for (how, command, goal) in
        [("idle", "sleep 0.3", Goal::Under(100.0)), ("no-op tasks", "true", Goal::None)]
    {
        let [queued, started] = chain(&runtime, command)?;
        for (to, spread, goal) in [("queued", &queued, Goal::None), ("started", &started, goal)] {
            let name = format!("{how}: task completed to its child {to}");
            report.figure(&format!("{name}, p50"), spread.quantile(0.5), "ms", goal);
            report.figure(&format!("{name}, p99"), spread.quantile(0.99), "ms", Goal::None);
        }
        report.figure(&format!("{how}: children"), started.count() as f64, "", Goal::None);
    }
    Ok(report)
}

/// Milliseconds from completions to the message of the child, and to its start.
fn chain(runtime: &Runtime, command: &str) -> anyhow::Result<[Spread; 2]> {
    let folder = tempfile::tempdir()?;
    let sightings = Sightings::default();
    let job_completed = local_jobs::job_completed();
    let names = move |call: &Call| match call.service {
        Service::EventBridge | Service::Sqs => moments(call),
        _ => job_completed(call),
    };
    let options = local_jobs::options(&folder, &sightings, names, Some(command))?;
    runtime.block_on(async {
        let local = Box::pin(Local::start(options)).await?;
        let tasks = Shape::Chain.tasks(FIRST + SAMPLES + 1);
        let job_id = local_jobs::submit(&local, &Name::new("tenantId", TENANT)?, tasks).await?;
        sightings.until(&local_jobs::completed(&job_id)).await;
        local.stop().await;
        let at = |what: &str, number: usize| -> Option<Instant> {
            sightings.at(&format!("{what} {}", task_entity(&job_id, &task_id(number)).ok()?))
        };
        let to = |what: &str| -> Spread {
            let each = |number: usize| Some((at(COMPLETED, number)?, at(what, number + 1)?));
            let times = (FIRST..FIRST + SAMPLES).filter_map(each);
            times.map(|(from, to)| to.saturating_duration_since(from).as_secs_f64() * 1e3).collect()
        };
        Ok([to(QUEUED), to(STARTED)])
    })
}

/// Which tasks a request says have completed, are on the queue, or have started.
fn moments(call: &Call) -> Vec<String> {
    let of_queue = match call.operation.as_str() {
        "PutEvents" => false,
        "SendMessageBatch" => true,
        _ => return Vec::new(),
    };
    let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    let entries = body["Entries"].as_array().into_iter().flatten();
    let entry = |entry: &Value| {
        let text = entry[if of_queue { "MessageBody" } else { "Detail" }].as_str()?;
        let said: Value = serde_json::from_str(text).ok()?;
        match of_queue {
            true => Some(format!("{QUEUED} {}", said["requestId"].as_str()?)),
            false => Some(format!("{} {}", said["eventType"].as_str()?, said["entityId"].as_str()?)),
        }
    };
    entries.filter_map(entry).collect()
}
