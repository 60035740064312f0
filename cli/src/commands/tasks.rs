//! `ledgerline tasks`

use std::process::ExitCode;

use ledgerline_event::{Millis, TaskSummary};
use ledgerline_ledger::system_clock;

use super::{
    job::{duration, task_note},
    paging::{note_if_incomplete, up_to},
};
use crate::{
    args::TasksArgs,
    output::{Output, on_one_line},
    target::Target,
    times,
};

pub(super) async fn run(target: &Target, args: TasksArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let state = args.state.map(Into::into);
    let stage = &stage;
    let page = |wanted, cursor: Option<String>| async move {
        let page = stage.tasks.tasks(tenant, state, wanted, cursor.as_deref()).await?;
        anyhow::Ok((page.items, page.cursor))
    };
    let (tasks, more) = up_to(args.limit.get(), page).await?;
    if output.is_json() {
        tasks.iter().try_for_each(|task| output.json_line(task))?;
        return Ok(ExitCode::SUCCESS);
    }
    let none = match state {
        Some(_) => "No tasks in this state.",
        None => "No tasks. Submit one with `submit FILE`.",
    };
    let now = system_clock()();
    let headings = ["task", "name", "state", "since", "took", "worker", "note"];
    output.table(&headings, tasks.iter().map(|task| row(task, now)).collect(), none)?;
    note_if_incomplete(more, output)?;
    Ok(ExitCode::SUCCESS)
}

fn row(task: &TaskSummary, now: Millis) -> Vec<String> {
    vec![
        task.request_id.to_string(),
        on_one_line(task.name.as_deref().unwrap_or_default(), 40),
        task.state.as_str().into(),
        task.entered_at.to_rfc3339(),
        times::in_words(duration(task, now)),
        on_one_line(task.worker_id.as_deref().unwrap_or_default(), 40),
        on_one_line(&task_note(task).unwrap_or_default(), 80),
    ]
}
