//! Derives the error category of a failure from what the program wrote.
//!
//! The category decides whether the task is retried. The last line that contains a known word or HTTP status decides,
//! because most programs put their conclusion last; lines of a stack trace are skipped, because file names prove
//! nothing. Without a known word it is a `server-error`: another attempt costs little, and giving up a task for no
//! known reason costs much.

use ledgerline_event::catalogue::ErrorCategory;

/// Words of socket errors.
const NETWORK: [&str; 15] = [
    "etimedout",
    "econnrefused",
    "econnreset",
    "econnaborted",
    "enotfound",
    "ehostunreach",
    "enetunreach",
    "epipe",
    "eai_again",
    "socket hang up",
    "connection refused",
    "connection reset",
    "could not resolve",
    "name resolution",
    "network",
];
const RATE_LIMIT: [&str; 6] =
    ["rate limit", "rate-limit", "ratelimit", "rate_limit", "too many requests", "throttl"];
const AUTH: [&str; 10] = [
    "unauthorized",
    "unauthenticated",
    "forbidden",
    "invalid api key",
    "invalid_api_key",
    "access denied",
    "accessdenied",
    "permission denied",
    "invalid credentials",
    "authentication",
];
const TIMEOUT: [&str; 4] = ["timeout", "timed out", "time-out", "deadline exceeded"];
const SERVER_ERROR: [&str; 5] =
    ["server error", "service unavailable", "bad gateway", "overloaded", "temporarily unavailable"];
const PROGRAMMING: [&str; 10] = [
    "typeerror",
    "referenceerror",
    "syntaxerror",
    "nameerror",
    "attributeerror",
    "modulenotfounderror",
    "cannot find module",
    "command not found",
    "panicked at",
    "syntax error",
];
const VALIDATION: [&str; 6] =
    ["validation", "invalid", "schema", "malformed", "bad request", "unprocessable"];
/// Words before a number that make it an HTTP status.
const BEFORE_STATUS: [&str; 7] = ["http", "https", "status", "statuscode", "code", "error", "response"];
/// How many words before the number are checked: `HTTP/1.1 503` has two numbers between.
const STATUS_REACH: usize = 3;

/// The category of a failure of which only this text is known.
pub(super) fn classify_error(text: &str) -> ErrorCategory {
    text.lines().rev().find_map(category_of_line).unwrap_or(ErrorCategory::ServerError)
}

fn category_of_line(line: &str) -> Option<ErrorCategory> {
    let line = line.trim().to_lowercase();
    if line.starts_with("at ") || line.starts_with("file \"") {
        return None;
    }
    let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
    let status = status(&line);
    let is = |statuses: &[u16]| status.is_some_and(|status| statuses.contains(&status));
    // The more specific words first: `invalid api key` is also invalid, a network timeout also a timeout.
    let category = if has(&RATE_LIMIT) || is(&[429]) {
        ErrorCategory::RateLimit
    } else if has(&AUTH) || is(&[401, 403]) {
        ErrorCategory::Auth
    } else if is(&[408, 504]) {
        ErrorCategory::Timeout
    } else if has(&SERVER_ERROR) || status.is_some_and(|status| status >= 500) {
        ErrorCategory::ServerError
    } else if has(&PROGRAMMING) {
        ErrorCategory::Programming
    } else if has(&NETWORK) {
        ErrorCategory::Network
    } else if has(&TIMEOUT) {
        ErrorCategory::Timeout
    } else if has(&VALIDATION) || is(&[400, 404, 409, 422]) {
        ErrorCategory::Validation
    } else {
        return None;
    };
    Some(category)
}

/// An HTTP status, if a word shortly before it says that it is one: `500 rows` is no error.
fn status(line: &str) -> Option<u16> {
    let words: Vec<&str> = line
        .split(|character: char| !character.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    words.iter().enumerate().find_map(|(position, word)| {
        let number =
            word.parse::<u16>().ok().filter(|number| word.len() == 3 && (400..600).contains(number))?;
        let before = &words[position.saturating_sub(STATUS_REACH)..position];
        before.iter().any(|word| BEFORE_STATUS.contains(word)).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorCategory::{Auth, Network, Programming, RateLimit, ServerError, Timeout, Validation};

    #[test]
    fn messages_of_common_programs_get_the_expected_category() {
        let cases = [
            ("Error: connect ETIMEDOUT 10.0.0.1:443", Network),
            ("curl: (6) Could not resolve host: example.test", Network),
            ("socket hang up", Network),
            ("Error: the query timed out after 30 s", Timeout),
            ("HTTP/1.1 504 Gateway", Timeout),
            ("Request failed with status code 429", RateLimit),
            ("anthropic.RateLimitError: slow down", RateLimit),
            ("HTTP/1.1 503 Service Unavailable", ServerError),
            ("Error: Request failed with status code 500", ServerError),
            ("Invalid API key", Auth),
            ("status: 401", Auth),
            ("403 Forbidden", Auth),
            ("ValidationError: `price` must be a number", Validation),
            ("error 422: no such field", Validation),
            ("TypeError: Cannot read properties of undefined", Programming),
            ("thread 'main' panicked at src/main.rs:3:5", Programming),
            ("sh: 1: nonsense: command not found", Programming),
            ("something else went wrong", ServerError),
            ("", ServerError),
        ];
        for (text, category) in cases {
            assert_eq!(classify_error(text), category, "{text}");
        }
    }

    #[test]
    fn a_number_is_no_status_unless_a_word_before_it_says_so() {
        assert_eq!(classify_error("wrote 429 rows, read 401"), ServerError);
        assert_eq!(status("wrote 503 rows"), None);
        assert_eq!(status("error 5034"), None);
    }

    #[test]
    fn the_last_line_with_a_known_word_decides_and_stack_traces_are_skipped() {
        let text = "warning: invalid colour, using black\nError: connect ECONNREFUSED\n    at validate (schema.js:3)\nbye";
        assert_eq!(classify_error(text), Network);
        let python = "  File \"/app/network.py\", line 3, in <module>\nKeyError: 'price'";
        assert_eq!(classify_error(python), ServerError);
    }
}
