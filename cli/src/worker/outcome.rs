//! What the end of a process means for its task.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use ledgerline_event::catalogue::{ErrorCategory, Signal, Usage};
use serde_json::Value;

use super::{
    child::{Ended, How},
    classify::classify,
    exchange::Exchange,
};

/// The longest error text in an event.
const MAX_ERROR: usize = 2048;
/// What a shell answers for a command that it cannot run, or cannot find.
const NOT_RUNNABLE: [i32; 2] = [126, 127];

/// How an attempt ended.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// Exit code 0.
    Completed { output: Value, usage: Option<Usage>, ran: Duration },
    /// Any other end that is the task's own.
    Failed { error: String, category: ErrorCategory },
    /// The worker killed it.
    TimedOut { ran: Duration, signal: Signal },
    /// The worker gave it up.
    Stopped,
}

/// Reads what the process left and decides.
pub(super) fn judge(ended: Ended, exchange: &Exchange) -> Outcome {
    match ended.how {
        How::Exited(status) if status.success() => match exchange.output() {
            Ok(output) => Outcome::Completed { usage: usage(&output), output, ran: ended.ran },
            Err(problem) => Outcome::Failed { error: problem, category: ErrorCategory::Validation },
        },
        How::Exited(status) => failure(status, &ended.stderr, exchange),
        How::TimedOut(signal) => Outcome::TimedOut { ran: ended.ran, signal },
        How::Stopped => Outcome::Stopped,
        How::Lost(error) => {
            let error = format!("nobody knows how the process ended: {error}");
            Outcome::Failed { error, category: ErrorCategory::ServerError }
        }
    }
}

fn failure(status: ExitStatus, stderr: &str, exchange: &Exchange) -> Outcome {
    let (error, category) = match exchange.error() {
        Some(reported) if reported.error.is_empty() => (said_or(stderr, status), reported.category),
        Some(reported) => (reported.error, reported.category),
        None => (said_or(stderr, status), of_status(status)),
    };
    let category = category.unwrap_or_else(|| classify(&error));
    Outcome::Failed { error: beginning(&error), category }
}

/// The error category that the exit status alone implies.
fn of_status(status: ExitStatus) -> Option<ErrorCategory> {
    match status.code() {
        // A signal ended it, from an operator or for lack of memory: the next attempt may succeed.
        None => Some(ErrorCategory::ServerError),
        Some(code) if NOT_RUNNABLE.contains(&code) => Some(ErrorCategory::Programming),
        Some(_) => None,
    }
}

fn said_or(stderr: &str, status: ExitStatus) -> String {
    let end = match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command ended with exit code {code}"),
        (None, Some(9)) => "the command was killed by SIGKILL; was there enough memory?".into(),
        (None, signal) => format!("the command was ended by signal {}", signal.unwrap_or_default()),
    };
    match (stderr.is_empty(), status.code()) {
        (true, _) => format!("{end} and wrote nothing to standard error"),
        (false, Some(_)) => stderr.to_owned(),
        (false, None) => format!("{end}\n{stderr}"),
    }
}

/// An output may say what it cost.
fn usage(output: &Value) -> Option<Usage> {
    serde_json::from_value(output.get("usage")?.clone()).ok()
}

fn beginning(text: &str) -> String {
    match text.len() > MAX_ERROR {
        false => text.to_owned(),
        true => format!("{}…", &text[..text.floor_char_boundary(MAX_ERROR)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    fn ended(raw_status: i32, stderr: &str) -> Ended {
        let how = How::Exited(ExitStatus::from_raw(raw_status));
        Ended { how, ran: Duration::from_secs(3), stderr: stderr.into() }
    }

    fn failed(outcome: Outcome) -> (String, ErrorCategory) {
        let Outcome::Failed { error, category } = outcome else { panic!("{outcome:?}") };
        (error, category)
    }

    #[test]
    fn exit_code_0_completes_with_the_output_and_its_usage() {
        let exchange = Exchange::new().unwrap();
        fs::write(exchange.output_file(), r#"{"n": 1, "usage": {"inputTokens": 5, "images": 2}}"#).unwrap();
        let Outcome::Completed { output, usage, ran } = judge(ended(0, "a warning"), &exchange) else {
            panic!()
        };
        assert_eq!((output["n"].clone(), ran), (json!(1), Duration::from_secs(3)));
        assert_eq!(serde_json::to_value(usage).unwrap(), json!({"inputTokens": 5, "images": 2}));
        fs::write(exchange.output_file(), r#"{"usage": "much"}"#).unwrap();
        assert!(matches!(judge(ended(0, ""), &exchange), Outcome::Completed { usage: None, .. }));
    }

    #[test]
    fn an_output_that_is_no_json_is_a_failure_that_no_retry_mends() {
        let exchange = Exchange::new().unwrap();
        fs::write(exchange.output_file(), "done").unwrap();
        let (error, category) = failed(judge(ended(0, ""), &exchange));
        assert!(error.contains("no JSON"));
        assert_eq!(category, ErrorCategory::Validation);
    }

    #[test]
    fn what_the_task_reports_comes_before_what_it_wrote() {
        let exchange = Exchange::new().unwrap();
        fs::write(exchange.error_file(), r#"{"error": "too slow", "category": "timeout"}"#).unwrap();
        let reported = failed(judge(ended(127 << 8, "TypeError"), &exchange));
        assert_eq!(reported, ("too slow".into(), ErrorCategory::Timeout));
        fs::write(exchange.error_file(), r#"{"error": "Invalid API key"}"#).unwrap();
        assert_eq!(failed(judge(ended(1 << 8, ""), &exchange)).1, ErrorCategory::Auth);
    }

    #[test]
    fn without_a_report_the_status_and_the_last_words_decide() {
        let exchange = Exchange::new().unwrap();
        assert_eq!(
            failed(judge(ended(127 << 8, "sh: nope: not found"), &exchange)).1,
            ErrorCategory::Programming
        );
        assert_eq!(failed(judge(ended(1 << 8, "connect ECONNRESET"), &exchange)).1, ErrorCategory::Network);
        let (error, category) = failed(judge(ended(9, "TypeError"), &exchange));
        assert!(error.starts_with("the command was killed by SIGKILL") && error.ends_with("TypeError"));
        assert_eq!(category, ErrorCategory::ServerError);
        let (error, category) = failed(judge(ended(3 << 8, ""), &exchange));
        assert_eq!(error, "the command ended with exit code 3 and wrote nothing to standard error");
        assert_eq!(category, ErrorCategory::ServerError);
    }

    #[test]
    fn a_long_report_is_cut_between_characters() {
        let exchange = Exchange::new().unwrap();
        fs::write(exchange.error_file(), "ü".repeat(5_000)).unwrap();
        let (error, _) = failed(judge(ended(1 << 8, ""), &exchange));
        assert!(error.len() <= MAX_ERROR + 3 && error.ends_with("ü…"));
    }
}
