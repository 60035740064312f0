//! `matches` for filters. The function of the CEL library compiles its regular expression at each call; this one compiles
//! each expression once, and limits its size.

use std::{
    collections::HashMap,
    sync::{LazyLock, PoisonError, RwLock},
};

use cel::{
    ExecutionError,
    common::{
        types::{CelBool, CelString},
        value::CowVal,
    },
};
use regex::{Regex, RegexBuilder};

/// The longest pattern, in bytes.
const PATTERN_MAX: usize = 512;
/// How large a compiled pattern may become.
const COMPILED_MAX: usize = 256 << 10;
/// How many patterns the cache holds; then it is cleared.
const CACHED_MAX: usize = 256;

static COMPILED: LazyLock<RwLock<HashMap<String, Regex>>> = LazyLock::new(RwLock::default);

/// Compiles `pattern`; the error says what is wrong with it.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > PATTERN_MAX {
        return Err(format!("a pattern of {} bytes; at most {PATTERN_MAX} are allowed", pattern.len()));
    }
    let known = COMPILED.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(regex) = known.get(pattern) {
        return Ok(regex.clone());
    }
    drop(known);
    let regex = RegexBuilder::new(pattern).size_limit(COMPILED_MAX).dfa_size_limit(COMPILED_MAX).build();
    let regex =
        regex.map_err(|error| format!("`{pattern}` is no regular expression: {}", last_line(&error)))?;
    let mut known = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= CACHED_MAX {
        known.clear();
    }
    known.insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}

/// The library shows the pattern over several lines; the last line has the reason.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// `text.matches(pattern)` and `matches(text, pattern)`.
pub(crate) fn matches<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut texts = arguments.iter().filter_map(|argument| argument.downcast_ref::<CelString>());
    let (Some(text), Some(pattern)) = (texts.next(), texts.next()) else {
        return Err(ExecutionError::missing_argument_or_target());
    };
    let regex = compile(pattern).map_err(|reason| ExecutionError::function_error("matches", reason))?;
    Ok(CowVal::owned(CelBool::from(regex.is_match(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_compiled_once_and_may_not_be_large() {
        assert!(compile("^[a-z]+$").unwrap().is_match("abc"));
        assert!(compile("(").unwrap_err().contains("unclosed group"), "{}", compile("(").unwrap_err());
        assert!(compile("(x{1000}){1000}").is_err());
        assert!(compile(&"x".repeat(513)).unwrap_err().contains("513 bytes"));
    }

    #[test]
    fn the_cache_is_bounded() {
        for n in 0..2 * CACHED_MAX {
            compile(&format!("a{n}")).unwrap();
        }
        assert!(COMPILED.read().unwrap().len() <= CACHED_MAX);
    }
}
