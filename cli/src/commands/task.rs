//! `ledgerline task`

use std::{process::ExitCode, time::Duration};

use ledgerline_event::{
    Event, Name, TaskSummary,
    catalogue::{Catalogued, TaskPending, TaskState},
    keys::Scope,
    overflow,
};
use ledgerline_ledger::{EventQuery, system_clock};
use ledgerline_stage::Stage;
use serde::Serialize;
use serde_json::Value;

use super::{
    job::{duration, task_note},
    watching::{FailedPolls, until_interrupted},
};
use crate::{
    args::TaskArgs,
    output::{Output, on_one_line, properties},
    target::Target,
    times,
};

/// How often a watch polls.
const POLL_EVERY: Duration = Duration::from_millis(300);

/// A task, and its output if it is completed.
#[derive(Serialize)]
struct TaskWithOutput {
    #[serde(flatten)]
    task: TaskSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
}

pub(super) async fn run(target: &Target, args: TaskArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let task = stage.tasks.task(tenant, &args.request_id).await?;
    if args.watch {
        return watch(&stage, tenant, &args.request_id, output).await;
    }
    if args.history {
        let query = EventQuery::new(tenant, Scope::Entity(TaskPending::ENTITY_TYPE, &args.request_id));
        history(&target.reader().all(&query).await?, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let result = stage.tasks.task_output(tenant, &task).await?;
    show(TaskWithOutput { task, output: result }, output)?;
    Ok(ExitCode::SUCCESS)
}

fn show(shown: TaskWithOutput, output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return output.json_line(&shown);
    }
    let task = &shown.task;
    let time = |time: Option<ledgerline_event::Millis>| time.map(|time| time.to_rfc3339());
    let took = times::in_words(duration(task, system_clock()()));
    let took = match task.state {
        TaskState::Pending => format!("waiting for {took}"),
        TaskState::Processing => format!("running for {took}"),
        TaskState::Completed | TaskState::Failed => took,
    };
    let fields = [
        ("task", Some(task.request_id.to_string())),
        ("state", Some(task.state.as_str().to_owned())),
        ("name", task.name.clone()),
        ("job", task.job_id.clone()),
        ("depends on", task.depends_on.as_ref().filter(|ids| !ids.is_empty()).map(|ids| ids.join(", "))),
        ("generation", (task.generation > 1).then(|| task.generation.to_string())),
        ("attempt", task.attempt.map(|attempt| attempt.to_string())),
        ("worker", task.worker_id.clone()),
        ("pending at", time(task.pending_at)),
        ("started at", time(task.started_at)),
        ("ended at", time(task.ended_at)),
        ("took", Some(took)),
        ("note", task_note(task).map(|note| on_one_line(&note, 400))),
        ("output", shown.output.map(|output| output_text(&output))),
    ];
    let known: Vec<(&str, String)> =
        fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    output.fields(&known)
}

/// An output, or that it is missing.
fn output_text(output: &Value) -> String {
    let missing = output.as_object().and_then(overflow::missing);
    missing.map_or_else(|| output.to_string(), |missing| format!("missing: {missing}"))
}

fn history(events: &[Event], output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return events.iter().try_for_each(|event| output.json_line(event));
    }
    let rows = events.iter().map(|event| {
        let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
        vec![
            event.timestamp.to_rfc3339(),
            event.event_type.to_string(),
            number(event.context.generation),
            number(event.context.attempt),
            event.event_id.to_string(),
            properties(event, 80),
        ]
    });
    output.table(
        &["time", "type", "generation", "attempt", "id", "properties"],
        rows.collect(),
        "It was submitted a moment ago: no event of it has come through yet.",
    )
}

/// Prints each change until the task ends; the exit code says how it ended.
pub(super) async fn watch(
    stage: &Stage,
    tenant: &Name,
    request_id: &str,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let how_to_return = format!("The task goes on. `task {request_id} --watch` comes back to it.");
    until_interrupted(Box::pin(watch_until_ended(stage, tenant, request_id, output)), how_to_return).await
}

async fn watch_until_ended(
    stage: &Stage,
    tenant: &Name,
    request_id: &str,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut last = None;
    let mut failed_polls = FailedPolls::default();
    loop {
        let answer = stage.tasks.task(tenant, request_id).await;
        let Some(task) = failed_polls.tolerate(answer)? else {
            tokio::time::sleep(POLL_EVERY).await;
            continue;
        };
        let stamp = (task.generation, task.attempt, task.state, task.last_event_type);
        let state = task.state;
        if last.replace(stamp) != Some(stamp) {
            match output.is_json() {
                true => {
                    let result = stage.tasks.task_output(tenant, &task).await?;
                    output.json_line(&TaskWithOutput { task, output: result })?;
                }
                false => output.line(&state_line(&task))?,
            }
        }
        match state {
            TaskState::Completed => return Ok(ExitCode::SUCCESS),
            TaskState::Failed => return Ok(ExitCode::FAILURE),
            TaskState::Pending | TaskState::Processing => tokio::time::sleep(POLL_EVERY).await,
        }
    }
}

fn state_line(task: &TaskSummary) -> String {
    let took = match task.state {
        TaskState::Pending | TaskState::Processing => None,
        TaskState::Completed | TaskState::Failed => Some(times::in_words(duration(task, task.last_event_at))),
    };
    let note = task_note(task).map(|note| on_one_line(&note, 200));
    let rest: Vec<String> = took.into_iter().chain(note).collect();
    let (at, state) = (task.last_event_at.to_rfc3339(), task.state.as_str());
    format!("{at}  {state:<10}  {}", rest.join("  ")).trim_end().to_owned()
}
