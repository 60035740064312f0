//! Finds what a parsed filter refers to and how it loops. An unknown name is therefore an error when
//! the filter is written, not when the first event comes, and the rounds of nested loops can be bounded
//! before they begin.

use cel::{
    common::ast::{EntryExpr, Expr, LiteralValue, operators},
    parser::Expression,
};
use serde_json::Value;

use crate::{path::size, pattern};

/// How deep an expression may be: evaluating it recurses.
const DEPTH: usize = 64;
/// How deep loops (`all`, `exists`, `map`, …) may nest.
const LOOPS: usize = 3;

/// Names that are not variables: types, and the beginning of `optional.of` and its like.
const NAMES: [&str; 12] = [
    "event",
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "optional",
];

/// What can be called, besides operators and the macros, which are gone after parsing.
const FUNCTIONS: [&str; 20] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "type",
    "dyn",
    "of",
    "none",
    "ofNonZeroValue",
    "hasValue",
    "value",
    "orValue",
    "or",
];

/// How a filter loops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// How deep loops nest; a search in a list (`in`) is one too.
    levels: usize,
    /// Some loop collects parts of the event that are not its own round's.
    collects: bool,
    /// Lists can be put together from parts of the event as often as `+` is written.
    additions: usize,
    /// The longest list or map that is written out.
    longest: usize,
}

impl Survey {
    /// How many values are visited or copied for `event`, at most, beyond going through it once.
    pub(super) fn cost(&self, event: &Value) -> f64 {
        let power = self.levels.saturating_sub(1) + usize::from(self.collects);
        if power == 0 {
            return 0.0;
        }
        let longest = longest(event).max(self.longest) * (1 + self.additions);
        size(event) * (longest as f64).powi(i32::try_from(power).unwrap_or(i32::MAX))
    }
}

/// What is wrong with an expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The word it is about, if it is about one.
    pub(super) word: Option<String>,
    pub(super) reason: String,
}

/// Looks through `expression`.
pub(super) fn survey(expression: &Expression) -> Result<Survey, Fault> {
    let mut walk = Walk { survey: Survey::default(), bound: Vec::new(), loops: 0, depth: 0 };
    walk.expression(expression)?;
    Ok(walk.survey)
}

struct Walk<'a> {
    survey: Survey,
    /// The variables of the loops around.
    bound: Vec<&'a str>,
    loops: usize,
    depth: usize,
}

impl<'a> Walk<'a> {
    fn expression(&mut self, expression: &'a Expression) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > DEPTH {
            return wrong(None, format!("nests more than {DEPTH} operators"));
        }
        let looked = match &expression.expr {
            Expr::Unspecified => wrong(None, "is incomplete".into()),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.name(name.trim_start_matches('.')),
            Expr::Select(select) => self.expression(&select.operand),
            Expr::Call(call) => {
                self.function(&call.func_name, call.args.last())?;
                let listed = matches!(call.args.last(), Some(last) if matches!(last.expr, Expr::List(_)));
                if call.func_name == operators::IN && self.loops > 0 && !listed {
                    self.survey.levels = self.survey.levels.max(self.loops + 1);
                }
                call.target.iter().try_for_each(|target| self.expression(target))?;
                call.args.iter().try_for_each(|argument| self.expression(argument))
            }
            Expr::List(list) => {
                self.survey.longest = self.survey.longest.max(list.elements.len());
                list.elements.iter().try_for_each(|element| self.expression(element))
            }
            Expr::Map(map) => {
                self.survey.longest = self.survey.longest.max(map.entries.len());
                map.entries.iter().try_for_each(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        self.expression(&entry.key)?;
                        self.expression(&entry.value)
                    }
                    EntryExpr::StructField(field) => self.expression(&field.value),
                })
            }
            Expr::Struct(message) => {
                wrong(Some(&message.type_name), format!("there is no type `{}`", message.type_name))
            }
            Expr::Comprehension(comprehension) => {
                self.expression(&comprehension.iter_range)?;
                self.expression(&comprehension.accu_init)?;
                if self.loops == LOOPS {
                    return wrong(None, format!("nests more than {LOOPS} loops"));
                }
                let outside = self.bound.len();
                self.loops += 1;
                self.survey.levels = self.survey.levels.max(self.loops);
                self.survey.collects |= appended(&comprehension.loop_step).is_some_and(mentions_event);
                self.bound.extend([comprehension.iter_var.as_str(), comprehension.accu_var.as_str()]);
                self.bound.extend(comprehension.iter_var2.as_deref());
                self.expression(&comprehension.loop_cond)?;
                self.expression(&comprehension.loop_step)?;
                self.expression(&comprehension.result)?;
                self.loops -= 1;
                self.bound.truncate(outside);
                Ok(())
            }
        };
        self.depth -= 1;
        looked
    }

    fn name(&self, name: &str) -> Result<(), Fault> {
        if NAMES.contains(&name) || self.bound.contains(&name) {
            return Ok(());
        }
        wrong(Some(name), format!("`{name}` is not known; the fields of the event begin with `event.`"))
    }

    fn function(&mut self, name: &str, last_argument: Option<&Expression>) -> Result<(), Fault> {
        self.survey.additions += usize::from(name == operators::ADD);
        let is_operator = !name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !is_operator && !FUNCTIONS.contains(&name) {
            return wrong(Some(name), format!("there is no function `{name}` with such arguments"));
        }
        match last_argument.map(|argument| &argument.expr) {
            // A pattern that is written out can be checked now.
            Some(Expr::Literal(LiteralValue::String(text))) if name == "matches" => {
                pattern::compile(text).map(drop).or_else(|reason| wrong(Some(name), reason))
            }
            _ => Ok(()),
        }
    }
}

/// What a step of `map` adds to its result.
fn appended(step: &Expression) -> Option<&Expression> {
    let Expr::Call(call) = &step.expr else { return None };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::ADD, [_, added]) => match &added.expr {
            Expr::List(list) => list.elements.first(),
            _ => None,
        },
        (operators::CONDITIONAL, [_, then, _]) => appended(then),
        _ => None,
    }
}

fn mentions_event(expression: &Expression) -> bool {
    expression.references().has_variable("event")
}

fn wrong(word: Option<&str>, reason: String) -> Result<(), Fault> {
    Err(Fault { word: word.map(str::to_owned), reason })
}

/// The length of the longest list or object in `json`.
fn longest(json: &Value) -> usize {
    match json {
        Value::Array(items) => items.iter().map(longest).max().unwrap_or(0).max(items.len()),
        Value::Object(members) => members.values().map(longest).max().unwrap_or(0).max(members.len()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}
