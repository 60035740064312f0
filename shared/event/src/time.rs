//! Milliseconds and seconds. Both are plain numbers in JSON; here each has a type, so that they cannot be confused.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// Epoch milliseconds of exactly 13 digits (the years 2001 to 2286), so that text sorts as time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Millis(u64);

/// Epoch seconds: `ttl`, `effectiveUntil`, `lastActivity.timestamp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seconds(u64);

impl Millis {
    /// The earliest moment that has 13 digits.
    pub const MIN: Self = Self(1_000_000_000_000);
    /// The latest moment that has 13 digits.
    pub const MAX: Self = Self(9_999_999_999_999);

    /// Checks that `value` has 13 digits; the error names `field`.
    pub fn new(field: &'static str, value: u64) -> Result<Self, Invalid> {
        Self::try_from(value).map_err(|reason| Invalid::new(field, reason))
    }

    /// Reads 13 digits or an RFC 3339 time; the error names `field`.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        if let Ok(number) = text.parse::<u64>() {
            return Self::new(field, number);
        }
        let time: jiff::Timestamp = text.parse().map_err(|_| {
            let reason = format!("`{text}` is neither 13 digits nor a time like 2026-05-25T14:23:11Z");
            Invalid::new(field, reason)
        })?;
        Self::new(field, u64::try_from(time.as_millisecond()).unwrap_or(0))
    }

    /// RFC 3339 in UTC, with milliseconds.
    pub fn to_rfc3339(self) -> String {
        let ms = i64::try_from(self.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(ms).map_or_else(|_| self.0.to_string(), |time| format!("{time:.3}"))
    }

    /// The system's clock as milliseconds, held within the 13 digits.
    pub fn from_system(time: SystemTime) -> Self {
        let ms = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        Self(u64::try_from(ms).unwrap_or(u64::MAX).clamp(Self::MIN.0, Self::MAX.0))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The same moment in whole seconds, rounded down.
    pub const fn seconds(self) -> Seconds {
        Seconds(self.0 / 1000)
    }

    /// `ms` later, held within the 13 digits.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms).min(Self::MAX.0))
    }

    /// `ms` earlier, held within the 13 digits.
    pub fn minus(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms).max(Self::MIN.0))
    }
}

impl TryFrom<u64> for Millis {
    type Error = String;

    fn try_from(value: u64) -> Result<Self, String> {
        if (Self::MIN.0..=Self::MAX.0).contains(&value) {
            return Ok(Self(value));
        }
        let digits = value.to_string().len();
        let hint = if digits == 10 { " (that looks like seconds)" } else { "" };
        Err(format!("{value} has {digits} digits; epoch milliseconds of 13 digits are expected{hint}"))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<Millis> for SystemTime {
    fn from(ms: Millis) -> Self {
        UNIX_EPOCH + Duration::from_millis(ms.0)
    }
}

impl Seconds {
    /// Epoch seconds.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `seconds` later.
    pub const fn plus(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_have_thirteen_digits() {
        assert_eq!(Millis::new("timestamp", 1_767_453_739_640).unwrap().get(), 1_767_453_739_640);
        let error = Millis::new("timestamp", 1_767_453_739).unwrap_err().to_string();
        assert_eq!(
            error,
            "timestamp: 1767453739 has 10 digits; epoch milliseconds of 13 digits are expected (that looks like seconds)"
        );
        assert!(Millis::new("timestamp", 10_000_000_000_000).is_err());
        assert!(serde_json::from_str::<Millis>("12").unwrap_err().to_string().contains("13 digits"));
    }

    #[test]
    fn times_are_read_as_digits_or_as_text() {
        let time = Millis::parse("since", "2026-01-03T15:22:19.640Z").unwrap();
        assert_eq!(time.get(), 1_767_453_739_640);
        assert_eq!(Millis::parse("since", "1767453739640").unwrap(), time);
        assert_eq!(time.to_rfc3339(), "2026-01-03T15:22:19.640Z");
        for text in ["yesterday", "176745373", "1960-01-01T00:00:00Z", ""] {
            assert!(Millis::parse("since", text).unwrap_err().to_string().starts_with("since: "), "{text}");
        }
    }

    #[test]
    fn arithmetic_never_leaves_the_thirteen_digits() {
        assert_eq!(Millis::MAX.plus(1), Millis::MAX);
        assert_eq!(Millis::MIN.minus(1), Millis::MIN);
    }
}
