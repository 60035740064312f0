//! Reads input from an argument, from a file (`@FILE`), or from standard input (`-`).

use std::{io::Read, path::Path};

use anyhow::Context;
use serde_json::{Map, Value};

/// A JSON object: the text itself, `@FILE`, or `-` for standard input.
pub(super) fn object(flag: &str, given: &str) -> anyhow::Result<Map<String, Value>> {
    let text = text(flag, given)?;
    serde_json::from_str(&text).with_context(|| format!("{flag}: a JSON object is expected"))
}

/// Any JSON value, from the same places.
pub(super) fn json(flag: &str, given: &str) -> anyhow::Result<Value> {
    let text = text(flag, given)?;
    serde_json::from_str(&text)
        .with_context(|| format!("{flag}: JSON is expected; a text has quotes of its own: '\"text\"'"))
}

fn text(flag: &str, given: &str) -> anyhow::Result<String> {
    match given.strip_prefix('@') {
        Some(path) => file(flag, Path::new(path)),
        None if given == "-" => file(flag, Path::new("-")),
        None => Ok(given.to_owned()),
    }
}

/// The text of a file; `-` is standard input.
pub(super) fn file(flag: &str, path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        return read.map(|_| text).with_context(|| format!("{flag}: reading standard input"));
    }
    std::fs::read_to_string(path).with_context(|| format!("{flag}: reading {}", path.display()))
}
