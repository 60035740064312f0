//! Containment: whether one JSON value contains another, with the rules of PostgreSQL's `jsonb @>`.
//!
//! An object contains another object if it has each key of the other, with a value that contains the other's value. An
//! array contains another array if each element of the other is contained in one of its elements, in any order and number.
//! A scalar contains an equal scalar. At the top level only, an array also contains a bare scalar that is among its elements.
//!
//! `tests/postgres/containment` compares this with a real PostgreSQL. The two may differ only for numbers beyond 64 bits or
//! with a fraction: here they are the nearest `f64`.

use std::fmt;

use serde_json::{Number, Value};

use crate::Invalid;

/// The most leaves of a match: values without further values inside.
pub const MAX_LEAVES: usize = 64;
/// How deep a match may be nested. Readers of JSON stop at 128 levels, and a match lies within other values:
/// one that is much deeper could be written and never be read again.
const MAX_DEPTH: usize = 64;

/// Whether `container @> contained`.
///
/// It recurses as deep as both are nested: less than 128 levels if either was read from JSON, which is where
/// `serde_json` stops, and 64 if either has passed [`check_match`].
pub fn contains(container: &Value, contained: &Value) -> bool {
    match (container, contained) {
        (Value::Array(own), Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
            own.iter().any(|own| holds(own, contained))
        }
        _ => holds(container, contained),
    }
}

/// The rules below the top level.
fn holds(own: &Value, asked: &Value) -> bool {
    match (own, asked) {
        (Value::Object(own), Value::Object(asked)) => {
            asked.iter().all(|(key, asked)| own.get(key).is_some_and(|own| holds(own, asked)))
        }
        (Value::Array(own), Value::Array(asked)) => {
            asked.iter().all(|asked| own.iter().any(|own| holds(own, asked)))
        }
        (Value::Number(own), Value::Number(asked)) => ExactNumber::of(own) == ExactNumber::of(asked),
        (Value::Null | Value::Bool(_) | Value::String(_), _) => own == asked,
        (Value::Number(_) | Value::Array(_) | Value::Object(_), _) => false,
    }
}

/// The longest criteria of a wait, as JSON: a row has 400 KB.
const CRITERIA_BYTES: usize = 300_000;

/// Checks that `value` may be a match: an object of at most [`MAX_LEAVES`] leaves, where an empty object or array
/// counts as a leaf. The error names `field`.
pub fn check_match(field: &'static str, value: &Value) -> Result<(), Invalid> {
    if !value.is_object() {
        return Err(Invalid::new(field, format!("is {}; an object is expected", kind_of(value))));
    }
    // Without recursion: the depth of the value is not limited yet.
    let (mut leaves, mut open) = (0, vec![(1, value)]);
    while let Some((depth, value)) = open.pop() {
        let before = open.len();
        match value {
            Value::Object(_) | Value::Array(_) if depth > MAX_DEPTH => {
                return Err(Invalid::new(field, format!("is nested deeper than {MAX_DEPTH} levels")));
            }
            Value::Object(fields) => open.extend(fields.values().map(|value| (depth + 1, value))),
            Value::Array(items) => open.extend(items.iter().map(|value| (depth + 1, value))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        leaves += usize::from(open.len() == before);
    }
    if leaves > MAX_LEAVES {
        return Err(Invalid::new(field, format!("has {leaves} leaves; at most {MAX_LEAVES} are allowed")));
    }
    Ok(())
}

/// Checks that `value` may be the criteria of a wait: a match that fits into a row. The error names `field`.
pub fn check_criteria(field: &'static str, value: &Value) -> Result<(), Invalid> {
    check_match(field, value)?;
    match value.to_string().len() {
        bytes if bytes > CRITERIA_BYTES => {
            Err(Invalid::new(field, format!("has {bytes} bytes; at most {CRITERIA_BYTES} are allowed")))
        }
        _ => Ok(()),
    }
}

/// The kind of a JSON value, for messages.
pub(crate) const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The value of a number, however it is written: 1, 1.0 and 1e0 are equal, and so are 0 and -0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExactNumber {
    /// A whole number of any type. For an `f64` this is its own value, not the decimal number that it was rounded from.
    Whole(i128),
    /// An `f64` that is not whole, or larger than any `i128`.
    Float(f64),
    /// A number that neither type holds; `serde_json` has them only with the feature `arbitrary_precision`.
    Text(String),
}

impl ExactNumber {
    pub(crate) fn of(number: &Number) -> Self {
        if let Some(whole) = number.as_i128() {
            return Self::Whole(whole);
        }
        match number.as_f64() {
            // The bound is 2^127; the cast of a whole number below it is exact.
            Some(float) if float.fract() == 0.0 && float.abs() < i128::MAX as f64 => {
                Self::Whole(float as i128)
            }
            Some(float) => Self::Float(float),
            None => Self::Text(number.to_string()),
        }
    }
}

impl fmt::Display for ExactNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => whole.fmt(f),
            Self::Float(float) => write!(f, "{float:e}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    /// Each with what PostgreSQL 15 answers.
    const ANSWERS: &[(&str, &str, bool)] = &[
        // Bare scalars, at the top only.
        (r#"["foo", "bar"]"#, r#""bar""#, true),
        (r#"["foo", "bar"]"#, r#""baz""#, false),
        (r#"[["foo"]]"#, r#""foo""#, false),
        (r#"{"a": ["foo"]}"#, r#"{"a": "foo"}"#, false),
        (r#"{"a": "foo"}"#, r#"{"a": ["foo"]}"#, false),
        (r#""foo""#, r#"["foo"]"#, false),
        (r#""foo""#, r#""foo""#, true),
        ("[1.0]", "1", true),
        ("1", "[1]", false),
        ("[null]", "null", true),
        ("[]", "null", false),
        (r#"{"a": 1}"#, "1", false),
        (r#"{"a": 1}"#, r#""a""#, false),
        // Neither order nor number of elements.
        ("[1, 2, 3]", "[3, 1]", true),
        ("[1, 2, 3]", "[1, 1, 1, 1]", true),
        ("[1, 2]", "[1, 3]", false),
        // Elements are looked for at their own level, and contained there.
        ("[1, 2, [1, 3]]", "[1, 3]", false),
        ("[1, 2, [1, 3]]", "[[1, 3]]", true),
        ("[1, 2, [1, 3]]", "[[3]]", true),
        ("[[1, 2]]", "[1]", false),
        ("[[1], [2]]", "[[1, 2]]", false),
        ("[[1, 2]]", "[[1], [2]]", true),
        ("[1, [2, [3]]]", "[[[3]]]", true),
        ("[1, [2, [3]]]", "[[2], 1]", true),
        ("[1, [2, [3]]]", "[2]", false),
        // Objects.
        (r#"{"foo": {"bar": "baz"}}"#, r#"{"bar": "baz"}"#, false),
        (r#"{"foo": {"bar": "baz"}}"#, r#"{"foo": {}}"#, true),
        (r#"{"foo": {}}"#, r#"{"foo": {"bar": 1}}"#, false),
        (r#"{"a": [{"b": 1, "c": 2}, {"b": 3}]}"#, r#"{"a": [{"b": 1}, {"c": 2}]}"#, true),
        (r#"{"a": [{"b": 1}, {"c": 2}]}"#, r#"{"a": [{"b": 1, "c": 2}]}"#, false),
        (r#"{"a": [1, "x", null, true]}"#, r#"{"a": [null, "x"]}"#, true),
        (r#"[{"a": 1}]"#, r#"{"a": 1}"#, false),
        (r#"["a"]"#, r#"{"a": 1}"#, false),
        (r#"{"a": 1, "a": 2}"#, r#"{"a": 1}"#, false),
        (r#"{"a": 1, "a": 2}"#, r#"{"a": 2}"#, true),
        (r#"{"": 1}"#, r#"{"": 1}"#, true),
        (r#"{"a": "A"}"#, r#"{"a": "a"}"#, false),
        (r#"{"a": "é"}"#, r#"{"a": "\u00e9"}"#, true),
        (r#"{"a": "é"}"#, r#"{"a": "e\u0301"}"#, false),
        // What is empty is contained in its like, and in no other.
        ("{}", "{}", true),
        ("[]", "[]", true),
        ("{}", "[]", false),
        ("[]", "{}", false),
        ("[1]", "[]", true),
        (r#"{"a": 1}"#, "{}", true),
        (r#"{"a": 1}"#, "[]", false),
        ("[[]]", "[[]]", true),
        ("[[1]]", "[[]]", true),
        ("[1]", "[[]]", false),
        ("[{}]", "[[]]", false),
        ("[[]]", "[{}]", false),
        (r#"[{"a": 1}]"#, "[{}]", true),
        // null is a value.
        ("null", "null", true),
        ("null", "[]", false),
        (r#"{"a": null}"#, r#"{"a": null}"#, true),
        ("{}", r#"{"a": null}"#, false),
        (r#"{"a": 0}"#, r#"{"a": null}"#, false),
        (r#"{"a": null}"#, r#"{"a": {}}"#, false),
        // Numbers by their worth.
        ("1", "1.0", true),
        ("1.0", "1e0", true),
        ("100", "1e2", true),
        ("0", "-0", true),
        ("0", "-0.0", true),
        ("0.10", "1e-1", true),
        ("9007199254740993", "9007199254740992", false),
        ("9007199254740993", "9007199254740992.0", false),
        ("9007199254740992", "9007199254740992.0", true),
        ("18446744073709551615", "18446744073709551616", false),
        ("9223372036854775808", "9223372036854775807", false),
        ("-9223372036854775808", "-9223372036854775808.0", true),
        ("10000000000000000000", "1e19", true),
        ("10000000000000000000000", "1e22", true),
        ("1e300", "1.0e300", true),
        // Nothing is like another type.
        ("1", "true", false),
        ("0", "false", false),
        ("1", r#""1""#, false),
        ("true", r#""true""#, false),
        ("null", r#""null""#, false),
    ];

    #[test]
    fn containment_is_what_postgresql_says_it_is() {
        for (container, contained, expected) in ANSWERS {
            assert_eq!(contains(&read(container), &read(contained)), *expected, "{container} @> {contained}");
        }
    }

    #[test]
    fn only_digits_that_json_readers_drop_make_a_difference_to_postgresql() {
        for (container, contained, in_postgresql) in [
            ("9007199254740993", "9007199254740993.0", true),
            ("18446744073709551615", "18446744073709551615.0", true),
            ("0.1", "0.1000000000000000055", false),
        ] {
            assert_ne!(contains(&read(container), &read(contained)), in_postgresql, "{container}");
        }
    }

    #[test]
    fn a_match_is_an_object_of_at_most_64_leaves() {
        let fields = |count: usize| Value::Object((0..count).map(|n| (n.to_string(), json!(n))).collect());
        let elements = |count: usize| json!({ "tags": vec![1; count] });
        for good in [json!({}), fields(64), elements(64), json!({"a": {"b": [[], {}]}})] {
            assert_eq!(check_match("match", &good), Ok(()));
        }
        let mut many_objects = fields(64);
        many_objects["0"] = json!([{}, {}]);
        for (bad, expected) in [
            (json!(null), "match: is null; an object is expected"),
            (json!([{}]), "match: is an array; an object is expected"),
            (json!("a"), "match: is a text; an object is expected"),
            (fields(65), "match: has 65 leaves; at most 64 are allowed"),
            (elements(65), "match: has 65 leaves; at most 64 are allowed"),
            (many_objects, "match: has 65 leaves; at most 64 are allowed"),
        ] {
            assert_eq!(check_match("match", &bad).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_deep_match_is_refused_and_a_deep_event_does_no_harm() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!({ "a": value }));
        assert_eq!(check_match("match", &nested(64)), Ok(()));
        let error = check_match("match", &nested(65)).unwrap_err();
        assert_eq!(error.to_string(), "match: is nested deeper than 64 levels");
        assert!(check_match("match", &nested(500)).is_err());
        assert!(!contains(&nested(500), &nested(64)));
        assert!(contains(&nested(127), &nested(127)));
    }

    #[test]
    fn equal_numbers_are_written_alike() {
        for (json, expected) in [
            ("1", "1"),
            ("1.0", "1"),
            ("1e0", "1"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("1e2", "100"),
            ("0.5", "5e-1"),
            ("-2.50", "-2.5e0"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551616", "18446744073709551616"),
            ("1e40", "1e40"),
            ("1E+40", "1e40"),
        ] {
            let Value::Number(number) = read(json) else { panic!("{json}") };
            assert_eq!(ExactNumber::of(&number).to_string(), expected, "{json}");
        }
    }
}
