//! Filters: expressions of the Common Expression Language (CEL) over `event`, the envelope as JSON, such as
//! `event.properties.amount > 100 && event.entityType == "ITEM"`.
//!
//! A filter is compiled once. Its evaluation is true, false or an error; it never panics, overflows the stack or takes long,
//! whatever a tenant writes. An event without a field that the result depends on does not pass.

mod analysis;
mod type_check;

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, ParseErrors, Value as CelValue,
    common::{
        types::{
            CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt, STRING_TYPE,
        },
        value::Val,
    },
    parser::{Expression, PrattParser},
};
use serde_json::Value;

use crate::{envelope, position, regex_cache};
use analysis::{Analysis, analyze};
use type_check::TypeError;

/// The longest expression, in bytes.
pub const FILTER_MAX: usize = 4096;
/// How many values nested loops may visit or copy, at worst, for one event.
const COST_MAX: f64 = 1e7;

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    let texts = || vec![STRING_TYPE, STRING_TYPE];
    // This fails only if the library has such an overload itself; then the library's is used.
    let _ = environment.add_overload("matches", "matches", texts(), regex_cache::matches);
    let _ = environment.add_member_overload(
        "matches",
        "matches_string",
        STRING_TYPE,
        vec![STRING_TYPE],
        regex_cache::matches,
    );
    Arc::new(environment)
});

/// A compiled filter.
#[derive(Debug)]
pub struct Filter {
    expression: Expression,
    analysis: Analysis,
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
        let analysis = analyze(&expression).map_err(|error| match error.word {
            Some(word) => at_place(text, position::of_word(text, &word), &error.reason),
            None => error.reason,
        })?;
        Ok(Self { expression, analysis })
    }

    /// Checks `text` as [`compile`](Self::compile) does, and refuses it also if it can be true for no event. Stored filters are
    /// compiled without this check: an earlier version did not have it.
    pub fn check(text: &str) -> Result<(), String> {
        let filter = Self::compile(text)?;
        type_check::check(&filter.expression).map_err(|error| match error {
            TypeError::UnknownField(name) => {
                at_place(text, position::of_field(text, "event", &name), &envelope::unknown_field(&name))
            }
            TypeError::NotBoolean { found, word } => {
                let at =
                    word.map_or_else(|| position::of_beginning(text), |word| position::of_word(text, &word));
                let reason = format!("true or false is needed here, and this is {}", found.in_words());
                at_place(text, at, &reason)
            }
        })
    }

    /// Whether `event`, an envelope as JSON, passes; the error says why the filter cannot be evaluated.
    pub fn passes(&self, event: &Value) -> Result<bool, String> {
        self.evaluate(&Activation::new(event)).map(|outcome| outcome == FilterOutcome::Passes)
    }

    pub(crate) fn evaluate(&self, activation: &Activation<'_>) -> Result<FilterOutcome, String> {
        if self.analysis.cost(activation.json) > COST_MAX {
            return Err("goes through lists within lists that are too long in this event".into());
        }
        outcome_of(|| CelValue::resolve(&self.expression, &activation.context))
    }
}

/// The outcome of an evaluation. A panic is an error for this event only.
fn outcome_of(evaluate: impl FnOnce() -> Result<CelValue, ExecutionError>) -> Result<FilterOutcome, String> {
    match catch_unwind(AssertUnwindSafe(evaluate)) {
        Ok(Ok(CelValue::Bool(true))) => Ok(FilterOutcome::Passes),
        Ok(Ok(CelValue::Bool(false))) => Ok(FilterOutcome::Fails),
        Ok(Err(ExecutionError::NoSuchKey(field))) => Ok(FilterOutcome::MissingField(field.to_string())),
        Ok(Ok(other)) => Err(format!("is neither true nor false but {}", kind(&other))),
        Ok(Err(error)) => Err(in_words(&error)),
        Err(_) => Err("cannot be evaluated for this event".into()),
    }
}

/// The outcome of a filter for an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FilterOutcome {
    Passes,
    Fails,
    /// The event does not have this field, and the result depends on it.
    MissingField(String),
}

/// The variables of an evaluation: the event. Any number of filters can use one.
pub(crate) struct Activation<'v> {
    json: &'v Value,
    context: Context<'v, 'v>,
}

impl<'v> Activation<'v> {
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
    let (line, column) = position::line_and_column(text, at);
    format!("at line {line}, column {column}: {reason}{}", position::caret(text, at))
}

fn first_error(text: &str, errors: &ParseErrors) -> String {
    let Some(error) = errors.errors.first() else { return "cannot be read".into() };
    let (Ok(line @ 1..), Ok(column @ 1..)) = (usize::try_from(error.pos.0), usize::try_from(error.pos.1))
    else {
        return error.msg.clone();
    };
    // The parser counts columns in bytes.
    let before: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let at = position::chars_before(text, before + column - 1);
    // The parser lists every token that it expects: too many to show.
    let reason = error.msg.split(" expecting {").next().unwrap_or_default();
    let reason = reason.trim_start_matches("Syntax error: ").replace("'<EOF>'", "the end");
    at_place(text, at, &reason)
}

/// The error in words, without values: an event may be large and private.
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

fn kind(value: &CelValue) -> &'static str {
    match value {
        CelValue::List(_) => "a list",
        CelValue::Map(_) => "a map",
        CelValue::Int(_) | CelValue::UInt(_) | CelValue::Float(_) => "a number",
        CelValue::String(_) => "a text",
        CelValue::Bytes(_) => "bytes",
        CelValue::Bool(_) => "a boolean",
        CelValue::Null => "null",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests;
