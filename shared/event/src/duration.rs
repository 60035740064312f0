//! A length of time as people type it: `90s`, `5m`, `2h`, `1d`.

/// `90s`, `5m`, `2h` or `1d` in milliseconds; `None` for any other text.
pub fn parse_duration_ms(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit_ms = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    // `+3` is a number to Rust.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| digits).map(|count| count.saturating_mul(unit_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_digits_and_one_unit() {
        let parsed = ["90s", "5m", "2h", "1d"].map(parse_duration_ms);
        assert_eq!(parsed, [90_000, 300_000, 7_200_000, 86_400_000].map(Some));
        assert_eq!(parse_duration_ms("99999999999999999d"), Some(u64::MAX));
        for bad in ["h", "2w", "", "ü", "-3m", "+3m", "90"] {
            assert_eq!(parse_duration_ms(bad), None, "{bad}");
        }
    }
}
