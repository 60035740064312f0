//! One row for each step, hook and wait of a run: its name, state, time span and note.

use ledgerline_event::{
    Hook, HookState, Millis, RunState, RunView, Step, StepState, Wait, WaitFor, WaitOutcome, WaitState,
};
use serde_json::Value;

use super::{bar::Span, glyphs::Look};
use crate::{output::counted, times};

/// One step, hook or wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) look: Look,
    pub(super) name: String,
    pub(super) state: &'static str,
    /// How often a step was tried; hooks and waits are not.
    pub(super) tries: Option<u32>,
    pub(super) span: Span,
    /// Its error, or what it waits for.
    pub(super) note: Option<String>,
}

/// All of them, in the order of their creation.
pub(super) fn rows(view: &RunView<'_>, now: Millis) -> Vec<Row> {
    // What is still open at the end of a run ended with it.
    let now = view.run.ended_at.unwrap_or(now);
    let steps = view.steps.iter().map(|step| of_step(step, now));
    let hooks = view.hooks.iter().map(|hook| of_hook(hook, now));
    let waits = view.waits.iter().map(|wait| of_wait(wait, now));
    let mut rows: Vec<Row> = steps.chain(hooks).chain(waits).collect();
    rows.sort_by_key(|row| row.span.from);
    rows
}

/// How a run looks at first sight.
pub(super) const fn look(state: RunState) -> Look {
    match state {
        RunState::Pending => Look::Waiting,
        RunState::Running => Look::Running,
        RunState::Completed => Look::Completed,
        RunState::Failed => Look::Failed,
        RunState::Cancelled => Look::Over,
    }
}

fn of_step(step: &Step, now: Millis) -> Row {
    let look = match step.state {
        StepState::Pending => Look::Waiting,
        StepState::Running => Look::Running,
        StepState::Completed => Look::Completed,
        StepState::Failed => Look::Failed,
    };
    let error = error_of(step.error.as_deref(), step.error_code.as_deref());
    let note = match (step.state, error) {
        (StepState::Pending, Some(error)) => {
            let when = step.retry_after.map_or_else(|| "soon".into(), |at| relative_time("at", at, now));
            Some(format!("tries again {when}, after {error}"))
        }
        (StepState::Running, Some(error)) => Some(format!("after {error}")),
        (StepState::Failed, error) => error,
        (StepState::Pending | StepState::Running, None) | (StepState::Completed, _) => None,
    };
    Row {
        look,
        name: step.name.clone(),
        state: step.state.as_str(),
        tries: Some(step.attempt),
        span: Span { from: step.created_at, work_from: step.started_at, until: step.ended_at.unwrap_or(now) },
        note,
    }
}

fn of_hook(hook: &Hook, now: Millis) -> Row {
    let received = (hook.received > 0).then(|| counted(hook.received, "payload"));
    let (look, until, note) = match hook.state {
        HookState::Active => {
            let received = received.map(|received| format!("{received} so far; ")).unwrap_or_default();
            (
                Look::Waiting,
                now,
                Some(format!("{received}`hook send {}` gives it one", shell_quoted(&hook.token))),
            )
        }
        HookState::Disposed => (Look::Completed, hook.disposed_at.unwrap_or(now), received),
        HookState::Conflicted => {
            (Look::Failed, hook.created_at, Some("another hook has this token".to_owned()))
        }
    };
    Row {
        look,
        name: hook_name(hook),
        state: hook.state.as_str(),
        tries: None,
        span: Span { from: hook.created_at, work_from: None, until },
        note,
    }
}

fn of_wait(wait: &Wait, now: Millis) -> Row {
    let (look, state) = match (wait.state, wait.outcome) {
        (WaitState::Waiting, _) => (Look::Waiting, wait.state.as_str()),
        (WaitState::Completed, Some(WaitOutcome::Timeout)) => (Look::Failed, "timeout"),
        (WaitState::Completed, Some(WaitOutcome::Abandoned)) => (Look::Over, "abandoned"),
        (
            WaitState::Completed,
            Some(WaitOutcome::Elapsed | WaitOutcome::Event | WaitOutcome::Ended) | None,
        ) => (Look::Completed, wait.state.as_str()),
    };
    Row {
        look,
        name: wait_name(&wait.target),
        state,
        tries: None,
        span: Span { from: wait.created_at, work_from: None, until: wait.completed_at.unwrap_or(now) },
        note: (wait.state == WaitState::Waiting).then(|| awaited(&wait.target, now)).flatten(),
    }
}

/// A text quoted for a shell.
fn shell_quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/@".contains(&byte);
    if text.bytes().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

pub(super) fn hook_name(hook: &Hook) -> String {
    format!("hook {}", hook.token)
}

/// What a wait is for, in short.
pub(super) fn wait_name(what: &WaitFor) -> String {
    match what {
        WaitFor::Sleep { .. } => "sleep".into(),
        WaitFor::Event { event_name, .. } => format!("event {event_name}"),
        WaitFor::Task { task, .. } => format!("task {task}"),
        WaitFor::Job { job, .. } => format!("job {job}"),
        WaitFor::Unknown => "wait".into(),
    }
}

/// What a wait waits for: until when, and for a match with which criteria.
fn awaited(what: &WaitFor, now: Millis) -> Option<String> {
    let until = what.due().map(|due| relative_time("until", due, now));
    let matching = match what {
        WaitFor::Event { match_criteria: Value::Object(fields), .. } if fields.is_empty() => None,
        WaitFor::Event { match_criteria, .. } => Some(format!("matching {match_criteria}")),
        WaitFor::Sleep { .. } | WaitFor::Task { .. } | WaitFor::Job { .. } | WaitFor::Unknown => None,
    };
    let parts: Vec<String> = until.into_iter().chain(matching).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `until 2026-01-03T15:22:19.640Z (in 3m 12s)`
fn relative_time(word: &str, at: Millis, now: Millis) -> String {
    let far = match at.get().checked_sub(now.get()) {
        Some(ahead) => format!("in {}", times::in_words(ahead)),
        None => format!("{} ago", times::in_words(now.get() - at.get())),
    };
    format!("{word} {} ({far})", at.to_rfc3339())
}

/// `busy: the shop is closed`
pub(super) fn error_of(error: Option<&str>, code: Option<&str>) -> Option<String> {
    let parts: Vec<&str> = code.into_iter().chain(error).filter(|text| !text.is_empty()).collect();
    match (code, error) {
        // Some errors begin with their code already.
        (Some(code), Some(error)) if error.starts_with(code) => Some(error.to_owned()),
        _ => (!parts.is_empty()).then(|| parts.join(": ")),
    }
}
