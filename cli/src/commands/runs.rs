//! `ledgerline runs`

use std::process::ExitCode;

use ledgerline_dispatch::ShownRun;
use ledgerline_event::Millis;
use ledgerline_ledger::system_clock;

use crate::{
    args::RunsArgs,
    output::{Output, on_one_line},
    target::Target,
    times,
};

pub(super) async fn run(target: &Target, args: RunsArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, dispatch) = (target.tenant()?, target.dispatch().await?);
    let state = args.state.map(Into::into);
    let mut runs = Vec::new();
    let mut cursor = None;
    loop {
        let page = dispatch.runs(tenant, state, args.limit.get() - runs.len(), cursor.as_deref()).await?;
        runs.extend(page.items);
        cursor = page.cursor;
        if cursor.is_none() || runs.len() >= args.limit.get() {
            break;
        }
    }
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
    if cursor.is_some() {
        eprintln!("There are more: raise --limit.");
    }
    Ok(ExitCode::SUCCESS)
}

fn row(run: &ShownRun, now: Millis) -> Vec<String> {
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
