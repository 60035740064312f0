//! What a bench found, for people as a table and for scripts as JSON lines.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::conditions::Conditions;

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// Less than this.
    Under(f64),
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
    /// This.
    Exactly(f64),
    /// Told for comparison.
    None,
}

impl Goal {
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Self::Under(bound) => Some(value < bound),
            Self::AtMost(bound) => Some(value <= bound),
            Self::AtLeast(bound) => Some(value >= bound),
            Self::Exactly(expected) => Some(value == expected),
            Self::None => None,
        }
    }

    fn verdict(self, value: f64) -> &'static str {
        match self.is_met(value) {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Under(bound) => write!(f, "< {bound}"),
            Self::AtMost(bound) => write!(f, "≤ {bound}"),
            Self::AtLeast(bound) => write!(f, "≥ {bound}"),
            Self::Exactly(expected) => write!(f, "{expected}"),
            Self::None => Ok(()),
        }
    }
}

/// The rows of one bench, under its headings, with a goal and a verdict at the end of each.
#[derive(Debug)]
pub(crate) struct Report {
    headings: Vec<&'static str>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    cells: Vec<Value>,
    goal: Goal,
    judged: f64,
}

impl Report {
    /// A report of single figures.
    pub(crate) fn of_figures() -> Self {
        Self::with_headings(&["figure", "value", "unit"])
    }

    /// A report of rows with these headings; goal and verdict are added.
    pub(crate) fn with_headings(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a figure.
    pub(crate) fn figure(&mut self, name: &str, value: f64, unit: &str, goal: Goal) {
        self.row(vec![json!(name), number(value), json!(unit)], value, goal);
    }

    /// Adds a row of which `judged` is held against the goal.
    pub(crate) fn row(&mut self, cells: Vec<Value>, judged: f64, goal: Goal) {
        self.rows.push(Row { cells, goal, judged });
    }

    /// One object per row.
    pub(crate) fn json_lines(&self, bench: &str, conditions: &Conditions) -> Vec<Value> {
        let line = |row: &Row| {
            let mut fields = Map::from_iter([("bench".to_owned(), json!(bench))]);
            fields.extend(self.headings.iter().map(|name| (*name).to_owned()).zip(row.cells.clone()));
            fields.insert("goal".to_owned(), json!(row.goal.to_string()));
            fields.insert("met".to_owned(), json!(row.goal.is_met(row.judged)));
            fields.insert("conditions".to_owned(), json!(conditions));
            Value::Object(fields)
        };
        self.rows.iter().map(line).collect()
    }
}

/// A number with as many digits as such measurements deserve.
pub(crate) fn number(value: f64) -> Value {
    let decimals = match value.abs() {
        value if value >= 100.0 || value.fract() == 0.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 0.1 => 2,
        _ => 3,
    };
    let factor = 10_f64.powi(decimals);
    json!((value * factor).round() / factor)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(self.headings.iter().chain(&["goal", "verdict"]).map(|name| name.to_uppercase()));
        for row in &self.rows {
            let goal = [row.goal.to_string(), row.goal.verdict(row.judged).to_owned()];
            table.add_row(row.cells.iter().map(shown).chain(goal));
        }
        for (position, cell) in
            self.rows.first().map(|row| row.cells.as_slice()).unwrap_or_default().iter().enumerate()
        {
            if let (true, Some(column)) = (cell.is_number(), table.column_mut(position)) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
}

fn shown(cell: &Value) -> String {
    match cell {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(value) if value.fract() == 0.0 => format!("{value:.0}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_met_at_the_bound_unless_it_says_under() {
        let cases = [
            (Goal::Under(3.0), 3.0, Some(false)),
            (Goal::AtMost(3.0), 3.0, Some(true)),
            (Goal::AtLeast(0.85), 0.84, Some(false)),
            (Goal::Exactly(8.0), 8.0, Some(true)),
            (Goal::None, 1.0, None),
        ];
        for (goal, value, met) in cases {
            assert_eq!(goal.is_met(value), met, "{goal:?}");
        }
    }

    #[test]
    fn numbers_keep_the_digits_that_mean_something() {
        for (value, text) in
            [(2431.7, "2432"), (12.345, "12.3"), (1.2345, "1.23"), (0.01234, "0.012"), (8.0, "8")]
        {
            assert_eq!(shown(&number(value)), text);
        }
    }
}
