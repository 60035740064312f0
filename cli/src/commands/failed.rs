//! `ledgerline failed`

use std::{pin::pin, process::ExitCode};

use anyhow::Context;
use futures::StreamExt;
use ledgerline_ledger::{Deliveries, RedriveOutcome};
use ledgerline_store::{FailedDelivery, FailureFilter, FailureState};
use serde_json::json;

use super::paging::note_if_incomplete;
use crate::{
    args::FailedCommand,
    output::{Output, shortened},
    target::Target,
};

pub(super) async fn run(target: &Target, command: FailedCommand, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        FailedCommand::List { all, limit } => list(target, all, limit.get(), output).await,
        FailedCommand::Show { id } => show(target, &id, output).await,
        FailedCommand::Redrive { all: true, .. } => redrive(target, Deliveries::AllOpen, output).await,
        FailedCommand::Redrive { ids, all: false } => redrive(target, Deliveries::Ids(ids), output).await,
    }
}

async fn list(
    target: &Target,
    include_redriven: bool,
    limit: usize,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let filter = if include_redriven { FailureFilter::All } else { FailureFilter::Failed };
    let page = target.failed_deliveries().list(target.tenant()?, filter, limit, None).await?;
    if output.is_json() {
        page.items.iter().try_for_each(|failure| output.json_line(failure))?;
    } else {
        let rows = page.items.iter().map(row).collect();
        output.table(&["id", "state", "event type", "entity", "reason"], rows, "No failed deliveries.")?;
        note_if_incomplete(page.cursor.is_some(), output)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(failure: &FailedDelivery) -> Vec<String> {
    let state = match failure.state {
        FailureState::Failed => "failed",
        FailureState::Redriven => "redriven",
    };
    vec![
        failure.id.clone(),
        state.into(),
        failure.event_type.clone().unwrap_or_else(|| "unknown".into()),
        failure.entity.clone().unwrap_or_else(|| "unknown".into()),
        shortened(&failure.reason, 80),
    ]
}

async fn show(target: &Target, id: &str, output: Output) -> anyhow::Result<ExitCode> {
    let failure = target.failed_deliveries().get(target.tenant()?, id).await?;
    let mut failure =
        failure.with_context(|| format!("no failed delivery has the id {id}; `failed list` shows them"))?;
    failure.body = Some(failure.whole_body(&target.payloads()).await?);
    if output.is_json() {
        output.json_line(&failure)?;
        return Ok(ExitCode::SUCCESS);
    }
    let unknown = || "unknown".to_owned();
    let fields = [
        ("id", failure.id.clone()),
        ("tenant", failure.tenant_id.to_string()),
        ("failed at", failure.failed_at.to_rfc3339()),
        ("code", failure.error_code.clone()),
        ("reason", failure.reason.clone()),
        ("event type", failure.event_type.clone().unwrap_or_else(unknown)),
        ("entity", failure.entity.clone().unwrap_or_else(unknown)),
        ("alerted at", failure.alerted_at.map_or_else(|| "not yet".into(), |time| time.to_rfc3339())),
        ("redriven at", failure.redriven_at.map_or_else(|| "never".into(), |time| time.to_rfc3339())),
    ];
    for (name, value) in fields {
        output.line(&format!("{name:<12} {value}"))?;
    }
    let body = failure.body.unwrap_or_default();
    let pretty =
        serde_json::from_str::<serde_json::Value>(&body).and_then(|json| serde_json::to_string_pretty(&json));
    output.line(&format!("\n{}", pretty.unwrap_or(body)))?;
    Ok(ExitCode::SUCCESS)
}

async fn redrive(target: &Target, deliveries: Deliveries, output: Output) -> anyhow::Result<ExitCode> {
    let redrive = target.redrive();
    let mut outcomes = pin!(redrive.redrive(target.tenant()?, deliveries).await?);
    let (mut tried, mut refused) = (0_usize, 0_usize);
    while let Some(outcome) = outcomes.next().await {
        let (id, problem) = match outcome {
            RedriveOutcome::Redriven { id } => (id, None),
            RedriveOutcome::Refused { id, error } => (id, Some(error.to_string())),
        };
        tried += 1;
        refused += usize::from(problem.is_some());
        match (output.is_json(), &problem) {
            (true, _) => {
                output.json_line(&json!({ "id": id, "redriven": problem.is_none(), "reason": problem }))?
            }
            (false, None) => output.line(&format!("{id}  redriven"))?,
            (false, Some(reason)) => output.line(&format!("{id}  not redriven: {reason}"))?,
        }
    }
    if tried == 0 && !output.is_json() {
        eprintln!("No failed deliveries.");
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
