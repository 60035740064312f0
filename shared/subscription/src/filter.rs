//! A filter is an expression of the Common Expression Language over `event`, the envelope as
//! JSON: `event.properties.amount > 100 && event.entityType == "ITEM"`. It is compiled once.
//! It says yes or no, or why it cannot; it never panics, overflows the stack or goes on for
//! long, whatever a tenant writes. An event that lacks a field which decides does not pass.

mod fit;
mod survey;

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, ParseErrors, Value as Outcome,
    common::{
        types::{
            CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt, STRING_TYPE,
        },
        value::Val,
    },
    parser::{Expression, PrattParser},
};
use serde_json::Value;

use crate::{envelope, pattern, place};
use fit::Misfit;
use survey::{Survey, survey};

/// The longest expression, in bytes.
pub const FILTER_MAX: usize = 4096;
/// How many values nested loops may visit or copy, at worst, for one event.
const COST_MAX: f64 = 1e7;

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    let texts = || vec![STRING_TYPE, STRING_TYPE];
    // Refused only where the library has its own, and then that one serves.
    let _ = environment.add_overload("matches", "matches", texts(), pattern::matches);
    let _ = environment.add_member_overload(
        "matches",
        "matches_string",
        STRING_TYPE,
        vec![STRING_TYPE],
        pattern::matches,
    );
    Arc::new(environment)
});

/// A compiled filter.
#[derive(Debug)]
pub struct Filter {
    expression: Expression,
    survey: Survey,
}

impl Filter {
    /// Reads `text`; the error says what is wrong with it and where.
    pub fn compile(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("is empty; leave it out to let every event pass".into());
        }
        if text.len() > FILTER_MAX {
            return Err(format!("has {} bytes; at most {FILTER_MAX} are allowed", text.len()));
        }
        let parser = PrattParser::new().enable_optional_syntax(true);
        let parsed = catch_unwind(AssertUnwindSafe(|| parser.parse(text)));
        let parsed = parsed.map_err(|_| "cannot be read".to_owned())?;
        let expression = parsed.map_err(|errors| first_error(text, &errors))?;
        let survey = survey(&expression).map_err(|fault| match fault.word {
            Some(word) => at_place(text, place::of_word(text, &word), &fault.reason),
            None => fault.reason,
        })?;
        Ok(Self { expression, survey })
    }

    /// Reads `text` as [`compile`](Self::compile) does, and refuses it also if it can work on no event. Filters that were
    /// stored before this was asked are compiled without it.
    pub fn check(text: &str) -> Result<(), String> {
        let filter = Self::compile(text)?;
        fit::check(&filter.expression).map_err(|misfit| match misfit {
            Misfit::NoField(name) => {
                at_place(text, place::of_field(text, "event", &name), &envelope::no_field(&name))
            }
            Misfit::NoBoolean { kind, word } => {
                let at = word.map_or_else(|| place::of_beginning(text), |word| place::of_word(text, &word));
                let reason = format!("true or false is needed here, and this is {}", kind.in_words());
                at_place(text, at, &reason)
            }
        })
    }

    /// Whether `event`, an envelope as JSON, passes; the error says why that cannot be said.
    pub fn passes(&self, event: &Value) -> Result<bool, String> {
        self.judge(&Scope::new(event)).map(|judged| judged == Judged::Passes)
    }

    pub(crate) fn judge(&self, scope: &Scope<'_>) -> Result<Judged, String> {
        if self.survey.cost(scope.json) > COST_MAX {
            return Err("goes through lists within lists that are too long in this event".into());
        }
        judged(|| Outcome::resolve(&self.expression, &scope.context))
    }
}

/// What an evaluation says. One that panics is a failure of the event that it was about, and of nothing else.
fn judged(evaluate: impl FnOnce() -> Result<Outcome, ExecutionError>) -> Result<Judged, String> {
    match catch_unwind(AssertUnwindSafe(evaluate)) {
        Ok(Ok(Outcome::Bool(true))) => Ok(Judged::Passes),
        Ok(Ok(Outcome::Bool(false))) => Ok(Judged::Fails),
        Ok(Err(ExecutionError::NoSuchKey(field))) => Ok(Judged::Lacks(field.to_string())),
        Ok(Ok(other)) => Err(format!("is neither true nor false but {}", kind(&other))),
        Ok(Err(error)) => Err(in_words(&error)),
        Err(_) => Err("cannot be evaluated for this event".into()),
    }
}

/// What a filter says about an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Passes,
    Fails,
    /// The event lacks this field, and the filter cannot be decided without it.
    Lacks(String),
}

/// An event as filters see it; serves any number of them.
pub(crate) struct Scope<'v> {
    json: &'v Value,
    context: Context<'v, 'v>,
}

impl<'v> Scope<'v> {
    pub(crate) fn new(json: &'v Value) -> Self {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable_as_val("event", value(json));
        Self { json, context }
    }
}

/// JSON as a CEL value that borrows its texts.
fn value(json: &Value) -> Box<dyn Val + '_> {
    match json {
        Value::Null => Box::new(CelNull),
        Value::Bool(yes) => Box::new(CelBool::from(*yes)),
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Box::new(CelInt::from(whole)),
            (None, Some(whole)) => Box::new(CelUInt::from(whole)),
            (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::Array(items) => Box::new(CelList::from(items.iter().map(value).collect::<Vec<_>>())),
        Value::Object(members) => {
            let members =
                members.iter().map(|(name, member)| (CelMapKey::from(name.as_str()), value(member)));
            Box::new(CelMap::from(members.collect::<HashMap<_, _>>()))
        }
    }
}

fn at_place(text: &str, at: usize, reason: &str) -> String {
    let (line, column) = place::line_and_column(text, at);
    format!("at line {line}, column {column}: {reason}{}", place::caret(text, at))
}

fn first_error(text: &str, errors: &ParseErrors) -> String {
    let Some(error) = errors.errors.first() else { return "cannot be read".into() };
    let (Ok(line @ 1..), Ok(column @ 1..)) = (usize::try_from(error.pos.0), usize::try_from(error.pos.1))
    else {
        return error.msg.clone();
    };
    // The parser counts columns in bytes.
    let before: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let at = place::chars_before(text, before + column - 1);
    // What else could stand there is a list of every token of the language.
    let reason = error.msg.split(" expecting {").next().unwrap_or_default();
    let reason = reason.trim_start_matches("Syntax error: ").replace("'<EOF>'", "the end");
    at_place(text, at, &reason)
}

/// What went wrong, without the values: an event may be large, and private.
fn in_words(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchOverload(error) => {
            let types = error.argument_types().join(" and ");
            format!("`{}` cannot be applied to {types}", error.function().trim_matches('_').replace("_", " "))
        }
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            let hint = if kind(left) == kind(right) { "; `double(…)` makes both alike" } else { "" };
            format!("{} and {} cannot be combined by `{operator}`{hint}", kind(left), kind(right))
        }
        ExecutionError::UnexpectedType { got, want } => format!("{got} stands where {want} is expected"),
        ExecutionError::FunctionError { function, message } => format!("`{function}`: {message}"),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "divides by zero".into(),
        ExecutionError::Overflow(..) => "a number becomes too large".into(),
        ExecutionError::IndexOutOfBounds(_) => "a list has no such index".into(),
        ExecutionError::UndeclaredReference(name) => format!("`{name}` is not known"),
        ExecutionError::DuplicateKey(_) => "a map has the same key twice".into(),
        ExecutionError::UnsupportedKeyType(_) => "a map has a key that is no text, number or boolean".into(),
        _ => "values of these types cannot be taken together".into(),
    }
}

fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::List(_) => "a list",
        Outcome::Map(_) => "a map",
        Outcome::Int(_) | Outcome::UInt(_) | Outcome::Float(_) => "a number",
        Outcome::String(_) => "a text",
        Outcome::Bytes(_) => "bytes",
        Outcome::Bool(_) => "a boolean",
        Outcome::Null => "null",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests;
