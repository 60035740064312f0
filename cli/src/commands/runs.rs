//! `ledgerline runs`

use std::process::ExitCode;

use ledgerline_event::Millis;
use ledgerline_ledger::system_clock;
use ledgerline_runs::RunSummary;

use super::paging::{note_if_incomplete, up_to};
use crate::{
    args::RunsArgs,
    output::{Output, on_one_line},
    target::Target,
    times,
};

pub(super) async fn run(target: &Target, args: RunsArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let state = args.state.map(Into::into);
    let stage = &stage;
    let page = |wanted, cursor: Option<String>| async move {
        let page = stage.runs.runs(tenant, state, wanted, cursor.as_deref()).await?;
        anyhow::Ok((page.items, page.cursor))
    };
    let (runs, more) = up_to(args.limit.get(), page).await?;
    if output.is_json() {
        runs.iter().try_for_each(|run| output.json_line(run))?;
        return Ok(ExitCode::SUCCESS);
    }
    let none = match state {
        Some(_) => "No runs in this state.",
        None => "No runs. Start one with `run start WORKFLOW`.",
    };
    let headings = ["run", "workflow", "state", "created", "took", "app", "note"];
    let now = system_clock()();
    output.table(&headings, runs.iter().map(|run| row(run, now)).collect(), none)?;
    note_if_incomplete(more, output)?;
    Ok(ExitCode::SUCCESS)
}

fn row(run: &RunSummary, now: Millis) -> Vec<String> {
    let until = run.ended_at.unwrap_or(now);
    let elsewhere = run.external.then_some("executed elsewhere");
    let note = run.last_error.as_deref().or(elsewhere).unwrap_or_default();
    vec![
        run.run_id.to_string(),
        on_one_line(&run.workflow_name, 40),
        run.state.to_string(),
        run.created_at.to_rfc3339(),
        times::in_words(until.get().saturating_sub(run.created_at.get())),
        run.app_name.to_string(),
        on_one_line(note, 80),
    ]
}
