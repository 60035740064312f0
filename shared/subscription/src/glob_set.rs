//! Many globs at once. Globs without a wildcard and globs whose only wildcard ends them are found by hash; the others are
//! compiled into one automaton; and the globs of an event type are cached. So the cost of an event hardly depends on the
//! number of globs.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use ledgerline_event::glob::{is_literal, matches};
use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::glob::{reserved_beginning, stem};

/// If all globs together are longer than this (10,000 of 50 bytes), they are tried one by one: the automaton would take
/// hundreds of megabytes to build.
const AUTOMATON_TEXT: usize = 500_000;
/// How large the automaton may become.
const AUTOMATON_BYTES: usize = 128 << 20;
/// How large the cache of the automaton's states may become; it grows only with use.
const STATE_BYTES: usize = 32 << 20;
/// The weight of a full cache; then the cache is cleared. A number weighs 1, an entry [`ENTRY_WEIGHT`] more.
const CACHE_WEIGHT: usize = 1 << 18;
/// The weight of an entry without its numbers.
const ENTRY_WEIGHT: usize = 16;

/// The members of one distinct glob: their numbers in the given order.
type Members = Vec<usize>;

/// A set of globs that answers which of them match.
pub struct GlobSet {
    literals: HashMap<Box<str>, Members>,
    /// By the text before the final `*`.
    prefixes: HashMap<Box<str>, Members>,
    /// The lengths that occur among `prefixes`, ascending.
    prefix_lengths: Vec<usize>,
    others: Vec<(Box<str>, Members)>,
    /// All of `others`, in their order.
    automaton: Option<RegexSet>,
    cache: RwLock<Cache>,
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Box<str>, Arc<[usize]>>,
    weight: usize,
}

impl GlobSet {
    /// A set of `globs`, numbered from 0.
    pub fn new<'a>(globs: impl IntoIterator<Item = &'a str>) -> Self {
        let mut distinct: HashMap<&str, Members> = HashMap::new();
        for (index, glob) in globs.into_iter().enumerate() {
            distinct.entry(glob).or_default().push(index);
        }
        let mut prefixes: HashMap<Box<str>, Members> = HashMap::new();
        let (mut literals, mut others) = (HashMap::new(), Vec::new());
        for (glob, members) in distinct {
            let stem = stem(glob);
            if is_literal(glob) {
                literals.insert(glob.into(), members);
            } else if glob[stem.len()..].chars().all(|c| c == '*') {
                // `a*` and `a**` say the same.
                prefixes.entry(stem.into()).or_default().extend(members);
            } else {
                others.push((Box::from(glob), members));
            }
        }
        let mut prefix_lengths: Vec<usize> = prefixes.keys().map(|prefix| prefix.len()).collect();
        prefix_lengths.sort_unstable();
        prefix_lengths.dedup();
        let automaton = automaton(&others);
        Self { literals, prefixes, prefix_lengths, others, automaton, cache: RwLock::default() }
    }

    /// The numbers of the globs that match `event_type`, ascending.
    pub fn matching(&self, event_type: &str) -> Arc<[usize]> {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cache.entries.get(event_type) {
            return Arc::clone(known);
        }
        drop(cache);
        let found: Arc<[usize]> = self.look_up(event_type).into();
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.insert(event_type, &found);
        found
    }

    fn look_up(&self, event_type: &str) -> Vec<usize> {
        // A literal always spells out the prefix.
        let beginning = reserved_beginning(event_type).unwrap_or_default();
        let mut found: Vec<usize> = self.literals.get(event_type).into_iter().flatten().copied().collect();
        for length in &self.prefix_lengths {
            let Some(prefix) = event_type.get(..*length) else { continue };
            if prefix.starts_with(beginning) {
                found.extend(self.prefixes.get(prefix).into_iter().flatten());
            }
        }
        let spelt_out = |number: &usize| stem(&self.others[*number].0).starts_with(beginning);
        for number in self.others_matching(event_type).filter(spelt_out) {
            found.extend(&self.others[number].1);
        }
        found.sort_unstable();
        found
    }

    fn others_matching<'a>(&'a self, event_type: &'a str) -> Box<dyn Iterator<Item = usize> + 'a> {
        let one = |number: &usize| {
            let glob = &self.others[*number].0;
            event_type.starts_with(stem(glob)) && matches(glob, event_type)
        };
        match &self.automaton {
            Some(automaton) => Box::new(automaton.matches(event_type.as_bytes()).into_iter()),
            None => Box::new((0..self.others.len()).filter(one)),
        }
    }
}

impl Cache {
    fn insert(&mut self, event_type: &str, found: &Arc<[usize]>) {
        let weight = ENTRY_WEIGHT + found.len();
        if self.weight + weight > CACHE_WEIGHT {
            *self = Self::default();
        }
        if self.entries.insert(event_type.into(), Arc::clone(found)).is_none() {
            self.weight += weight;
        }
    }
}

/// One automaton for all `globs`; `None` if there are none or they are too long.
fn automaton(globs: &[(Box<str>, Members)]) -> Option<RegexSet> {
    let text: usize = globs.iter().map(|(glob, _)| glob.len()).sum();
    if text == 0 || text > AUTOMATON_TEXT {
        return None;
    }
    RegexSetBuilder::new(globs.iter().map(|(glob, _)| pattern(glob)))
        .size_limit(AUTOMATON_BYTES)
        .dfa_size_limit(STATE_BYTES)
        .build()
        .ok()
}

/// `*` becomes "any bytes", which makes the automaton far smaller than "any characters". The result is the same: the text on
/// both sides of a `*` is whole characters, and no character begins inside another.
fn pattern(glob: &str) -> String {
    let mut pattern = String::from(r"\A");
    let mut literal = String::new();
    for c in glob.chars() {
        let wildcard = match c {
            '*' => "(?s-u:.)*",
            '?' => "(?s:.)",
            _ => {
                literal.push(c);
                continue;
            }
        };
        pattern.push_str(&regex::escape(&literal));
        literal.clear();
        if !(c == '*' && pattern.ends_with(wildcard)) {
            pattern.push_str(wildcard);
        }
    }
    pattern.push_str(&regex::escape(&literal));
    pattern.push_str(r"\z");
    pattern
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::glob::{Reach, reach};

    fn one_by_one(globs: &[String], event_type: &str) -> Vec<usize> {
        (0..globs.len()).filter(|n| reach(&globs[*n], event_type) == Reach::Reached).collect()
    }

    #[test]
    fn all_that_match_are_found_in_order() {
        let globs = ["*", "price.*", "price.changed", "*.changed", "ar.*", "price.?hanged", "price.**"];
        let set = GlobSet::new(globs);
        assert_eq!(*set.matching("price.changed"), [0, 1, 2, 3, 5, 6]);
        assert_eq!(*set.matching("price.changed"), [0, 1, 2, 3, 5, 6], "the second answer is remembered");
        assert_eq!(*set.matching("price"), [0]);
        assert!(set.matching("Task Completed").is_empty());
        assert!(GlobSet::new([]).matching("price.changed").is_empty());
    }

    #[test]
    fn a_wildcard_matches_whole_characters_of_any_kind() {
        let set = GlobSet::new(["a?c", "*?", "?*?", "a*c", "(a|b)*[c]?"]);
        assert_eq!(*set.matching("aüc"), [0, 1, 2, 3]);
        assert_eq!(*set.matching("a\nc"), [0, 1, 2, 3]);
        assert_eq!(*set.matching("ü"), [1]);
        assert_eq!(*set.matching("(a|b)+[c]."), [1, 2, 4]);
    }

    #[test]
    fn ten_thousand_globs_are_one_set() {
        let globs: Vec<String> = (0..10_000)
            .map(|n| match n % 4 {
                0 => format!("shop{n}.*"),
                1 => format!("shop{n}.sold"),
                2 => format!("shop{n}.?old"),
                _ => format!("*.sold{n}"),
            })
            .collect();
        let set = GlobSet::new(globs.iter().map(String::as_str));
        assert!(set.automaton.is_some());
        for event_type in ["shop0.sold", "shop1.sold", "shop9998.sold", "x.sold9999", "none"] {
            assert_eq!(*set.matching(event_type), one_by_one(&globs, event_type), "{event_type}");
        }
    }

    #[test]
    fn globs_too_long_for_one_automaton_still_match() {
        let globs: Vec<String> = (0..2100).map(|n| format!("a{n}*{}?", "x".repeat(240))).collect();
        let set = GlobSet::new(globs.iter().map(String::as_str));
        assert!(set.automaton.is_none());
        assert_eq!(*set.matching(&format!("a17.{}ü", "x".repeat(240))), [1, 17]);
    }

    #[test]
    fn the_cache_stays_small_however_many_types_there_are() {
        let set = GlobSet::new(["*"]);
        for n in 0..CACHE_WEIGHT / ENTRY_WEIGHT + 10 {
            set.matching(&n.to_string());
        }
        assert!(set.cache.read().unwrap().weight <= CACHE_WEIGHT);
        assert_eq!(*set.matching("0"), [0]);
    }

    fn text() -> impl Strategy<Value = String> {
        let beginning = prop::sample::select(vec!["", "", "", "Task ", "run_", "workflow.dispatch_", "Tas"]);
        (beginning, "[ab.ü\n ]{0,6}").prop_map(|(beginning, rest)| format!("{beginning}{rest}"))
    }

    fn glob() -> impl Strategy<Value = String> {
        let part = prop_oneof![text(), Just("*".to_owned()), Just("?".to_owned()), Just("[+".to_owned())];
        prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn the_set_says_what_its_globs_say_one_by_one(
            globs in prop::collection::vec(glob(), 0..12), texts in prop::collection::vec(text(), 1..8),
        ) {
            let set = GlobSet::new(globs.iter().map(String::as_str));
            for text in texts.iter().chain(&globs) {
                prop_assert_eq!(&*set.matching(text), one_by_one(&globs, text), "{}", text);
                let plain: Vec<usize> = (0..globs.len()).filter(|n| matches(&globs[*n], text)).collect();
                if reserved_beginning(text).is_none() {
                    prop_assert_eq!(&*set.matching(text), plain, "{}", text);
                }
            }
        }
    }
}
