//! JSONPath (RFC 9535) with one additional rule: a singular path, of names and indexes only, gives its value and fails where
//! there is none; any other path gives the list of all values that it finds.

mod scan;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use serde_json_path::JsonPath;

pub(crate) use scan::Step;
use scan::{Fault, scan, steps};

use crate::{position::chars_before, source::Source};

/// The longest path, in bytes.
pub const PATH_MAX: usize = 1024;
/// The most values that a path may visit in one event.
const STEPS_MAX: f64 = 1e9;

/// A compiled JSONPath.
#[derive(Clone, Debug)]
pub struct Path {
    text: String,
    plan: Plan,
}

#[derive(Clone, Debug)]
enum Plan {
    Singular(Vec<Step>),
    All {
        path: JsonPath,
        /// How often filters refer to the root `$`: the cost is the size to that power.
        inner_roots: usize,
    },
}

impl Path {
    /// Reads `text`; the error says what is wrong with it and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with(text, |_| None)
    }

    /// Reads `text`; `alias` gives the field for which a name directly below `$` stands.
    pub(crate) fn parse_with(
        text: &str,
        alias: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<Self, String> {
        if text.len() > PATH_MAX {
            return Err(format!("has {} bytes; at most {PATH_MAX} are allowed", text.len()));
        }
        if !text.starts_with('$') {
            return Err(format!("{text:?} is no JSONPath: it begins with `$`"));
        }
        let wrong = |fault: Fault| {
            let position = chars_before(text, fault.at) + 1;
            format!("{text:?} is no JSONPath: it {} at position {position}", fault.reason)
        };
        let scanned = scan(text).map_err(wrong)?;
        let path = compile(text).map_err(wrong)?;
        let mut renamed = text.to_owned();
        for (range, name) in scanned.top_names.iter().rev() {
            if let Some(name) = alias(name) {
                let quoted = text[range.clone()].starts_with(['\'', '"']);
                renamed.replace_range(range.clone(), &if quoted { format!("'{name}'") } else { name.into() });
            }
        }
        let one = if scanned.singular { steps(&renamed) } else { None };
        let plan = match one {
            Some(steps) => Plan::Singular(steps),
            None if renamed == text => Plan::All { path, inner_roots: scanned.inner_roots },
            None => {
                let path = compile(&renamed).map_err(wrong)?;
                Plan::All { path, inner_roots: scanned.inner_roots }
            }
        };
        Ok(Self { text: text.to_owned(), plan })
    }

    /// Checks that a path can find something in an object; the error has the position. `has_fields` says of a top-level field
    /// whether it can have fields itself, and is an error for a field that no such object has.
    pub(crate) fn check_root(
        text: &str,
        alias: impl Fn(&str) -> Option<&'static str>,
        has_fields: impl Fn(&str) -> Result<bool, String>,
    ) -> Result<(), String> {
        let at = |byte: usize, reason: &str| {
            format!("{text:?} at position {}: {reason}", chars_before(text, byte) + 1)
        };
        let Ok(scanned) = scan(text) else { return Ok(()) };
        let steps = if scanned.singular { steps(text) } else { None };
        if let Some([Step::Index(_), ..]) = steps.as_deref() {
            return Err(at(text.find('[').unwrap_or(0), "`$` is an object and has no index"));
        }
        for (range, name) in &scanned.top_names {
            let can_descend =
                has_fields(alias(name).unwrap_or(name)).map_err(|reason| at(range.start, &reason))?;
            if !can_descend && steps.as_ref().is_some_and(|steps| steps.len() > 1) {
                return Err(at(range.end, &format!("`{name}` is a text or a number, with nothing inside")));
            }
        }
        Ok(())
    }

    /// The text of the path.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it has names and indexes only, and so finds one value.
    pub fn is_singular(&self) -> bool {
        matches!(self.plan, Plan::Singular(_))
    }

    /// What it finds in `json`: the value if the path is singular, else the list of all values.
    pub fn find(&self, json: &Value) -> Result<Value, String> {
        self.find_in(json, "this JSON")
    }

    /// What it finds in `source`; errors call the source `name`.
    pub(crate) fn find_in(&self, source: &impl Source, name: &str) -> Result<Value, String> {
        match &self.plan {
            Plan::Singular(steps) => {
                source.at(steps).ok_or_else(|| format!("`{}` finds nothing in {name}", self.text))
            }
            Plan::All { path, inner_roots } => {
                let whole = source.whole()?;
                let power = i32::try_from(*inner_roots).unwrap_or(i32::MAX).saturating_add(1);
                if power > 1 && size(whole).powi(power) > STEPS_MAX {
                    return Err(format!("`{}` would take too many steps in {name}", self.text));
                }
                let found = catch_panic(|| path.query(whole).all().into_iter().cloned().collect());
                found
                    .map(Value::Array)
                    .ok_or_else(|| format!("`{}` cannot be looked up in {name}", self.text))
            }
        }
    }
}

/// The value to which `steps` lead from `value`.
pub(crate) fn descend<'a>(value: &'a Value, steps: &[Step]) -> Option<&'a Value> {
    steps.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Name(name), Value::Object(members)) => members.get(name),
        (Step::Index(index), Value::Array(items)) => {
            let from_end = usize::try_from(index.unsigned_abs()).ok()?;
            items.get(if *index < 0 { items.len().checked_sub(from_end)? } else { from_end })
        }
        _ => None,
    })
}

/// How many values `json` consists of.
pub(crate) fn size(json: &Value) -> f64 {
    1.0 + match json {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(members) => members.values().map(size).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0.0,
    }
}

fn compile(text: &str) -> Result<JsonPath, Fault> {
    match catch_panic(|| JsonPath::parse(text)) {
        Some(Ok(path)) => Ok(path),
        Some(Err(error)) => {
            // If the library gives no reason, the position is enough.
            let reason = match error.message() {
                message if message.contains("parser error") => "goes wrong".to_owned(),
                message if message.contains("must start with") => {
                    "needs a name, which begins with a letter or `_`,".to_owned()
                }
                message => format!("goes wrong ({message})"),
            };
            Err(Fault { at: error.position(), reason })
        }
        None => Err(Fault { at: 0, reason: "cannot be read".into() }),
    }
}

/// A panic inside the library is an error like any other: the text came from a tenant.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_singular_path_gives_its_value_and_any_other_the_list_of_all() {
        let json = json!({"a": [{"b": 1}, {"b": null}], "ä": {"x y": 2}});
        for (path, expected) in [
            ("$", json.clone()),
            ("$.a[0].b", json!(1)),
            ("$.a[-1].b", json!(null)),
            ("$ [ 'ä' ] [\"x y\"]", json!(2)),
            ("$['\\u00e4'].*", json!([2])),
            ("$.a[*].b", json!([1, null])),
            ("$.a[0,0].b", json!([1, 1])),
            ("$.a[:1]", json!([{"b": 1}])),
            ("$..b", json!([1, null])),
            ("$.a[?@.b == 1]", json!([{"b": 1}])),
            ("$.nothing.*", json!([])),
        ] {
            assert_eq!(Path::parse(path).unwrap().find(&json), Ok(expected), "{path}");
        }
        for path in ["$.nothing", "$.a[2]", "$.a[-3]", "$.a.b", "$.ä[0]", "$.a[0].b.c"] {
            let error = Path::parse(path).unwrap().find(&json).unwrap_err();
            assert_eq!(error, format!("`{path}` finds nothing in this JSON"));
        }
    }

    #[test]
    fn an_error_says_where_the_path_goes_wrong() {
        for (path, expected) in [
            ("$.payload[", "\"$.payload[\" is no JSONPath: it ends where a `]` is missing at position 11"),
            ("$.a b", "it goes wrong at position 4"),
            ("$.ä.1", "it needs a name, which begins with a letter or `_`, at position 5"),
            ("$['ä", "it begins a text that is not closed at position 3"),
            ("$[\"\\u", "it has an escape that JSON does not know at position 4"),
            ("$['\\ud800']", "it has an escape that JSON does not know at position 4"),
            ("$.a]", "it has a `]` that closes nothing at position 4"),
            ("$[?nope(@)]", "function name 'nope' is not defined"),
            ("a.b", "it begins with `$`"),
        ] {
            let error = Path::parse(path).unwrap_err();
            assert!(error.contains(expected), "{path}: {error}");
        }
    }

    #[test]
    fn a_path_that_would_cost_too_much_is_refused() {
        for path in [
            format!("$[?{}@.a{}]", "(".repeat(500), ")".repeat(500)),
            format!("$[?{}@.a{}]", "@[?".repeat(100), "]".repeat(100)),
            "$..a..b..c..d".into(),
            "$[*,*,*][*,*,*][*,*,*][*,*,*]".into(),
            format!("$.{}", "a".repeat(1024)),
        ] {
            assert!(Path::parse(&path).is_err(), "{path}");
        }
        let nested = Path::parse("$..[?count($..[?count($..*) > 0]) > 0]").unwrap();
        let large = Value::from(vec![0; 5000]);
        assert!(nested.find(&large).unwrap_err().contains("too many steps"));
        assert!(nested.find(&json!([1, 2])).is_ok());
    }

    proptest! {
        #[test]
        fn no_text_makes_parsing_panic(text in r#"\$[\.\[\]\(\)\*\?@,:'"\\ua0-9&|!=<> ä-]{0,40}"#) {
            if let Ok(path) = Path::parse(&text) {
                let _ = path.find(&json!({"a": [1, {"u": "x"}], "u": null}));
            }
        }

        /// Singular paths are walked by our own code, all others by the library.
        #[test]
        fn a_singular_path_finds_what_the_library_finds(
            names in prop::collection::vec("[a-c ü'\"\\\\]{0,3}", 0..4), index in -3_i64..3,
        ) {
            let mut text: String = names.iter().map(|name| format!("[{}]", json!(name))).collect();
            text = format!("${text}[{index}]");
            let inner = names.iter().rev().fold(json!([1, 2]), |inner, name| json!({ name: inner }));
            let path = Path::parse(&text).unwrap();
            prop_assert!(path.is_singular());
            let library = JsonPath::parse(&text).unwrap();
            let expected = library.query(&inner).at_most_one().unwrap().cloned();
            prop_assert_eq!(path.find(&inner).ok(), expected);
        }
    }
}
