//! What goes wrong in a workflow or in a step, and whether trying again may help.

use std::{fmt, time::Duration};

use ledgerline_event::Invalid;
use serde_json::{Map, Value};

/// The code of an error that says that a time ran out.
pub(crate) const TIMEOUT: &str = "timeout";
/// The code of what the code no longer waits for.
pub(crate) const ABANDONED: &str = "abandoned";
/// The code of an error that was a panic.
pub(crate) const PANIC: &str = "panic";

/// What a step or a workflow fails with.
///
/// Any error of the standard library's kind becomes a retryable one by `?`. (So this type is none
/// of them itself.)
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// What happened, for people.
    pub message: String,
    /// What happened, for programs.
    pub code: Option<String>,
    /// Whether trying again is of no use.
    pub fatal: bool,
    /// How long to wait before the next attempt, whatever the retry policy says.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// One that is not tried again.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: None, fatal: true, retry_after: None }
    }

    /// One that may be gone at the next attempt.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { fatal: false, ..Self::fatal(message) }
    }

    /// The same with a code.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// The same, to be tried again after `delay`.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Whether it has this code.
    pub fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    /// Whether a wait ran out of time.
    pub fn is_timeout(&self) -> bool {
        self.is(TIMEOUT)
    }

    /// What a log says of it. It failed for good, and is the same at every replay.
    pub(crate) fn from_log(data: &Map<String, Value>) -> Self {
        let text = |field: &str| data.get(field).and_then(Value::as_str);
        let error = Self::fatal(text("error").unwrap_or("failed, and the log does not say why"));
        Self { code: text("errorCode").map(str::to_owned), ..error }
    }

    /// As a log says it.
    pub(crate) fn to_log(&self) -> Map<String, Value> {
        let mut data = Map::from_iter([("error".to_owned(), Value::from(self.message.as_str()))]);
        if let Some(code) = &self.code {
            data.insert("errorCode".into(), Value::from(code.as_str()));
        }
        data
    }

    /// A value that its owner wrote wrongly.
    pub(crate) fn invalid(invalid: &Invalid) -> Self {
        Self::fatal(invalid.to_string()).code("bad_input")
    }

    /// What was thrown by a panic.
    pub(crate) fn panicked(thrown: &(dyn std::any::Any + Send)) -> Self {
        let text = thrown.downcast_ref::<&str>().copied();
        let text = text.or_else(|| thrown.downcast_ref::<String>().map(String::as_str));
        Self::retryable(format!("panicked: {}", text.unwrap_or("without a message"))).code(PANIC)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Many errors repeat their cause in their own text.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self::retryable(message)
    }
}
