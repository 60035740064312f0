//! The index by which a sent event finds its waiters: the leaves of a match, `path=scalar` texts such as
//! `.order.id="o-1"`.
//!
//! The criteria of a waiter are a part of the event's match, so a hash of the whole match would find nothing. But if one
//! object contains another, each leaf of the contained object is a leaf of the container: a waiter that is indexed under
//! any one of its leaves is found by a look-up of all leaves of the event. To that end paths do not contain the index of an
//! array's element, and equal numbers are written alike.

use std::{
    cmp::Reverse,
    fmt::{self, Write},
};

use serde_json::Value;

use crate::containment::ExactNumber;

/// One scalar of a JSON value and where it is. Displays as `path=scalar`: `.key` for a field and `[]` for an
/// element, with a `\` before every `.`, `[`, `=` and `\` of a key.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    path: Vec<Segment<'a>>,
    scalar: &'a Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment<'a> {
    Element,
    Field(&'a str),
}

/// The leaves of `value`; a leaf that occurs twice is listed twice.
///
/// It recurses as deep as `value` is nested: see [`contains`](crate::containment::contains).
pub fn leaves(value: &Value) -> Vec<Leaf<'_>> {
    let mut found = Vec::new();
    collect(value, &mut Vec::new(), &mut found);
    found
}

fn collect<'a>(value: &'a Value, path: &mut Vec<Segment<'a>>, found: &mut Vec<Leaf<'a>>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                path.push(Segment::Field(key));
                collect(value, path, found);
                path.pop();
            }
        }
        Value::Array(items) => {
            path.push(Segment::Element);
            items.iter().for_each(|item| collect(item, path, found));
            path.pop();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.push(Leaf { path: path.clone(), scalar: value });
        }
    }
}

impl Leaf<'_> {
    /// How few waiters are likely to share it: an id is more selective than another field, a value with digits more than a
    /// word, and a long text more than a short one; booleans and null are the least selective.
    fn selectivity(&self) -> (bool, bool, bool, usize) {
        match self.scalar {
            Value::Number(number) => {
                (true, self.is_called_id(), true, ExactNumber::of(number).to_string().len())
            }
            Value::String(text) => {
                (true, self.is_called_id(), text.bytes().any(|byte| byte.is_ascii_digit()), text.len())
            }
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => (false, false, false, 0),
        }
    }

    fn is_called_id(&self) -> bool {
        let name = self.path.iter().rev().find_map(|segment| match segment {
            Segment::Field(name) => Some(*name),
            Segment::Element => None,
        });
        name.is_some_and(|name| {
            ["id", "Id", "ID", "key", "Key", "token", "Token"].iter().any(|ending| name.ends_with(ending))
        })
    }
}

impl fmt::Display for Leaf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.path {
            match segment {
                Segment::Element => f.write_str("[]")?,
                Segment::Field(key) => {
                    f.write_char('.')?;
                    for c in key.chars() {
                        if matches!(c, '.' | '[' | '=' | '\\') {
                            f.write_char('\\')?;
                        }
                        f.write_char(c)?;
                    }
                }
            }
        }
        match self.scalar {
            Value::Number(number) => write!(f, "={}", ExactNumber::of(number)),
            other => write!(f, "={other}"),
        }
    }
}

/// The hash that a leaf is found by.
pub fn hash_of(leaf: &Leaf<'_>) -> u64 {
    let mut hash = Fnv1a(OFFSET);
    // Neither the hash nor `Display` of a leaf can fail.
    let _ = write!(hash, "{leaf}");
    hash.0
}

/// The leaf under which a waiter with these criteria is indexed: the most selective one. `None` if the criteria have no
/// scalar; such waiters are indexed apart, and every event looks there too.
pub fn index_leaf(criteria: &Value) -> Option<u64> {
    let leaves = leaves(criteria);
    let best = leaves.iter().map(|leaf| (Reverse(leaf.selectivity()), &leaf.path, hash_of(leaf))).min();
    best.map(|(_, _, hash)| hash)
}

/// The leaves under which an event with this match finds its waiters; each once.
pub fn event_leaves(matched: &Value) -> Vec<u64> {
    let mut hashes: Vec<u64> = leaves(matched).iter().map(hash_of).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a with 64 bits.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = Fnv1a(OFFSET);
    hash.add(bytes);
    hash.0
}

struct Fnv1a(u64);

impl Fnv1a {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    }
}

impl Write for Fnv1a {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
    use serde_json::json;

    use super::*;
    use crate::containment::contains;

    fn texts(value: &Value) -> BTreeSet<String> {
        leaves(value).iter().map(Leaf::to_string).collect()
    }

    fn indexed(criteria: &Value, leaf: &str) -> bool {
        index_leaf(criteria) == Some(fnv1a(leaf.as_bytes()))
    }

    #[test]
    fn fnv_1a_gives_the_published_values() {
        for (text, expected) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("b", 0xaf63_df4c_8601_f1a5),
            ("foo", 0xdcb2_7518_fed9_d577),
            ("foob", 0xdd12_0e79_0c25_12af),
            ("fooba", 0xcac1_65af_a2fe_f40a),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv1a(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_leaf_says_where_it_is_and_what_it_is() {
        let value =
            json!({"order": {"id": "o-1", "lines": [{"n": 1.0}, {"n": 2}]}, "paid": true, "by": null});
        let expected =
            [r#".order.id="o-1""#, ".order.lines[].n=1", ".order.lines[].n=2", ".paid=true", ".by=null"];
        assert_eq!(texts(&value), expected.map(str::to_owned).into());
        assert!(texts(&json!({"a": {}, "b": [[], {}]})).is_empty());
    }

    #[test]
    fn different_leaves_have_different_texts() {
        let different = [
            json!({"a": 1}),
            json!({"a": [1]}),
            json!({"a": [[1]]}),
            json!({"a": {"": 1}}),
            json!({"a[]": 1}),
            json!({"a=1": 1}),
            json!({"a": "1"}),
            json!({"a": "1\""}),
            json!({"a.b": 1}),
            json!({"a": {"b": 1}}),
            json!({"a\\": {"b": 1}}),
            json!({"a\\.b": 1}),
            json!({"a": true}),
            json!({"a": "true"}),
            json!({"": 1}),
            json!({"": [1]}),
            json!([1]),
            json!(1),
            json!({"": {"": 1}}),
            json!({".": 1}),
        ];
        let all: BTreeSet<String> = different.iter().flat_map(texts).collect();
        assert_eq!(all.len(), different.len(), "{all:?}");
        let hashes: BTreeSet<u64> = different.iter().flat_map(event_leaves).collect();
        assert_eq!(hashes.len(), different.len());
    }

    #[test]
    fn a_waiter_is_indexed_under_its_most_selective_leaf() {
        assert!(indexed(&json!({"orderId": "o-1234", "kind": "card"}), r#".orderId="o-1234""#));
        assert!(indexed(&json!({"orderId": 7, "kind": "payment"}), ".orderId=7"));
        assert!(indexed(&json!({"order": "o7", "kind": "payment"}), r#".order="o7""#));
        assert!(indexed(&json!({"a": true, "b": null, "c": 7}), ".c=7"));
        assert!(indexed(&json!({"a": "", "b": false}), r#".a="""#));
        assert!(indexed(&json!({"a": null, "b": true}), ".a=null"));
        assert!(indexed(&json!({"b": "xy", "a": {"z": "yx"}}), r#".a.z="yx""#));
        assert!(indexed(&json!({"a": 1e3, "b": "abc"}), ".a=1000"));
        let either_order = [json!({"tags": ["ab", "cd"]}), json!({"tags": ["cd", "ab"]})];
        assert_eq!(index_leaf(&either_order[0]), index_leaf(&either_order[1]));
        assert_eq!(index_leaf(&json!({})), None);
        assert_eq!(index_leaf(&json!({"a": [], "b": {"c": {}}})), None);
    }

    #[test]
    fn an_event_has_each_leaf_once() {
        assert_eq!(event_leaves(&json!({"a": [1, 1.0, 1e0, 2]})).len(), 2);
        assert!(event_leaves(&json!({})).is_empty());
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2_i64..3).prop_map(Value::from),
            (-2_i64..3).prop_map(|number| json!(number as f64)),
            prop_oneof![Just(json!(0.5)), Just(json!(-0.0)), Just(json!(u64::MAX)), Just(json!(1e19))],
            "[ab.=\\[]{0,2}".prop_map(Value::from),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        scalar().prop_recursive(4, 32, 4, |inner| {
            let key = prop_oneof!["[abc]", Just(".".to_owned()), Just("a[]".to_owned())];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(key, inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn object() -> impl Strategy<Value = Value> {
        value().prop_filter("an object", |value| value.as_object().is_some_and(|fields| !fields.is_empty()))
    }

    /// A part of `value`, or something near it: `dice` decide which parts are left out, doubled and changed.
    fn part(value: &Value, dice: &mut impl Iterator<Item = u8>) -> Value {
        let mut roll = |sides: u8| dice.next().unwrap_or(0) % sides;
        match roll(40) {
            1 => return Value::Null,
            2 => return json!([value]),
            3 => return json!({ "a": value }),
            _ => {}
        }
        match value {
            Value::Object(fields) => {
                let kept: Vec<_> = fields.iter().filter(|_| roll(3) != 1).collect();
                let kept = kept.into_iter().map(|(key, value)| (key.clone(), part(value, dice)));
                Value::Object(kept.collect())
            }
            Value::Array(items) => {
                let mut kept: Vec<_> = items.iter().filter(|_| roll(3) != 1).collect();
                if roll(2) == 1 {
                    kept.reverse();
                }
                if roll(4) == 1 {
                    kept.extend(kept.first().copied());
                }
                kept.into_iter().map(|item| part(item, dice)).collect()
            }
            Value::Number(number) => match (roll(12), number.as_i64()) {
                (1, _) => json!("1"),
                (2, _) => json!(u64::MAX as f64),
                (3..7, Some(whole)) => json!(whole as f64),
                _ => value.clone(),
            },
            Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
        }
    }

    fn nearby() -> impl Strategy<Value = (Value, Value)> {
        (object(), proptest::collection::vec(any::<u8>(), 48)).prop_map(|(event, dice)| {
            let criteria = part(&event, &mut dice.into_iter());
            (event, criteria)
        })
    }

    #[test]
    fn nearby_pairs_have_both_outcomes() {
        let mut runner = TestRunner::deterministic();
        let mut contained = 0;
        for _ in 0..1_000 {
            let (event, criteria) = nearby().new_tree(&mut runner).unwrap().current();
            contained += usize::from(contains(&event, &criteria));
        }
        assert!((200..800).contains(&contained), "{contained} of 1000");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_waiter_whose_criteria_are_contained_is_found((event, criteria) in nearby()) {
            if contains(&event, &criteria) && criteria.is_object() {
                let found = event_leaves(&event);
                prop_assert!(texts(&criteria).is_subset(&texts(&event)), "{event} @> {criteria}");
                prop_assert!(index_leaf(&criteria).is_none_or(|leaf| found.contains(&leaf)));
                prop_assert_eq!(index_leaf(&criteria).is_none(), leaves(&criteria).is_empty());
            }
        }

        #[test]
        fn every_value_contains_itself_in_every_spelling(value in value()) {
            prop_assert!(contains(&value, &value));
            let spelt: Value = serde_json::from_str(&value.to_string()).unwrap();
            prop_assert!(contains(&value, &spelt) && contains(&spelt, &value));
            prop_assert_eq!(event_leaves(&value), event_leaves(&spelt));
        }

        #[test]
        fn containment_is_transitive((event, part_of_it) in nearby(), dice in proptest::collection::vec(any::<u8>(), 48)) {
            let criteria = part(&part_of_it, &mut dice.into_iter());
            // A bare scalar is not an element of an array that is an element.
            if criteria.is_object() && contains(&event, &part_of_it) && contains(&part_of_it, &criteria) {
                prop_assert!(contains(&event, &criteria));
            }
        }
    }
}
