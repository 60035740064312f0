//! Analysis of a parsed filter: the names that it uses, and how its loops nest. So an unknown name is an error when the
//! filter is written and not at the first event, and the cost of nested loops has a bound before they begin.

use cel::{
    common::ast::{EntryExpr, Expr, LiteralValue, operators},
    parser::Expression,
};
use serde_json::Value;

use crate::{path::size, regex_cache};

/// The deepest expression: evaluation recurses.
const MAX_DEPTH: usize = 64;
/// The deepest nesting of loops (`all`, `exists`, `map`, …).
const MAX_LOOP_NESTING: usize = 3;

/// Names that are no loop variables: `event`, types, and `optional` as in `optional.of`.
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

/// The functions that a filter may call, besides operators and macros; the parser expands macros.
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

/// How the loops of a filter nest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Analysis {
    /// How deep loops nest; a search in a list (`in`) counts as a loop.
    levels: usize,
    /// A loop copies parts of the event that do not depend on its variable, once per element.
    copies_event: bool,
    /// The number of `+`: each may join two lists of the event.
    additions: usize,
    /// The longest list or map literal.
    longest: usize,
}

impl Analysis {
    /// The most values that an evaluation for `event` visits or copies, beyond one pass over the event.
    pub(super) fn cost(&self, event: &Value) -> f64 {
        let power = self.levels.saturating_sub(1) + usize::from(self.copies_event);
        if power == 0 {
            return 0.0;
        }
        let longest = longest(event).max(self.longest) * (1 + self.additions);
        size(event) * (longest as f64).powi(i32::try_from(power).unwrap_or(i32::MAX))
    }
}

/// An error in an expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilterError {
    /// The word that causes it, if there is one.
    pub(super) word: Option<String>,
    pub(super) reason: String,
}

/// Analyzes `expression`.
pub(super) fn analyze(expression: &Expression) -> Result<Analysis, FilterError> {
    let mut walk = Walk { analysis: Analysis::default(), bound: Vec::new(), loops: 0, depth: 0 };
    walk.expression(expression)?;
    Ok(walk.analysis)
}

struct Walk<'a> {
    analysis: Analysis,
    /// The variables of the enclosing loops.
    bound: Vec<&'a str>,
    loops: usize,
    depth: usize,
}

impl<'a> Walk<'a> {
    fn expression(&mut self, expression: &'a Expression) -> Result<(), FilterError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return wrong(None, format!("nests more than {MAX_DEPTH} operators"));
        }
        let result = match &expression.expr {
            Expr::Unspecified => wrong(None, "is incomplete".into()),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.name(name.trim_start_matches('.')),
            Expr::Select(select) => self.expression(&select.operand),
            Expr::Call(call) => {
                self.function(&call.func_name, call.args.last())?;
                let listed = matches!(call.args.last(), Some(last) if matches!(last.expr, Expr::List(_)));
                if call.func_name == operators::IN && self.loops > 0 && !listed {
                    self.analysis.levels = self.analysis.levels.max(self.loops + 1);
                }
                call.target.iter().try_for_each(|target| self.expression(target))?;
                call.args.iter().try_for_each(|argument| self.expression(argument))
            }
            Expr::List(list) => {
                self.analysis.longest = self.analysis.longest.max(list.elements.len());
                list.elements.iter().try_for_each(|element| self.expression(element))
            }
            Expr::Map(map) => {
                self.analysis.longest = self.analysis.longest.max(map.entries.len());
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
                if self.loops == MAX_LOOP_NESTING {
                    return wrong(None, format!("nests more than {MAX_LOOP_NESTING} loops"));
                }
                let outside = self.bound.len();
                self.loops += 1;
                self.analysis.levels = self.analysis.levels.max(self.loops);
                self.analysis.copies_event |= appended(&comprehension.loop_step).is_some_and(mentions_event);
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
        result
    }

    fn name(&self, name: &str) -> Result<(), FilterError> {
        if NAMES.contains(&name) || self.bound.contains(&name) {
            return Ok(());
        }
        wrong(Some(name), format!("`{name}` is not known; the fields of the event begin with `event.`"))
    }

    fn function(&mut self, name: &str, last_argument: Option<&Expression>) -> Result<(), FilterError> {
        self.analysis.additions += usize::from(name == operators::ADD);
        let is_operator = !name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !is_operator && !FUNCTIONS.contains(&name) {
            return wrong(Some(name), format!("there is no function `{name}` with such arguments"));
        }
        match last_argument.map(|argument| &argument.expr) {
            // A literal pattern can be checked now.
            Some(Expr::Literal(LiteralValue::String(text))) if name == "matches" => {
                regex_cache::compile(text).map(drop).or_else(|reason| wrong(Some(name), reason))
            }
            _ => Ok(()),
        }
    }
}

/// The element that a step of `map` adds to its result.
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

fn wrong(word: Option<&str>, reason: String) -> Result<(), FilterError> {
    Err(FilterError { word: word.map(str::to_owned), reason })
}

/// The length of the longest list or object in `json`.
fn longest(json: &Value) -> usize {
    match json {
        Value::Array(items) => items.iter().map(longest).max().unwrap_or(0).max(items.len()),
        Value::Object(members) => members.values().map(longest).max().unwrap_or(0).max(members.len()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}
