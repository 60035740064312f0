//! `ledgerline run`

mod bar;
mod glyphs;
mod rows;
mod view;
mod watch;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use ledgerline_event::{EntityView, LogEvent, Name};
use ledgerline_ledger::system_clock;
use ledgerline_runs::{ExternalEvent, RunSubmission, RunSummary};
use serde::Serialize;

use self::{
    glyphs::Paper,
    view::{RecordFields, draw},
    watch::watch,
};
use super::input;
use crate::{
    args::{AppendArgs, CancelRunArgs, RunCommand, RunEventsArgs, ShowRunArgs, StartRunArgs},
    commands::canvas::Canvas,
    output::{Output, shortened},
    target::Target,
};

pub(super) async fn run(target: &Target, command: RunCommand, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        RunCommand::Start(args) => start(target, args, output).await,
        RunCommand::Show(args) => show(target, args, output).await,
        RunCommand::Events(args) => events(target, args, output).await,
        RunCommand::Cancel(args) => cancel(target, args, output).await,
        RunCommand::Append(args) => append(target, args, output).await,
    }
}

async fn start(target: &Target, args: StartRunArgs, output: Output) -> anyhow::Result<ExitCode> {
    let input = input::json("--input", &args.input)?;
    let emitter = target.emitter(Name::new("--app", args.app)?)?;
    let stage = target.stage().await?;
    let run = RunSubmission { workflow: args.workflow, input, run_id: args.id };
    let started = stage.runs.start_run(&emitter, run).await?;
    if started.collapsed {
        eprintln!("{} was started before: nothing was started again.", started.run_id);
    }
    match output.is_json() {
        true => output.json_line(&started)?,
        // The picture has it too.
        false if args.watch && io::stdout().is_terminal() => {}
        false => output.line(&started.run_id)?,
    }
    if !args.watch {
        return Ok(ExitCode::SUCCESS);
    }
    watch(&stage, target.tenant()?, &started.run_id, output).await
}

async fn show(target: &Target, args: ShowRunArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    if args.watch {
        return watch(&stage, tenant, &args.run_id, output).await;
    }
    let details = stage.runs.run(tenant, &args.run_id).await?;
    if output.is_json() {
        output.json_line(&details)?;
        return Ok(ExitCode::SUCCESS);
    }
    // All of it, however long: it is not drawn again.
    let paper = Paper::of_terminal().map_or(Paper::PLAIN, |paper| Paper {
        canvas: Canvas { height: usize::MAX, ..paper.canvas },
        ..paper
    });
    let record = RecordFields { external: details.external, last_error: details.last_error.as_deref() };
    let lines = draw(&details.view, record, system_clock()(), &paper);
    lines.iter().try_for_each(|line| output.line(line))?;
    Ok(ExitCode::SUCCESS)
}

async fn events(target: &Target, args: RunEventsArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let events = stage.runs.run_events(tenant, &args.run_id).await?;
    if output.is_json() {
        events.iter().try_for_each(|event| output.json_line(event))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = events.iter().map(|event| {
        let data = serde_json::to_string(&event.event_data).unwrap_or_default();
        vec![
            event.timestamp.to_rfc3339(),
            event.event_type.to_string(),
            event.correlation_id.to_string(),
            shortened(&data, 80),
        ]
    });
    output.table(&["time", "type", "id", "data"], rows.collect(), "No events.")?;
    Ok(ExitCode::SUCCESS)
}

async fn cancel(target: &Target, args: CancelRunArgs, output: Output) -> anyhow::Result<ExitCode> {
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let run = stage.runs.cancel_run(tenant, &args.run_id, args.reason.as_deref()).await?;
    match output.is_json() {
        true => output.json_line(&RunSummary::from(run))?,
        false => output.line(&format!("{} is {}", run.run_id, run.state))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// An event that was appended, and what it is about.
#[derive(Serialize)]
struct Appended<'a> {
    event: &'a LogEvent,
    #[serde(flatten)]
    entity: Option<EntityView<'a>>,
}

async fn append(target: &Target, args: AppendArgs, output: Output) -> anyhow::Result<ExitCode> {
    let event = ExternalEvent {
        event_type: args.event_type,
        correlation_id: args.correlation_id,
        event_data: input::object("--event-data", &args.event_data)?,
    };
    let emitter = target.emitter(Name::new("--app", args.app)?)?;
    let stage = target.stage().await?;
    let (event, history) = stage.external_runs.append_external(&emitter, &args.run_id, event).await?;
    let entity = history.entity(event.event_type.entity(), &event.correlation_id);
    if output.is_json() {
        output.json_line(&Appended { event: &event, entity })?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = entity.map(state_of).unwrap_or_default();
    output.line(&format!("{} is {state}", event.correlation_id))?;
    Ok(ExitCode::SUCCESS)
}

/// Where an entity stands; of an active hook also what opens it.
fn state_of(entity: EntityView<'_>) -> String {
    match entity {
        EntityView::Run(run) => run.state.to_string(),
        EntityView::Step(step) => step.state.to_string(),
        EntityView::Hook(hook) => format!("{}; its token is {}", hook.state, hook.token),
        EntityView::Wait(wait) => wait.state.to_string(),
    }
}
