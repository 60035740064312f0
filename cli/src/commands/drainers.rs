//! `ledgerline drainers`

use std::process::ExitCode;

use ledgerline_drains::DrainerState;
use ledgerline_event::keys::time_of;
use ledgerline_ledger::system_clock;

use super::attention;
use crate::{
    output::{Output, on_one_line},
    target::Target,
    times,
};

pub(super) async fn run(target: &Target, output: Output) -> anyhow::Result<ExitCode> {
    let (stage, tenant) = (target.stage().await?, target.tenant()?);
    let states = stage.drains.drainer_states(tenant).await?;
    if output.is_json() {
        states.iter().try_for_each(|state| output.json_line(state))?;
    } else {
        let notes = stage.attention.attention(tenant, &states).await?;
        output.table(
            &["drainer", "cursor", "lag", "processed", "epoch", "blocked", "halted on", "error"],
            states.iter().map(row).collect(),
            "No drainer has begun for this tenant: it has no events yet, or no dispatcher runs.",
        )?;
        if !notes.is_empty() {
            output.note("\nNeeds attention")?;
        }
        notes.iter().try_for_each(|note| output.note(&attention::note_lines(note, system_clock()())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(state: &DrainerState) -> Vec<String> {
    let lag = match state.lag_ms {
        0 => "none".into(),
        ms => times::in_words(ms),
    };
    vec![
        state.drainer_id.to_string(),
        time_of(&state.cursor).map_or_else(|| "the beginning".into(), |time| time.to_rfc3339()),
        if state.stalled { format!("{lag} (stalled)") } else { lag },
        state.events_processed_total.to_string(),
        state.epoch.to_string(),
        state.blocks.to_string(),
        state.halted_on_event_id.as_deref().unwrap_or_default().to_owned(),
        on_one_line(state.last_error.as_deref().unwrap_or_default(), 80),
    ]
}
