//! `*` and `?` as published cases have them, by both of our matchers.

use ledgerline_event::glob::matches;
use ledgerline_subscription::GlobSet;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    glob: String,
    text: String,
    matches: bool,
}

#[test]
fn published_wildcard_cases_hold_one_by_one_and_all_at_once() {
    let Vectors { cases } = serde_json::from_str(include_str!("vectors/wildcards.json")).unwrap();
    assert!(cases.len() > 80);
    let all = GlobSet::new(cases.iter().map(|case| case.glob.as_str()));
    for (index, Case { glob, text, matches: expected }) in cases.iter().enumerate() {
        assert_eq!(matches(glob, text), *expected, "{glob} ~ {text}");
        assert_eq!(!GlobSet::new([glob.as_str()]).matching(text).is_empty(), *expected, "{glob} ~ {text}");
        assert_eq!(all.matching(text).contains(&index), *expected, "{glob} ~ {text}, among all");
    }
}
