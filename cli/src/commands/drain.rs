//! `ledgerline drain`

use std::process::ExitCode;

use indicatif::HumanCount;
use ledgerline_drains::{Drained, DrainerState};

use crate::{
    args::DrainArgs,
    output::{Output, counted},
    target::Target,
};

pub(super) async fn run(target: &Target, args: DrainArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let drainer = stage.drainers().get("--drainer", &args.drainer)?.id.clone();
    let drained = stage.drains.drain(tenant, &drainer, None).await?;
    let states = stage.drains.drainer_states(tenant).await?;
    let state = states.into_iter().find(|state| state.drainer_id == drainer);
    match output.is_json() {
        true => output.json_line(&drained)?,
        false => print_drained(&drained, &drainer, state.as_ref(), output)?,
    }
    let halted = drained.halted_on_event_id.is_some();
    Ok(if halted { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_drained(
    drained: &Drained,
    drainer: &str,
    state: Option<&DrainerState>,
    output: Output,
) -> anyhow::Result<()> {
    let Some(state) = state else {
        eprintln!("Nothing subscribes through {drainer} yet: `subscriptions add` comes first.");
        return Ok(());
    };
    if drained.skipped_due_to_lock {
        return output.line(&format!(
            "{drainer} is being drained by another process, which has been told to look again"
        ));
    }
    output.line(&format!(
        "{drainer}: {} processed, {} started",
        counted(drained.processed, "event"),
        HumanCount(u64::try_from(drained.triggered.len())?)
    ))?;
    if !drained.triggered.is_empty() {
        let rows = drained.triggered.iter().map(|start| {
            let columns = [&start.workflow_type, &start.started, &start.event_id, &start.subscription_id];
            columns.map(ToString::to_string).to_vec()
        });
        output.line("")?;
        output.table(&["workflow", "started", "event", "subscription"], rows.collect(), "")?;
    }
    if let Some(event) = &drained.halted_on_event_id {
        let reason = state.last_error.as_deref().unwrap_or("unknown");
        let again = state.next_attempt_at.map_or_else(|| "soon".into(), |at| at.to_rfc3339());
        match state.halted {
            true => eprintln!(
                "The drainer is halted on {event}: {reason}\nIt is tried again at {again}; its subscription says halt, \
                 so nothing after it starts before it. `parked list --all` shows it."
            ),
            false => eprintln!(
                "The oldest start that waits is that of {event}: {reason}\nIt is tried again at {again}; only later \
                 starts of the same subscription and entity wait for it. `parked list --all` shows them."
            ),
        }
    }
    Ok(())
}
