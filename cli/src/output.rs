//! Output on the terminal: tables for people, JSON lines for scripts.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::HumanCount;
use ledgerline_event::{Event, overflow};
use serde::Serialize;

/// Prints tables for people or JSON lines for scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the output is JSON lines.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// One JSON object on a line of its own.
    pub(crate) fn json_line(self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string(value)?)
    }

    /// A line on standard output.
    pub(crate) fn line(self, text: &str) -> anyhow::Result<()> {
        Ok(writeln!(io::stdout().lock(), "{text}")?)
    }

    /// A line for people that is not data, on standard error.
    pub(crate) fn note(self, text: &str) -> anyhow::Result<()> {
        Ok(writeln!(io::stderr().lock(), "{text}")?)
    }

    /// Rows under headings, aligned; without rows it prints `none` on standard error.
    pub(crate) fn table(self, headings: &[&str], rows: Vec<Vec<String>>, none: &str) -> anyhow::Result<()> {
        if rows.is_empty() {
            // Not data: a script that counts lines must count none.
            return Ok(writeln!(io::stderr().lock(), "{none}")?);
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(headings.iter().map(|text| text.to_uppercase()));
        if io::stdout().is_terminal() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        table.add_rows(rows);
        table.lines().try_for_each(|line| self.line(line.trim()))
    }

    /// Names and values, one pair a line.
    pub(crate) fn fields(self, fields: &[(&str, String)]) -> anyhow::Result<()> {
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        fields.iter().try_for_each(|(name, value)| self.line(&format!("{name:<width$}  {value}")))
    }
}

/// Reports an error in the command line that the parser cannot detect, in the parser's form.
pub(crate) fn wrong_usage(problem: &str) -> ExitCode {
    eprintln!("error: {problem}");
    ExitCode::from(2)
}

/// `1 event`, `2,007 events`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", HumanCount(count), if count == 1 { "" } else { "s" })
}

/// The beginning of an event's properties, on one line. If they are missing from S3, the whole reason with the key.
pub(crate) fn properties(event: &Event, chars: usize) -> String {
    match overflow::missing(&event.properties) {
        Some(missing) => format!("missing: {missing}"),
        None => shortened(&serde_json::to_string(&event.properties).unwrap_or_default(), chars),
    }
}

/// The beginning of a long text, on one line.
pub(crate) fn on_one_line(text: &str, chars: usize) -> String {
    shortened(&text.split_whitespace().collect::<Vec<_>>().join(" "), chars)
}

/// The beginning of a long text.
pub(crate) fn shortened(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
