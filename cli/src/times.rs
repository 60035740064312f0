//! Times as people type and read them.

use ledgerline_event::{Invalid, Millis, parse_duration_ms};

/// 13 digits, RFC 3339, or how long ago: `90s`, `5m`, `2h`, `1d`.
pub(crate) fn parse(field: &'static str, text: &str, now: Millis) -> Result<Millis, Invalid> {
    match parse_duration_ms(text) {
        Some(ms) => Ok(now.minus(ms)),
        None => Millis::parse(field, text),
    }
}

/// A length of time in its two largest units.
pub(crate) fn in_words(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (large, small, rest) = match seconds {
        0 => return format!("{ms}ms"),
        1..60 => return format!("{seconds}s"),
        60..3_600 => (format!("{}m", seconds / 60), "s", seconds % 60),
        3_600..86_400 => (format!("{}h", seconds / 3_600), "m", seconds / 60 % 60),
        _ => (format!("{}d", seconds / 86_400), "h", seconds / 3_600 % 24),
    };
    if rest == 0 { large } else { format!("{large} {rest}{small}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ago_counts_back_from_now() {
        let now = Millis::try_from(1_767_453_739_640).unwrap();
        assert_eq!(parse("since", "2h", now).unwrap(), now.minus(7_200_000));
        assert_eq!(parse("since", "1767453739640", now).unwrap(), now);
        for bad in ["h", "2w", "", "ü", "-3m", "+3m"] {
            assert!(parse("since", bad, now).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_are_said_in_their_two_largest_units() {
        let said = [999, 59_000, 192_000, 300_000, 7_500_000, 90_000_000].map(in_words);
        assert_eq!(said, ["999ms", "59s", "3m 12s", "5m", "2h 5m", "1d 1h"]);
    }
}
