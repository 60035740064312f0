//! `ledgerline parked`

use std::process::ExitCode;

use ledgerline_drains::{ParkedBecause, ParkedFilter, ParkedStart, ParkedState};
use ledgerline_event::{Millis, Name};
use ledgerline_stage::Stage;
use serde_json::json;

use super::paging::note_if_incomplete;
use crate::{
    args::ParkedCommand,
    output::{Output, on_one_line},
    target::Target,
};

pub(super) async fn run(target: &Target, command: ParkedCommand, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    match command {
        ParkedCommand::List { all, limit } => list(&stage, tenant, all, limit.get(), output).await?,
        ParkedCommand::Show { id } => show(&stage.parked().parked_start(tenant, &id).await?, output)?,
        ParkedCommand::Retry { ids } => return retry(&stage, tenant, &ids, output).await,
        ParkedCommand::Drop { ids } => return drop(&stage, tenant, &ids, output).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(
    stage: &Stage,
    tenant: &Name,
    include_retrying: bool,
    limit: usize,
    output: Output,
) -> anyhow::Result<()> {
    let filter = if include_retrying { ParkedFilter::All } else { ParkedFilter::Parked };
    let page = stage.parked().parked(tenant, filter, limit, None).await?;
    if output.is_json() {
        return page.items.iter().try_for_each(|start| output.json_line(start));
    }
    let rows = page.items.iter().map(|start| {
        vec![
            start.id.clone(),
            state(start).into(),
            because(start).into(),
            start.workflow_type.to_string(),
            start.event_type.to_string(),
            format!("{}/{}", start.entity_type, start.entity_id),
            on_one_line(&start.reason, 80),
        ]
    });
    output.table(
        &["id", "state", "because", "workflow", "event type", "entity", "reason"],
        rows.collect(),
        "Nothing is parked.",
    )?;
    note_if_incomplete(page.cursor.is_some(), output)
}

fn state(start: &ParkedStart) -> &'static str {
    match start.state {
        ParkedState::Retrying => "retrying",
        ParkedState::Parked => "parked",
    }
}

fn because(start: &ParkedStart) -> &'static str {
    match start.because {
        ParkedBecause::Failed => "failed",
        ParkedBecause::FanoutCap => "fanout-cap",
        ParkedBecause::Loop => "loop",
    }
}

fn show(start: &ParkedStart, output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        return output.json_line(start);
    }
    let time = |time: Option<Millis>| time.map_or_else(|| "never".into(), Millis::to_rfc3339);
    output.fields(&[
        ("id", start.id.clone()),
        ("state", state(start).into()),
        ("because", because(start).into()),
        ("reason", start.reason.clone()),
        ("attempts", start.attempts.to_string()),
        ("workflow", start.workflow_type.to_string()),
        ("subscription", start.subscription_id.to_string()),
        ("drainer", format!("{} (epoch {})", start.drainer_id, start.epoch)),
        ("event", format!("{} {}", start.event_type, start.event_id)),
        ("entity", format!("{}/{}", start.entity_type, start.entity_id)),
        ("first failed", start.first_failed_at.to_rfc3339()),
        ("tried again", time(start.next_attempt_at)),
        ("parked at", time(start.parked_at)),
    ])
}

async fn retry(stage: &Stage, tenant: &Name, ids: &[String], output: Output) -> anyhow::Result<ExitCode> {
    let mut refused = 0;
    for id in ids {
        let (started, already, asked, problem) = match stage.drains.retry(tenant, id).await {
            Ok(retried) => (retried.started, retried.already_started, retried.asked, None),
            Err(error) => (None, false, false, Some(error.to_string())),
        };
        refused += usize::from(problem.is_some());
        if output.is_json() {
            output.json_line(
                &json!({ "id": id, "started": started, "alreadyStarted": already, "asked": asked, "reason": problem }),
            )?;
            continue;
        }
        let started = started.as_deref().unwrap_or("nothing");
        output.line(&match problem {
            Some(reason) => format!("{id}  not started: {reason}"),
            None if asked => format!("{id}  the process that drains has been asked to start it"),
            None if already => format!("{id}  had been started before: {started}"),
            None => format!("{id}  started: {started}"),
        })?;
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn drop(stage: &Stage, tenant: &Name, ids: &[String], output: Output) -> anyhow::Result<ExitCode> {
    let mut refused = 0;
    for id in ids {
        let problem = stage.drains.drop_parked(tenant, id).await.err().map(|error| error.to_string());
        refused += usize::from(problem.is_some());
        match (output.is_json(), &problem) {
            (true, _) => {
                output.json_line(&json!({ "id": id, "dropped": problem.is_none(), "reason": problem }))?;
            }
            (false, None) => output.line(&format!("{id}  dropped"))?,
            (false, Some(reason)) => output.line(&format!("{id}  not dropped: {reason}"))?,
        }
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
