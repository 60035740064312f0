//! Names are the parts of keys, between two `#`: entity ids, tenants, apps, types and event ids. One rule for all of them
//! keeps every key parseable.

use std::{fmt, ops::Deref};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// 1 to 128 bytes of visible characters without `#`; spaces neither begin nor end it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks `value`; the error names `field`.
    pub fn new(field: &'static str, value: impl Into<String>) -> Result<Self, Invalid> {
        let value = value.into();
        match fault(&value).or_else(|| unfit_for_queues(&value)) {
            None => Ok(Self(value)),
            Some(reason) => Err(Invalid::new(field, reason)),
        }
    }

    /// A name in a stored record: an earlier version may have accepted names that [`new`](Self::new) refuses.
    pub fn stored(field: &'static str, value: impl Into<String>) -> Result<Self, Invalid> {
        Self::try_from(value.into()).map_err(|reason| Invalid::new(field, reason))
    }

    /// Skips the check, for ids that this crate makes and that cannot break the rule.
    pub(crate) fn trusted(value: String) -> Self {
        debug_assert!(fault(&value).is_none(), "{value:?}");
        Self(value)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn fault(value: &str) -> Option<String> {
    if value.is_empty() {
        return Some("is empty; 1 to 128 bytes are expected".into());
    }
    if value.len() > Name::MAX_BYTES {
        return Some(format!("has {} bytes; at most {} are allowed", value.len(), Name::MAX_BYTES));
    }
    if value.contains('#') {
        return Some(format!("`{value}` contains '#', which separates the parts of a key"));
    }
    if value.trim() != value {
        return Some(format!("{value:?} begins or ends with a space"));
    }
    let hidden = |c: char| c.is_control() || (c.is_whitespace() && c != ' ') || is_format(c);
    value.chars().find(|c| hidden(*c)).map(|c| {
        format!("contains the invisible character {}; only visible ones are allowed", c.escape_unicode())
    })
}

/// SQS refuses messages with one of these two characters, and messages carry names.
fn unfit_for_queues(value: &str) -> Option<String> {
    value
        .chars()
        .find(|c| matches!(c, '\u{fffe}' | '\u{ffff}'))
        .map(|c| format!("contains {}, which is no character; queues do not carry it", c.escape_unicode()))
}

/// Zero-width and direction-changing characters: two names that look alike must be alike.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(value: String) -> Result<Self, String> {
        match fault(&value) {
            None => Ok(Self(value)),
            Some(reason) => Err(reason),
        }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_is_wrong_with_it_and_where() {
        let cases = [
            ("", "entityId: is empty"),
            ("a#b", "entityId: `a#b` contains '#'"),
            (" a", "begins or ends with a space"),
            ("a\tb", "invisible character \\u{9}"),
            ("a\u{200b}b", "invisible character \\u{200b}"),
            ("a\u{fffe}b", "contains \\u{fffe}, which is no character"),
            ("a\u{ffff}b", "contains \\u{ffff}, which is no character"),
        ];
        for (value, expected) in cases {
            let error = Name::new("entityId", value).unwrap_err().to_string();
            assert!(error.contains(expected), "{value:?}: {error}");
        }
        assert!(Name::new("tenantId", "x".repeat(129)).unwrap_err().to_string().contains("129 bytes"));
    }

    #[test]
    fn what_an_earlier_version_stored_can_still_be_read() {
        assert_eq!(Name::stored("runId", "a\u{fffe}b").unwrap().as_str(), "a\u{fffe}b");
        assert!(serde_json::from_str::<Name>("\"a\u{ffff}b\"").is_ok());
        assert!(Name::stored("runId", "a#b").is_err());
    }

    #[test]
    fn ordinary_names_pass() {
        for value in ["req-123", "Task Processing Started", "job:task", "größe", "a/b..c", &"x".repeat(128)]
        {
            assert_eq!(Name::new("entityId", value).unwrap().as_str(), value);
        }
    }
}
