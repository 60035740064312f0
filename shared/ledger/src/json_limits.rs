//! What JSON can say and DynamoDB cannot hold, found before an event is sent: afterwards it
//! would be accepted by the bus and refused by the table.

/// DynamoDB holds 32 levels; the item itself is one.
const MAX_NESTING: usize = 30;
/// DynamoDB's numbers end here, in both directions.
const LARGEST: f64 = 9.9e125;
const SMALLEST: f64 = 1e-130;

/// Looks once over well-formed JSON.
pub fn check(json: &str) -> Result<(), String> {
    let bytes = json.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        let began = at;
        match bytes[at] {
            b'"' => {
                at = end_of_text(bytes, at + 1);
                let empty = at == began + 2;
                let is_key = bytes[at..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
                if empty && is_key {
                    return Err("has a field without a name, which DynamoDB does not hold".into());
                }
            }
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_NESTING {
                    return Err(format!(
                        "nested deeper than {MAX_NESTING} levels, which DynamoDB does not hold"
                    ));
                }
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                while at < bytes.len() && matches!(bytes[at], b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
                {
                    at += 1;
                }
                check_number(&json[began..at])?;
            }
            _ => at += 1,
        }
    }
    Ok(())
}

/// The place after the closing quote.
fn end_of_text(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    at.min(bytes.len())
}

fn check_number(text: &str) -> Result<(), String> {
    if text.len() < 20 && !text.contains(['e', 'E']) {
        return Ok(());
    }
    let size = text.parse::<f64>().map_or(f64::INFINITY, f64::abs);
    if size == 0.0 || (SMALLEST..=LARGEST).contains(&size) {
        return Ok(());
    }
    Err(format!("has the number {text}, which is outside of what DynamoDB holds (1e-130 to 9.9e125)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dynamodb_holds_passes() {
        let deep = format!("{}1{}", "[".repeat(30), "]".repeat(30));
        for json in [
            "{}",
            r#"{"a":"","b":"\\","c":[{}],"d":-0.0,"e":1e21,"f":18446744073709551615,"g":"\"\":"}"#,
            r#"{"text":"1.797e308 [[[["}"#,
            &deep,
        ] {
            assert_eq!(check(json), Ok(()), "{json}");
        }
    }

    #[test]
    fn what_it_does_not_hold_is_named() {
        let deep = "[".repeat(31);
        for (json, expected) in [
            (r#"{"":1}"#, "a field without a name"),
            (r#"{"m":{"" : {}}}"#, "a field without a name"),
            (r#"{"n":1.797e308}"#, "the number 1.797e308"),
            (r#"{"n":5e-324}"#, "the number 5e-324"),
            (&deep, "nested deeper than 30 levels"),
        ] {
            let error = check(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
