//! Errors of workflows and steps, and whether another attempt may help.

use std::{fmt, time::Duration};

use serde_json::{Map, Value};

/// The code of the error of a wait whose time ran out, and the category of a task whose attempt ran too long.
pub const TIMEOUT: &str = "timeout";
/// The outcome of a wait, and the code of the error of a step, for which the code no longer waits.
pub const ABANDONED: &str = "abandoned";
/// The code of the error of a panic.
pub(crate) const PANIC: &str = "panic";

/// What a step or a workflow fails with.
///
/// `?` turns any [`std::error::Error`] into a retryable one. (Therefore this type does not implement that trait.)
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// What happened, in words.
    pub message: String,
    /// What happened, as a code for programs.
    pub code: Option<String>,
    /// Whether another attempt cannot help.
    pub fatal: bool,
    /// How long to pause before the next attempt, whatever the retry policy says.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// An error after which there is no other attempt.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: None, fatal: true, retry_after: None }
    }

    /// An error after which another attempt may succeed.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { fatal: false, ..Self::fatal(message) }
    }

    /// The same error with a code.
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// The same error; the next attempt begins after `delay`.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Whether it has this code.
    pub fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    /// Whether a wait ran out of time, or the last attempt of a task did.
    pub fn is_timeout(&self) -> bool {
        self.is(TIMEOUT)
    }

    /// Reads an error from a log. It is final, and the same at every replay.
    pub(crate) fn from_log(data: &Map<String, Value>) -> Self {
        let text = |field: &str| data.get(field).and_then(Value::as_str);
        let error = Self::fatal(text("error").unwrap_or("failed, and the log does not say why"));
        Self { code: text("errorCode").map(str::to_owned), ..error }
    }

    /// Writes the error for a log.
    pub(crate) fn to_log(&self) -> Map<String, Value> {
        let mut data = Map::from_iter([("error".to_owned(), Value::from(self.message.as_str()))]);
        if let Some(code) = &self.code {
            data.insert("errorCode".into(), Value::from(code.as_str()));
        }
        data
    }

    /// The error of a panic with the value `thrown`.
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
