//! Times as people type them.

use ledgerline_event::{Invalid, Millis};

/// 13 digits, RFC 3339, or how long ago: `90s`, `5m`, `2h`, `1d`.
pub(crate) fn parse(field: &'static str, text: &str, now: Millis) -> Result<Millis, Invalid> {
    let Some((number, unit)) = text.split_at_checked(text.len().saturating_sub(1)) else {
        return Millis::parse(field, text);
    };
    let unit_ms = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Millis::parse(field, text),
    };
    match number.parse::<u64>() {
        Ok(count) => Ok(now.minus(count.saturating_mul(unit_ms))),
        Err(_) => Millis::parse(field, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ago_counts_back_from_now() {
        let now = Millis::try_from(1_767_453_739_640).unwrap();
        assert_eq!(parse("since", "2h", now).unwrap(), now.minus(7_200_000));
        assert_eq!(parse("since", "1767453739640", now).unwrap(), now);
        for bad in ["h", "2w", "", "ü", "-3m"] {
            assert!(parse("since", bad, now).is_err(), "{bad}");
        }
    }
}
