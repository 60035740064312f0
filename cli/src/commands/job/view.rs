//! Draws a job: its DAG, the state of each task, and the progress. Pure: the same job at the same moment gives the same lines.

use std::collections::HashMap;

use ledgerline_event::{JobState, Millis, TaskEvent, TaskSummary, catalogue::TaskState};
use ledgerline_jobs::{JobDetails, JobTaskDetails};

use super::tree::{Row, tree};
use crate::{
    commands::canvas::{Canvas, Ink, Line, columns, padded, tidy},
    times,
};

/// The widest columns of ids (with their branches), names and notes.
const WIDEST_ID: usize = 48;
const WIDEST_NAME: usize = 32;
const WIDEST_NOTE: usize = 100;
/// How many parents a note names.
const MAX_NAMED_PARENTS: usize = 4;
/// After a job or a task has waited this long, the view hints that no dispatcher or no worker may be running.
const HINT_AFTER_MS: u64 = 10_000;

/// All lines.
pub(super) fn draw(details: &JobDetails, now: Millis, canvas: &Canvas) -> Vec<String> {
    let hint = hint(details, now);
    let mut lines = vec![title(details), progress(details, now, bar_length(canvas.width)), Line::default()];
    // The last line of a terminal stays free for the cursor.
    let room = canvas.height.saturating_sub(lines.len() + usize::from(hint.is_some()) + 1);
    lines.extend(task_lines(details, now, room));
    if let Some(hint) = hint {
        lines.push(Line::default().with(Ink::Yellow, hint));
    }
    lines.iter().map(|line| canvas.paint(line)).collect()
}

/// How a task changed, on one line.
pub(super) fn change_line(task: &JobTaskDetails, details: &JobDetails, now: Millis) -> String {
    let states = states(details);
    let at = task.summary.as_ref().map_or(now, |summary| summary.last_event_at).to_rfc3339();
    let widest = details.tasks.iter().map(|task| columns(&task.task_id)).max().unwrap_or_default();
    let id = padded(&task.task_id, widest.min(WIDEST_ID));
    let (symbol, ..) = symbol_of(task.state);
    let rest = [time_text(task, now), note(task, &states)];
    let rest: Vec<&str> = rest.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    let state = padded(state_name(task.state), "processing".len());
    format!("{at}  {symbol} {id}  {state}  {}", rest.join("  ")).trim_end().to_owned()
}

/// What to check if nothing happens.
pub(super) fn hint(details: &JobDetails, now: Millis) -> Option<String> {
    let since = |at: Millis| now.get().saturating_sub(at.get());
    let job = &details.job.job;
    if details.tasks.is_empty() && since(job.created_at) > HINT_AFTER_MS {
        return Some("The dispatcher has not taken it up yet: `doctor` says whether all is well.".into());
    }
    let in_state = |state| details.tasks.iter().filter(move |task| task.state == Some(state));
    let waits = |task: &JobTaskDetails| {
        task.summary.as_ref().is_some_and(|task| since(task.entered_at) > HINT_AFTER_MS)
    };
    let alone = in_state(TaskState::Processing).next().is_none() && in_state(TaskState::Pending).any(waits);
    alone.then(|| "No worker takes it: start one with `worker`.".into())
}

/// How many tasks are completed, under way, and failed.
fn counts(details: &JobDetails) -> (usize, usize, usize) {
    let count = |state| details.tasks.iter().filter(|task| task.state == Some(state)).count();
    (count(TaskState::Completed), count(TaskState::Processing), count(TaskState::Failed))
}

/// How long it took, or has taken so far.
pub(super) fn elapsed(details: &JobDetails, now: Millis) -> String {
    let job = &details.job.job;
    let ends = || details.tasks.iter().filter_map(|task| task.summary.as_ref()?.ended_at).max();
    let until = match details.job.state {
        JobState::Completed => job.completed_at.unwrap_or(now),
        JobState::Failed => ends().unwrap_or(now),
        JobState::Running | JobState::Failing => now,
    };
    times::in_words(until.get().saturating_sub(job.created_at.get()))
}

fn title(details: &JobDetails) -> Line {
    let (state, ink) = match details.job.state {
        JobState::Running => ("running", Ink::Cyan),
        JobState::Failing => ("failing", Ink::Red),
        JobState::Failed => ("failed", Ink::Red),
        JobState::Completed => ("completed", Ink::Green),
    };
    let job = &details.job.job;
    let line =
        Line::default().with(Ink::Bold, job.job_id.to_string()).with(Ink::Plain, "  ").with(ink, state);
    match job.generation {
        ..=1 => line,
        2 => line.with(Ink::Faint, "  resumed once"),
        generation => line.with(Ink::Faint, format!("  resumed {} times", generation - 1)),
    }
}

/// How long the bar is in a terminal of this width.
fn bar_length(width: usize) -> usize {
    (width / 4).clamp(10, 30)
}

fn progress(details: &JobDetails, now: Millis, bar: usize) -> Line {
    let (done, running, failed) = counts(details);
    let total = usize::try_from(details.job.job.total).unwrap_or(usize::MAX).max(details.tasks.len());
    let share = |count: usize| (count * bar).checked_div(total).unwrap_or(0);
    let (green, red) = (share(done), share(done + failed) - share(done));
    let took = elapsed(details, now);
    Line::default()
        .with(Ink::Green, "━".repeat(green))
        .with(Ink::Red, "━".repeat(red))
        .with(Ink::Faint, "─".repeat(bar - green - red))
        .with(Ink::Plain, format!("  {done}/{total} done, {running} running, {failed} failed, {took}"))
}

/// The tasks, as many as there is room for.
fn task_lines(details: &JobDetails, now: Millis, room: usize) -> Vec<Line> {
    let mut rows = tree(&details.tasks);
    let hidden = leave_out(&mut rows, &details.tasks, room);
    let states = states(details);
    let cells: Vec<[String; 4]> = rows
        .iter()
        .map(|row| {
            let task = &details.tasks[row.task];
            let branches = columns(&row.branch);
            [
                tidy(&task.task_id, WIDEST_ID.saturating_sub(branches)),
                tidy(&task.name, WIDEST_NAME),
                time_text(task, now),
                note(task, &states),
            ]
        })
        .collect();
    let widest = |cell: fn(&Row, &[String; 4]) -> usize| {
        rows.iter().zip(&cells).map(|(row, cells)| cell(row, cells)).max().unwrap_or_default()
    };
    let ids = widest(|row, cells| columns(&row.branch) + columns(&cells[0]));
    let names = widest(|_, cells| columns(&cells[1]));
    // Wide enough for most, so that what follows stays in its place.
    let times = widest(|_, cells| columns(&cells[2])).max("59m 59s".len());
    let mut lines: Vec<Line> = rows
        .iter()
        .zip(cells)
        .map(|(row, [id, name, time, note])| {
            let task = &details.tasks[row.task];
            let (symbol, ink, text) = symbol_of(task.state);
            let noted = if task.state == Some(TaskState::Failed) { Ink::Red } else { Ink::Faint };
            Line::default()
                .with(Ink::Faint, row.branch.clone())
                .with(ink, symbol)
                .with(text, format!(" {}  ", padded(&id, ids.saturating_sub(columns(&row.branch)))))
                .with(text, format!("{}  ", padded(&name, names)))
                .with(ink, padded(state_name(task.state), "processing".len()))
                .with(text, format!("  {}  ", padded(&time, times)))
                .with(noted, note)
        })
        .collect();
    lines.extend(hidden.map(|hidden| Line::default().with(Ink::Faint, hidden)));
    lines
}

/// Leaves out the least important rows until the rest fits; returns a line that counts them.
fn leave_out(rows: &mut Vec<Row>, tasks: &[JobTaskDetails], room: usize) -> Option<String> {
    if rows.len() <= room {
        return None;
    }
    let matters = |row: &Row| {
        let task = &tasks[row.task];
        let rank = match task.state {
            Some(TaskState::Processing) => 0,
            Some(TaskState::Failed) => 1,
            Some(TaskState::Pending) => 2,
            None => 3,
            Some(TaskState::Completed) => 4,
        };
        let ended = task.summary.as_ref().and_then(|summary| summary.ended_at);
        (rank, std::cmp::Reverse(ended))
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| matters(&rows[*row]));
    // One line says what is missing.
    let mut kept = vec![false; rows.len()];
    order.iter().take(room.saturating_sub(1)).for_each(|row| kept[*row] = true);
    let mut left_out = [("completed", 0), ("failed", 0), ("processing", 0), ("pending", 0), ("waiting", 0)];
    for (row, _) in rows.iter().zip(&kept).filter(|(_, kept)| !**kept) {
        let name = state_name(tasks[row.task].state);
        left_out.iter_mut().filter(|(state, _)| *state == name).for_each(|(_, count)| *count += 1);
    }
    let count = kept.iter().filter(|kept| !**kept).count();
    let mut kept = kept.into_iter();
    rows.retain(|_| kept.next().unwrap_or(true));
    let left_out = left_out.iter().filter(|(_, count)| *count > 0);
    let left_out: Vec<String> = left_out.map(|(state, count)| format!("{count} {state}")).collect();
    Some(format!("… and {count} more: {}", left_out.join(", ")))
}

/// The symbol, its ink, and that of the text beside it.
const fn symbol_of(state: Option<TaskState>) -> (&'static str, Ink, Ink) {
    match state {
        Some(TaskState::Completed) => ("✓", Ink::Green, Ink::Plain),
        Some(TaskState::Failed) => ("✗", Ink::Red, Ink::Plain),
        Some(TaskState::Processing) => ("●", Ink::Cyan, Ink::Bold),
        Some(TaskState::Pending) => ("○", Ink::Yellow, Ink::Plain),
        None => ("·", Ink::Faint, Ink::Faint),
    }
}

const fn state_name(state: Option<TaskState>) -> &'static str {
    match state {
        Some(state) => state.as_str(),
        None => "waiting",
    }
}

type States<'a> = HashMap<&'a str, Option<TaskState>>;

fn states(details: &JobDetails) -> States<'_> {
    details.tasks.iter().map(|task| (task.task_id.as_str(), task.state)).collect()
}

fn time_text(task: &JobTaskDetails, now: Millis) -> String {
    task.summary.as_ref().map(|summary| times::in_words(duration(summary, now))).unwrap_or_default()
}

/// How long a task took, has run, or has waited, in milliseconds.
pub(in crate::commands) fn duration(task: &TaskSummary, now: Millis) -> u64 {
    let between = |from: Millis, to: Millis| to.get().saturating_sub(from.get());
    match task.state {
        TaskState::Pending => between(task.entered_at, now),
        TaskState::Processing => between(task.started_at.unwrap_or(task.entered_at), now),
        TaskState::Completed | TaskState::Failed => task.duration_ms.unwrap_or_else(|| {
            let (from, to) = (task.started_at.or(task.pending_at), task.ended_at);
            from.zip(to).map_or(0, |(from, to)| between(from, to))
        }),
    }
}

/// The last column: what a task waits for, its attempt, its activity, its error.
fn note(task: &JobTaskDetails, states: &States<'_>) -> String {
    let text = match &task.summary {
        None => unfinished_parents(task, states),
        Some(summary) => {
            let parents = (task.depends_on.len() > 1 && summary.state != TaskState::Failed)
                .then(|| format!("after {}", join_names(task.depends_on.iter().cloned())));
            let notes = [task_note(summary), parents];
            notes.into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
    };
    tidy(&text, WIDEST_NOTE)
}

/// The same for a task that has started.
pub(in crate::commands) fn task_note(task: &TaskSummary) -> Option<String> {
    let resumed = (task.generation > 1).then(|| format!("generation {}", task.generation));
    let attempt = task.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!("attempt {attempt}"));
    let error = || {
        let category = task.error_category.map(|category| category.as_str());
        let parts: Vec<&str> = category.into_iter().chain(task.error.as_deref()).collect();
        (!parts.is_empty()).then(|| parts.join(": "))
    };
    let own = match task.state {
        TaskState::Pending => Some("for a worker".into()),
        TaskState::Processing if task.last_event_type == TaskEvent::AttemptFailed => {
            let error = error().map(|error| format!(" after {error}")).unwrap_or_default();
            Some(format!("waits for its next attempt{error}"))
        }
        TaskState::Processing => task
            .last_activity
            .as_ref()
            .map(|activity| activity.step_name.clone().unwrap_or_else(|| activity.kind.clone())),
        TaskState::Completed => None,
        TaskState::Failed => match task.timeout_ms {
            Some(ms) => Some(format!("ran longer than {}", times::in_words(ms))),
            None => error(),
        },
    };
    let notes: Vec<String> = [resumed, attempt, own].into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join(", "))
}

fn unfinished_parents(task: &JobTaskDetails, states: &States<'_>) -> String {
    let state = |parent: &String| states.get(parent.as_str()).copied().flatten();
    let mut unfinished: Vec<&String> =
        task.depends_on.iter().filter(|parent| state(parent) != Some(TaskState::Completed)).collect();
    if unfinished.is_empty() {
        return "starts".into();
    }
    // Failed parents come first: they do not end without a resume.
    unfinished.sort_by_key(|parent| state(parent) != Some(TaskState::Failed));
    let said = unfinished.into_iter().map(|parent| match state(parent) {
        Some(TaskState::Failed) => format!("{parent} (failed)"),
        _ => parent.clone(),
    });
    format!("waits for {}", join_names(said))
}

fn join_names(mut names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED_PARENTS);
    let first: Vec<String> = names.by_ref().take(MAX_NAMED_PARENTS).collect();
    match more {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests;
