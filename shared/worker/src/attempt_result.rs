//! The result of an attempt: the exit status of the process and the files of the task decide whether the task has
//! completed, has failed, or is retried.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use ledgerline_event::catalogue::{ErrorCategory, Usage};
use ledgerline_jobs::TaskEnd;
use serde_json::Value;

use super::{
    error_category::classify_error,
    process::{EndReason, ProcessEnd},
    task_files::TaskFiles,
};

/// The longest error text in an event.
const MAX_ERROR: usize = 2048;
/// The exit codes of a shell for a command that it cannot run, or cannot find.
const NOT_RUNNABLE: [i32; 2] = [126, 127];

/// What the worker does with a task after an attempt.
#[derive(Debug)]
pub(super) enum AttemptResult {
    /// The task has ended.
    Ended(TaskEnd),
    /// It failed, and another attempt may succeed.
    Retry { error: String, category: ErrorCategory },
    /// This worker cannot run it now, through no fault of the task; the attempt does not count.
    Abandoned { retry_after: Duration },
    /// Another worker may hold the lease; the attempt does not count.
    LeaseLost,
}

impl AttemptResult {
    /// Decides from how the process ended and what it wrote.
    pub(super) fn of_process(end: ProcessEnd, files: &TaskFiles, timeout: Duration) -> Self {
        match end.reason {
            EndReason::Exited(status) if status.success() => match files.output() {
                Ok(output) => Self::Ended(TaskEnd::Completed {
                    usage: usage(&output),
                    output,
                    duration_ms: millis(end.ran),
                    exit_code: 0,
                }),
                Err(problem) => Self::failed(problem, ErrorCategory::Validation),
            },
            EndReason::Exited(status) => {
                let (error, category) = failure(status, &end.stderr, files);
                Self::retry_or_fail(error, category)
            }
            EndReason::TimedOut(signal) => Self::Ended(TaskEnd::TimedOut {
                timeout_ms: millis(timeout),
                elapsed_ms: millis(end.ran),
                signal,
            }),
            EndReason::Stopped => Self::Abandoned { retry_after: Duration::ZERO },
            EndReason::Unknown(error) => Self::retry_or_fail(
                format!("the system did not report how the process ended: {error}"),
                ErrorCategory::ServerError,
            ),
        }
    }

    /// The task has failed, and no other attempt would succeed.
    pub(super) fn failed(error: String, category: ErrorCategory) -> Self {
        Self::Ended(TaskEnd::Failed { error, category })
    }

    fn retry_or_fail(error: String, category: ErrorCategory) -> Self {
        match category.is_retryable() {
            true => Self::Retry { error, category },
            false => Self::failed(error, category),
        }
    }
}

pub(super) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// The error and its category: what the task reported, else what it wrote to standard error, else its exit status.
fn failure(status: ExitStatus, stderr: &str, files: &TaskFiles) -> (String, ErrorCategory) {
    let (error, category) = match files.error() {
        Some(reported) if reported.error.is_empty() => (stderr_or_status(stderr, status), reported.category),
        Some(reported) => (reported.error, reported.category),
        None => (stderr_or_status(stderr, status), category_of_status(status)),
    };
    let category = category.unwrap_or_else(|| classify_error(&error));
    (shortened(&error), category)
}

/// The error category that the exit status alone implies.
fn category_of_status(status: ExitStatus) -> Option<ErrorCategory> {
    match status.code() {
        // A signal ended it, from an operator or for lack of memory: the next attempt may succeed.
        None => Some(ErrorCategory::ServerError),
        Some(code) if NOT_RUNNABLE.contains(&code) => Some(ErrorCategory::Programming),
        Some(_) => None,
    }
}

fn stderr_or_status(stderr: &str, status: ExitStatus) -> String {
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

/// The field `usage` of an output, if it is one.
fn usage(output: &Value) -> Option<Usage> {
    serde_json::from_value(output.get("usage")?.clone()).ok()
}

fn shortened(text: &str) -> String {
    match text.len() > MAX_ERROR {
        false => text.to_owned(),
        true => format!("{}…", &text[..text.floor_char_boundary(MAX_ERROR)]),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ledgerline_event::catalogue::Signal;
    use serde_json::json;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn result(raw_status: i32, stderr: &str, files: &TaskFiles) -> AttemptResult {
        let reason = EndReason::Exited(ExitStatus::from_raw(raw_status));
        let end = ProcessEnd { reason, ran: Duration::from_secs(3), stderr: stderr.into() };
        AttemptResult::of_process(end, files, TIMEOUT)
    }

    fn failed(result: AttemptResult) -> (String, ErrorCategory) {
        match result {
            AttemptResult::Retry { error, category } if category.is_retryable() => (error, category),
            AttemptResult::Ended(TaskEnd::Failed { error, category }) if !category.is_retryable() => {
                (error, category)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn exit_code_0_completes_with_the_output_and_its_usage() {
        let files = TaskFiles::new().unwrap();
        fs::write(files.output_file(), r#"{"n": 1, "usage": {"inputTokens": 5, "images": 2}}"#).unwrap();
        let AttemptResult::Ended(TaskEnd::Completed { output, usage, duration_ms, exit_code }) =
            result(0, "a warning", &files)
        else {
            panic!()
        };
        assert_eq!((output["n"].clone(), duration_ms, exit_code), (json!(1), 3_000, 0));
        assert_eq!(serde_json::to_value(usage).unwrap(), json!({"inputTokens": 5, "images": 2}));
        fs::write(files.output_file(), r#"{"usage": "much"}"#).unwrap();
        let completed = result(0, "", &files);
        assert!(matches!(completed, AttemptResult::Ended(TaskEnd::Completed { usage: None, .. })));
    }

    #[test]
    fn an_output_that_is_no_json_fails_the_task_without_a_retry() {
        let files = TaskFiles::new().unwrap();
        fs::write(files.output_file(), "done").unwrap();
        let (error, category) = failed(result(0, "", &files));
        assert!(error.contains("no JSON"));
        assert_eq!(category, ErrorCategory::Validation);
    }

    #[test]
    fn the_error_file_takes_precedence_over_standard_error_and_exit_status() {
        let files = TaskFiles::new().unwrap();
        fs::write(files.error_file(), r#"{"error": "too slow", "category": "timeout"}"#).unwrap();
        let reported = failed(result(127 << 8, "TypeError", &files));
        assert_eq!(reported, ("too slow".into(), ErrorCategory::Timeout));
        fs::write(files.error_file(), r#"{"error": "Invalid API key"}"#).unwrap();
        assert_eq!(failed(result(1 << 8, "", &files)).1, ErrorCategory::Auth);
    }

    #[test]
    fn without_an_error_file_the_exit_status_and_standard_error_decide() {
        let files = TaskFiles::new().unwrap();
        assert_eq!(failed(result(127 << 8, "sh: nope: not found", &files)).1, ErrorCategory::Programming);
        assert_eq!(failed(result(1 << 8, "connect ECONNRESET", &files)).1, ErrorCategory::Network);
        let (error, category) = failed(result(9, "TypeError", &files));
        assert!(error.starts_with("the command was killed by SIGKILL") && error.ends_with("TypeError"));
        assert_eq!(category, ErrorCategory::ServerError);
        let (error, category) = failed(result(3 << 8, "", &files));
        assert_eq!(error, "the command ended with exit code 3 and wrote nothing to standard error");
        assert_eq!(category, ErrorCategory::ServerError);
    }

    #[test]
    fn a_long_error_is_cut_between_characters() {
        let files = TaskFiles::new().unwrap();
        fs::write(files.error_file(), "ü".repeat(5_000)).unwrap();
        let (error, _) = failed(result(1 << 8, "", &files));
        assert!(error.len() <= MAX_ERROR + 3 && error.ends_with("ü…"));
    }

    #[test]
    fn a_timeout_ends_the_task_and_a_stop_abandons_the_attempt() {
        let files = TaskFiles::new().unwrap();
        let result = |reason| {
            let end = ProcessEnd { reason, ran: Duration::from_secs(61), stderr: String::new() };
            AttemptResult::of_process(end, &files, TIMEOUT)
        };
        let AttemptResult::Ended(TaskEnd::TimedOut { timeout_ms, elapsed_ms, signal }) =
            result(EndReason::TimedOut(Signal::Sigterm))
        else {
            panic!()
        };
        assert_eq!((timeout_ms, elapsed_ms, signal), (60_000, 61_000, Signal::Sigterm));
        let abandoned = result(EndReason::Stopped);
        assert!(matches!(abandoned, AttemptResult::Abandoned { retry_after: Duration::ZERO }));
        let unknown = result(EndReason::Unknown(std::io::Error::other("no such process")));
        assert!(matches!(unknown, AttemptResult::Retry { category: ErrorCategory::ServerError, .. }));
    }
}
