//! Event patterns: which events a rule wants.

use serde_json::{Map, Value};

/// A pattern, compiled once when its rule is put.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Vec<Field>);

#[derive(Clone, Debug)]
enum Field {
    /// The field holds an object that matches in turn.
    Nested(String, Pattern),
    /// The field's value, or one of its elements, matches one of these.
    AnyOf(String, Vec<Matcher>),
    /// One of these patterns matches.
    Or(Vec<Pattern>),
}

#[derive(Clone, Debug)]
enum Matcher {
    Equals(Value),
    EqualsIgnoreCase(String),
    Prefix(String),
    Suffix(String),
    Wildcard(String),
    AnythingBut(Vec<Matcher>),
    Exists(bool),
    Numeric(Vec<(Comparison, f64)>),
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
}

impl Pattern {
    /// Reads a pattern; the error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Self::compile(&fields),
            Ok(_) => Err("Event pattern is not an object".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn compile(fields: &Map<String, Value>) -> Result<Self, String> {
        if fields.is_empty() {
            return Err("Empty objects are not allowed".to_owned());
        }
        let field = |(name, value): (&String, &Value)| match value {
            Value::Array(alternatives) if name == "$or" => {
                let pattern = |value: &Value| match value {
                    Value::Object(fields) => Self::compile(fields),
                    _ => Err("\"$or\" must be an array of objects".to_owned()),
                };
                Ok(Field::Or(alternatives.iter().map(pattern).collect::<Result<_, _>>()?))
            }
            Value::Object(nested) => Ok(Field::Nested(name.clone(), Self::compile(nested)?)),
            Value::Array(values) if values.is_empty() => Err("Empty arrays are not allowed".to_owned()),
            Value::Array(values) => {
                Ok(Field::AnyOf(name.clone(), values.iter().map(Matcher::parse).collect::<Result<_, _>>()?))
            }
            _ => Err(format!("\"{name}\" must be an object or an array")),
        };
        fields.iter().map(field).collect::<Result<_, String>>().map(Self)
    }

    /// Whether the event is one the rule wants.
    pub(crate) fn matches(&self, event: &Value) -> bool {
        self.0.iter().all(|field| match field {
            Field::Nested(name, pattern) => match event.get(name) {
                Some(Value::Array(elements)) => elements.iter().any(|element| pattern.matches(element)),
                Some(value) => pattern.matches(value),
                None => pattern.matches(&Value::Null),
            },
            Field::AnyOf(name, matchers) => {
                let value = event.get(name);
                matchers.iter().any(|matcher| matcher.matches(value))
            }
            Field::Or(patterns) => patterns.iter().any(|pattern| pattern.matches(event)),
        })
    }
}

impl Matcher {
    fn parse(value: &Value) -> Result<Self, String> {
        let Value::Object(object) = value else {
            return match value {
                Value::Array(_) => Err("Match value must be String, number, true, false, or null".to_owned()),
                _ => Ok(Self::Equals(value.clone())),
            };
        };
        let mut members = object.iter();
        let (Some((name, argument)), None) = (members.next(), members.next()) else {
            return Err("Only one key allowed in match expression".to_owned());
        };
        let text = || argument.as_str().map(str::to_owned);
        let parsed = match name.as_str() {
            "prefix" => text().map(Self::Prefix),
            "suffix" => text().map(Self::Suffix),
            "wildcard" => text().map(Self::Wildcard),
            "equals-ignore-case" => text().map(Self::EqualsIgnoreCase),
            "exists" => argument.as_bool().map(Self::Exists),
            "numeric" => numeric(argument).map(Self::Numeric),
            "anything-but" => {
                let refused = match argument {
                    Value::Array(values) => values.iter().map(Self::parse).collect::<Result<_, _>>()?,
                    single => vec![Self::parse(single)?],
                };
                Some(Self::AnythingBut(refused))
            }
            _ => return Err(format!("Unrecognized match type {name}")),
        };
        parsed.ok_or_else(|| format!("{name} has a match value of the wrong type"))
    }

    fn matches(&self, value: Option<&Value>) -> bool {
        match (self, value) {
            (Self::Exists(wanted), value) => value.is_some() == *wanted,
            (_, None) => false,
            (_, Some(Value::Array(elements))) => elements.iter().any(|element| self.matches(Some(element))),
            (Self::Equals(wanted), Some(value)) => equal(wanted, value),
            (Self::AnythingBut(refused), Some(value)) => !refused.iter().any(|m| m.matches(Some(value))),
            (Self::Prefix(start), Some(Value::String(text))) => text.starts_with(start),
            (Self::Suffix(end), Some(Value::String(text))) => text.ends_with(end),
            (Self::Wildcard(glob), Some(Value::String(text))) => wildcard(glob, text),
            (Self::EqualsIgnoreCase(wanted), Some(Value::String(text))) => {
                wanted.to_lowercase() == text.to_lowercase()
            }
            (Self::Numeric(bounds), Some(Value::Number(number))) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                bounds.iter().all(|(comparison, bound)| comparison.holds(number, *bound))
            }
            (
                Self::Prefix(_)
                | Self::Suffix(_)
                | Self::Wildcard(_)
                | Self::EqualsIgnoreCase(_)
                | Self::Numeric(_),
                Some(_),
            ) => false,
        }
    }
}

impl Comparison {
    fn holds(self, number: f64, bound: f64) -> bool {
        match self {
            Self::Less => number < bound,
            Self::LessOrEqual => number <= bound,
            Self::Equal => number == bound,
            Self::GreaterOrEqual => number >= bound,
            Self::Greater => number > bound,
        }
    }
}

fn equal(wanted: &Value, value: &Value) -> bool {
    match (wanted, value) {
        (Value::Number(wanted), Value::Number(value)) => wanted.as_f64() == value.as_f64(),
        _ => wanted == value,
    }
}

fn numeric(argument: &Value) -> Option<Vec<(Comparison, f64)>> {
    let pairs = argument.as_array().filter(|pairs| !pairs.is_empty() && pairs.len() % 2 == 0)?;
    let pair = |pair: &[Value]| {
        let comparison = match pair[0].as_str()? {
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            "=" => Comparison::Equal,
            ">=" => Comparison::GreaterOrEqual,
            ">" => Comparison::Greater,
            _ => return None,
        };
        Some((comparison, pair[1].as_f64()?))
    };
    pairs.chunks(2).map(pair).collect()
}

/// Whether `text` fits `glob`, in which `*` stands for anything.
fn wildcard(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(pattern: &Value, event: &Value) -> bool {
        Pattern::parse(&pattern.to_string()).unwrap().matches(event)
    }

    #[test]
    fn all_fields_must_match_one_of_their_values() {
        let event = json!({"source": "a", "detail": {"kind": ["x", "y"], "n": 5, "gone": null}});
        for (pattern, expected) in [
            (json!({"source": ["b", "a"]}), true),
            (json!({"source": ["a"], "detail": {"kind": ["z"]}}), false),
            (json!({"detail": {"kind": ["y"], "n": [5.0]}}), true),
            (json!({"detail": {"gone": [null]}}), true),
            (json!({"source": [{"prefix": "a"}]}), true),
            (json!({"source": [{"anything-but": ["a"]}]}), false),
            (json!({"source": [{"anything-but": {"prefix": "b"}}]}), true),
            (json!({"other": [{"anything-but": "a"}]}), false),
            (json!({"other": [{"exists": false}]}), true),
            (json!({"detail": {"deep": {"x": [{"exists": false}]}}}), true),
            (json!({"detail": {"n": [{"numeric": [">", 0, "<=", 5]}]}}), true),
            (json!({"detail": {"n": [{"numeric": ["<", 5]}]}}), false),
            (json!({"source": [{"wildcard": "*a*"}]}), true),
            (json!({"$or": [{"source": ["q"]}, {"detail": {"n": [5]}}]}), true),
        ] {
            assert_eq!(matches(&pattern, &event), expected, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_aws_refuses_is_refused() {
        for pattern in ["[]", "{}", r#"{"a":"b"}"#, r#"{"a":[]}"#, r#"{"a":[{"near":1}]}"#, "{"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
