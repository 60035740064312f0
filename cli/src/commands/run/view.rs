//! Draws a run: its fields, and a time line of its steps, hooks and waits. Pure: the same run at the same moment gives the same
//! lines.

use ledgerline_event::{Millis, RunState, RunView};

use super::{
    bar::Scale,
    glyphs::Paper,
    rows::{Row, error_of, look, rows},
};
use crate::{
    commands::canvas::{Ink, Line, columns, padded, tidy},
    times,
};

/// The widest column of names, and the longest and shortest bar.
const WIDEST_NAME: usize = 60;
const LONGEST_BAR: usize = 100;
const SHORTEST_BAR: usize = 8;
const STATE: usize = "conflicted".len();
const TRIES: usize = "TRIES".len();
const TOOK: usize = "23h 59m".len();
/// The width of a row without its name and its bar.
const FIXED: usize = 2 + 2 + STATE + 2 + TRIES + 2 + TOOK + 2 + 2;
/// Lines that an error may take.
const ERROR_LINES: usize = 12;

/// What the record of a run has in addition to its log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordFields<'a> {
    /// An external runner executes it.
    pub(super) external: bool,
    /// Why the last execution could not go on.
    pub(super) last_error: Option<&'a str>,
}

/// All lines.
pub(super) fn draw(view: &RunView<'_>, record: RecordFields<'_>, now: Millis, paper: &Paper) -> Vec<String> {
    let mut lines = header(view, record, now, paper);
    // The last line of a terminal stays free for the cursor; three more are between the header and the rows.
    let height = paper.canvas.height.saturating_sub(1).max(1);
    let room = height.saturating_sub(lines.len() + 3);
    let rows = rows(view, now);
    if !rows.is_empty() {
        lines.push(Line::default());
        lines.extend(timeline(rows, view, now, paper, room));
    }
    lines.iter().take(height).map(|line| paper.canvas.paint(line)).collect()
}

/// How long it took, or has taken so far.
pub(super) fn elapsed(view: &RunView<'_>, now: Millis) -> String {
    let until = view.run.ended_at.unwrap_or(now);
    times::in_words(until.get().saturating_sub(view.run.created_at.get()))
}

fn header(view: &RunView<'_>, record: RecordFields<'_>, now: Millis, paper: &Paper) -> Vec<Line> {
    let run = &view.run;
    let version = run.workflow_version.as_ref().map(|version| format!(", version {version}"));
    let elsewhere = if record.external { ", executed elsewhere" } else { "" };
    let took = match run.state {
        RunState::Pending => format!("no runner has begun it for {}", elapsed(view, now)),
        RunState::Running => format!("{} so far", elapsed(view, now)),
        RunState::Completed | RunState::Failed | RunState::Cancelled => elapsed(view, now),
    };
    let fields = [
        ("workflow", Some(format!("{}{}{elsewhere}", run.workflow_name, version.unwrap_or_default()))),
        ("created", Some(run.created_at.to_rfc3339())),
        ("started", run.started_at.map(Millis::to_rfc3339)),
        ("ended", run.ended_at.map(Millis::to_rfc3339)),
        ("took", Some(took)),
        ("input", Some(run.input.to_string())),
        ("output", run.output.as_ref().map(ToString::to_string)),
        ("reason", run.reason.clone()),
    ];
    let title = Line::default()
        .with(Ink::Bold, run.run_id.to_string())
        .with(Ink::Plain, "  ")
        .with(look(run.state).ink(), run.state.as_str());
    let label = |name: &str| Line::default().with(Ink::Faint, format!("{name:<8}  "));
    let room = paper.canvas.width.saturating_sub("workflow  ".len()).max(1);
    let mut lines = vec![title];
    for (name, value) in fields {
        lines.extend(value.map(|value| label(name).with(Ink::Plain, paper.cut(&value, room))));
    }
    let error = error_of(run.error.as_deref(), run.error_code.as_deref());
    let trouble = record.last_error.map(str::to_owned);
    for (name, text) in [("error", error), ("trouble", trouble)] {
        let parts = wrapped(&text.unwrap_or_default(), room);
        for (position, part) in parts.into_iter().take(ERROR_LINES).enumerate() {
            lines.push(label(if position == 0 { name } else { "" }).with(Ink::Red, part));
        }
    }
    lines
}

/// A text on as many lines as it takes.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in tidy(text, usize::MAX).split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ if columns(word) <= width => lines.push(word.to_owned()),
            // A word that is wider than all there is, such as an address.
            _ => {
                let letters: Vec<char> = word.chars().collect();
                lines.extend(letters.chunks((width / 2).max(1)).map(|part| part.iter().collect::<String>()));
            }
        }
    }
    lines
}

/// The steps, hooks and waits, as many as there is room for.
fn timeline(mut rows: Vec<Row>, view: &RunView<'_>, now: Millis, paper: &Paper, room: usize) -> Vec<Line> {
    let hidden = leave_out(&mut rows, room);
    let width = paper.canvas.width.saturating_sub(FIXED);
    let widest = rows.iter().map(|row| columns(&row.name)).max().unwrap_or_default();
    let most = width.saturating_sub(SHORTEST_BAR).min(width * 3 / 5).min(WIDEST_NAME);
    let names = widest.clamp("NAME".len(), most.max("NAME".len()));
    let bar = width.saturating_sub(names).clamp(SHORTEST_BAR, LONGEST_BAR);
    let scale = Scale::new(view.run.created_at, view.run.ended_at.unwrap_or(now), bar);
    let mut lines = vec![heading(names, &scale, bar)];
    if hidden > 0 {
        let text = format!("  {hidden} that have ended are not shown");
        lines.push(Line::default().with(Ink::Faint, text));
    }
    for row in rows {
        lines.extend(row_lines(row, names, &scale, paper));
    }
    lines
}

fn heading(names: usize, scale: &Scale, bar: usize) -> Line {
    let length = times::in_words(scale.length());
    let end = padded("", (bar + 2).saturating_sub("0".len() + length.len()));
    let text = format!(
        "  {}  {:<STATE$}  {:>TRIES$}  {:>TOOK$}  0{end}{length}",
        padded("NAME", names),
        "STATE",
        "TRIES",
        "TOOK"
    );
    Line::default().with(Ink::Faint, text)
}

fn row_lines(row: Row, names: usize, scale: &Scale, paper: &Paper) -> Vec<Line> {
    let ink = row.look.ink();
    let from = row.span.work_from.unwrap_or(row.span.from);
    let took = times::in_words(row.span.until.get().saturating_sub(from.get()));
    let tries = row.tries.map(|tries| tries.to_string()).unwrap_or_default();
    let line = Line::default()
        .with(ink, row.look.symbol(&paper.glyphs))
        .with(Ink::Plain, format!(" {}  ", padded(&paper.cut(&row.name, names), names)))
        .with(ink, padded(row.state, STATE))
        .with(Ink::Plain, format!("  {tries:>TRIES$}  {took:>TOOK$}  "));
    let note = row.note.map(|note| {
        let noted = if row.look == super::glyphs::Look::Failed { Ink::Red } else { Ink::Faint };
        let room = paper.canvas.width.saturating_sub(4).max(1);
        Line::default().with(Ink::Plain, "    ").with(noted, paper.cut(&note, room))
    });
    std::iter::once(scale.draw(line, row.span, ink, &paper.glyphs)).chain(note).collect()
}

/// Leaves out the rows that ended first until the rest fits; returns how many.
fn leave_out(rows: &mut Vec<Row>, room: usize) -> usize {
    let height = |row: &Row| 1 + usize::from(row.note.is_some());
    let mut lines: usize = rows.iter().map(height).sum();
    let all = rows.len();
    if lines <= room {
        return 0;
    }
    // Rows under way are left out last.
    let mut order: Vec<usize> = (0..all).collect();
    let under_way =
        |row: &Row| matches!(row.look, super::glyphs::Look::Running | super::glyphs::Look::Waiting);
    order.sort_by_key(|position| (under_way(&rows[*position]), *position));
    let mut kept = vec![true; all];
    for position in order {
        if lines < room {
            break;
        }
        lines -= height(&rows[position]);
        kept[position] = false;
    }
    let mut kept = kept.into_iter();
    rows.retain(|_| kept.next().unwrap_or(true));
    all - rows.len()
}

#[cfg(test)]
mod tests;
