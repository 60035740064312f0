//! Watching a run until it ends: on a terminal the picture is drawn again in its place, elsewhere each event is a line
//! of its own. Nothing is changed.

use std::{process::ExitCode, time::Duration};

use ledgerline_event::{LogEvent, Millis, Name, RunEntity, RunEventType, RunHistory, RunState, RunView};
use ledgerline_ledger::system_clock;
use ledgerline_outbox::ComponentError;
use ledgerline_runs::{LogEntry, RunRecord};
use ledgerline_stage::Stage;
use serde_json::Value;

use super::{
    glyphs::Paper,
    rows::{error_of, hook_name, wait_name},
    view::{RecordFields, draw, elapsed},
};
use crate::{
    commands::{
        canvas::Screen,
        watching::{FailedPolls, until_interrupted},
    },
    output::{Output, on_one_line},
    times,
};

/// How often the watch polls.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// After a run has been pending this long, the watch suggests that no runner is running.
const HINT_AFTER_MS: u64 = 10_000;

/// What the watch has read and shown.
#[derive(Default)]
struct RunWatch {
    history: RunHistory,
    /// The last entry of the log that was read.
    sequence: u64,
    screen: Screen,
    hinted: bool,
}

/// Watches until the run ends; the exit code says how.
pub(super) async fn watch(
    stage: &Stage,
    tenant: &Name,
    run_id: &str,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let how_to_return = format!("The run goes on. `run show {run_id} --watch` comes back to it.");
    until_interrupted(Box::pin(watch_until_ended(stage, tenant, run_id, output)), how_to_return).await
}

async fn watch_until_ended(
    stage: &Stage,
    tenant: &Name,
    run_id: &str,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut watched = RunWatch::default();
    let mut failed_polls = FailedPolls::default();
    loop {
        let answer = poll(stage, tenant, run_id, watched.sequence).await;
        let Some((run, entries)) = failed_polls.tolerate(answer)? else {
            tokio::time::sleep(POLL_EVERY).await;
            continue;
        };
        let now = system_clock()();
        let paper = if output.is_json() { None } else { Paper::of_terminal() };
        for event in watched.apply(entries)? {
            match output.is_json() {
                true => output.json_line(&event)?,
                false if paper.is_none() => output.line(&event_line(&event, &watched.history))?,
                false => {}
            }
        }
        let Some(view) = watched.history.view() else { continue };
        match paper {
            Some(paper) => {
                let fields = RecordFields { external: run.external, last_error: run.last_error.as_deref() };
                let mut lines = draw(&view, fields, now, &paper);
                lines.extend(hint(&run, now).map(str::to_owned));
                watched.screen.draw(lines)?;
            }
            None if !watched.hinted => {
                watched.hinted = hint(&run, now).inspect(|hint| eprintln!("{hint}")).is_some()
            }
            None => {}
        }
        if view.run.state.is_terminal() {
            match output.is_json() {
                true => output.json_line(&view)?,
                false => output.line(&conclusion(&view, now))?,
            }
            let completed = view.run.state == RunState::Completed;
            return Ok(if completed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

async fn poll(
    stage: &Stage,
    tenant: &Name,
    run_id: &str,
    after: u64,
) -> Result<(RunRecord, Vec<LogEntry>), ComponentError> {
    let run = stage.runs.logs.known_run(tenant, run_id).await?;
    Ok((run, stage.runs.logs.log_entries(tenant, run_id, after).await?))
}

impl RunWatch {
    /// Applies new entries of the log; returns their events.
    fn apply(&mut self, entries: Vec<LogEntry>) -> anyhow::Result<Vec<LogEvent>> {
        let mut events = Vec::new();
        for entry in entries {
            entry.events.iter().try_for_each(|event| self.history.apply(event))?;
            self.sequence = entry.sequence;
            events.extend(entry.events);
        }
        Ok(events)
    }
}

/// What to check if nothing happens.
fn hint(run: &RunRecord, now: Millis) -> Option<&'static str> {
    let waits = run.state == RunState::Pending && !run.external;
    let alone = waits && now.get().saturating_sub(run.created_at.get()) > HINT_AFTER_MS;
    alone.then_some("No runner takes it: `doctor` says whether all is well.")
}

fn conclusion(view: &RunView<'_>, now: Millis) -> String {
    let (run, took) = (&view.run, elapsed(view, now));
    let because =
        |why: Option<String>| why.map(|why| format!(": {}", on_one_line(&why, 400))).unwrap_or_default();
    match run.state {
        RunState::Failed => {
            let error = error_of(run.error.as_deref(), run.error_code.as_deref());
            format!("{} has failed after {took}{}", run.run_id, because(error))
        }
        RunState::Cancelled => {
            format!("{} is cancelled after {took}{}", run.run_id, because(run.reason.clone()))
        }
        RunState::Pending | RunState::Running | RunState::Completed => {
            format!("{} is {} after {took}", run.run_id, run.state)
        }
    }
}

/// An event on one line. `history` contains it already.
fn event_line(event: &LogEvent, history: &RunHistory) -> String {
    let parts = [
        event.timestamp.to_rfc3339(),
        format!("{:<14}", event.event_type.as_str()),
        on_one_line(&subject(event, history), 60),
        on_one_line(&detail(event, history).unwrap_or_default(), 120),
    ];
    parts.join("  ").trim_end().to_owned()
}

fn subject(event: &LogEvent, history: &RunHistory) -> String {
    let id = &event.correlation_id;
    let name = match event.event_type.entity() {
        RunEntity::Run => history.run().map(|run| run.workflow_name.clone()),
        RunEntity::Step => history.steps().get(id).map(|step| step.name.clone()),
        RunEntity::Hook => history.hooks().get(id).map(hook_name),
        RunEntity::Wait => history.waits().get(id).map(|wait| wait_name(&wait.target)),
    };
    name.unwrap_or_else(|| id.to_string())
}

fn detail(event: &LogEvent, history: &RunHistory) -> Option<String> {
    let data = |name: &str| event.event_data.get(name).filter(|value| !value.is_null());
    let text = |name: &str| data(name).and_then(Value::as_str).map(str::to_owned);
    let json = |name: &str| data(name).map(ToString::to_string);
    match event.event_type {
        RunEventType::RunCreated => json("input"),
        RunEventType::RunStarted => text("workflowVersion").map(|version| format!("version {version}")),
        RunEventType::RunCompleted => json("output"),
        RunEventType::RunCancelled => text("reason"),
        RunEventType::RunFailed | RunEventType::StepFailed | RunEventType::StepRetrying => {
            error_of(text("error").as_deref(), text("errorCode").as_deref())
        }
        RunEventType::StepStarted => data("attempt")
            .and_then(Value::as_u64)
            .filter(|attempt| *attempt > 1)
            .map(|n| format!("attempt {n}")),
        RunEventType::StepCompleted => {
            let started = history.steps().get(&event.correlation_id).and_then(|step| step.started_at);
            started.map(|at| times::in_words(event.timestamp.get().saturating_sub(at.get())))
        }
        RunEventType::HookReceived => json("payload"),
        RunEventType::WaitCreated => {
            let wait = history.waits().get(&event.correlation_id);
            wait.and_then(|wait| wait.target.due()).map(|due| format!("until {}", due.to_rfc3339()))
        }
        RunEventType::WaitCompleted => text("outcome"),
        RunEventType::StepCreated
        | RunEventType::HookCreated
        | RunEventType::HookConflict
        | RunEventType::HookDisposed => None,
    }
}
