//! What is known of a step: by the log, and by this process, which may be ahead of it.

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEventType};
use serde_json::Value;

use super::{
    Pulse,
    command::Facts,
    consumer::Answer,
    draft::{draft_error, draft_with},
    later,
};
use crate::{Error, Retry, VISIBLE_AFTER_MS, error::ABANDONED};

/// A step, as the log and this process know it.
pub(crate) struct StepRecord {
    name: String,
    input: Option<Value>,
    log: InLog,
    /// The last attempt that the log knows.
    attempt: u32,
    /// How many attempts failed, by the log. Those that a crash cut off do not count.
    failures: u32,
    retry_at: Option<Millis>,
    here: Here,
    /// For the future that waits for it.
    result: Option<Result<Value, Error>>,
    /// How many random numbers the present attempt has drawn.
    pub(crate) drawn: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InLog {
    Unknown,
    Pending,
    Running,
    Ended,
}

enum Here {
    Idle,
    Running { attempt: u32, since: Millis },
    Finished { attempt: u32, end: End },
}

enum End {
    Completed(Value),
    Failed(Error),
    Retrying(Error, Millis),
}

/// What the future of a step is to do next.
pub(crate) enum Turn {
    /// Nothing: the log or the time has to bring something.
    Wait,
    /// Begin an attempt.
    Start,
    /// Go on with the attempt that was begun.
    Run,
    /// Return this.
    Return(Result<Value, Error>),
}

impl StepRecord {
    pub(crate) fn new(name: String, input: Option<Value>) -> Self {
        Self {
            name,
            input,
            log: InLog::Unknown,
            attempt: 0,
            failures: 0,
            retry_at: None,
            here: Here::Idle,
            result: None,
            drawn: 0,
        }
    }

    pub(crate) fn describe(&self) -> String {
        describe(&self.name)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.result.is_some()
    }

    pub(crate) fn answer(&mut self, event: &mut LogEvent) -> Answer {
        let data = &mut event.event_data;
        match (self.log, event.event_type) {
            (InLog::Unknown, RunEventType::StepCreated) => {
                if data.get("stepName").and_then(Value::as_str) != Some(self.name.as_str()) {
                    return Answer::NotConsumed;
                }
                self.log = InLog::Pending;
                self.input = None;
                Answer::Consumed
            }
            (InLog::Pending | InLog::Running, RunEventType::StepStarted) => {
                let attempt = data.get("attempt").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
                self.attempt = attempt.unwrap_or(0).max(self.attempt.saturating_add(1));
                self.log = InLog::Running;
                self.retry_at = None;
                Answer::Consumed
            }
            (InLog::Running, RunEventType::StepRetrying) => {
                self.log = InLog::Pending;
                self.failures = self.failures.saturating_add(1);
                self.retry_at = data.get("retryAfter").and_then(millis);
                // A result that another runner does not have yet is still one.
                if matches!(self.here, Here::Finished { end: End::Failed(_) | End::Retrying(..), .. }) {
                    self.here = Here::Idle;
                }
                Answer::Consumed
            }
            (InLog::Running, RunEventType::StepCompleted) => {
                self.end(Some(Ok(data.remove("result").unwrap_or_default())))
            }
            (InLog::Pending | InLog::Running, RunEventType::StepFailed) => {
                let error = Error::from_log(data);
                // It was closed because the run ends: the code has nothing to learn from that.
                self.end((!error.is(ABANDONED)).then_some(Err(error)))
            }
            _ => Answer::NotConsumed,
        }
    }

    fn end(&mut self, result: Option<Result<Value, Error>>) -> Answer {
        self.log = InLog::Ended;
        self.here = Here::Idle;
        self.result = result;
        Answer::Finished
    }

    /// What its future is to do.
    pub(crate) fn turn(&mut self, Pulse { live, clock }: Pulse) -> Turn {
        if let Some(result) = self.result.take() {
            return Turn::Return(result);
        }
        match self.here {
            Here::Running { .. } => Turn::Run,
            Here::Idle if live && self.starts_at().is_some_and(|at| at <= clock) => {
                self.here = Here::Running { attempt: self.attempt.saturating_add(1), since: clock };
                self.drawn = 0;
                Turn::Start
            }
            Here::Idle | Here::Finished { .. } => Turn::Wait,
        }
    }

    fn starts_at(&self) -> Option<Millis> {
        match (self.log, &self.here) {
            (InLog::Ended, _) | (_, Here::Running { .. } | Here::Finished { .. }) => None,
            (_, Here::Idle) => Some(self.retry_at.unwrap_or(Millis::MIN)),
        }
    }

    /// The attempt that ran here has come to its end.
    pub(crate) fn finish(&mut self, result: Result<Value, Error>, retry: &Retry, clock: Millis) {
        let Here::Running { attempt, .. } = self.here else { return };
        let end = match result {
            Ok(result) => End::Completed(result),
            Err(error) => match retry.rest(self.failures.saturating_add(1), &error) {
                Some(rest) => End::Retrying(error, later(clock, rest)),
                None => End::Failed(error),
            },
        };
        self.here = Here::Finished { attempt, end };
    }

    pub(crate) fn facts(&self, abandoned: bool) -> Facts {
        let open = matches!(self.log, InLog::Pending | InLog::Running);
        if abandoned {
            return Facts { wanting: open, open, ..Facts::default() };
        }
        Facts {
            open,
            wanting: matches!(self.here, Here::Finished { .. }),
            wanting_at: match self.here {
                Here::Running { attempt, since } if !self.knows(attempt) => {
                    Some(since.plus(VISIBLE_AFTER_MS))
                }
                _ => None,
            },
            starting_at: self.starts_at(),
            running: matches!(self.here, Here::Running { .. }),
            has_unread: false,
        }
    }

    /// Whether the log has it that this attempt runs.
    fn knows(&self, attempt: u32) -> bool {
        self.log == InLog::Running && self.attempt >= attempt
    }

    pub(crate) fn drafts(&self, id: &Name, drafts: &mut Vec<LogDraft>) {
        let attempt = match self.here {
            Here::Idle => return,
            Here::Running { attempt, .. } | Here::Finished { attempt, .. } => attempt,
        };
        if self.log == InLog::Unknown {
            let mut created =
                draft_with(RunEventType::StepCreated, id, [("stepName", self.name.as_str().into())]);
            created.event_data.extend(self.input.clone().map(|input| ("input".to_owned(), input)));
            drafts.push(created);
        }
        if !self.knows(attempt) {
            let attempt = attempt.max(self.attempt.saturating_add(1));
            drafts.push(draft_with(RunEventType::StepStarted, id, [("attempt", attempt.into())]));
        }
        let Here::Finished { end, .. } = &self.here else { return };
        drafts.push(match end {
            End::Completed(result) => {
                draft_with(RunEventType::StepCompleted, id, [("result", result.clone())])
            }
            End::Failed(error) => draft_error(RunEventType::StepFailed, id, error),
            End::Retrying(error, at) => {
                let mut retrying = draft_error(RunEventType::StepRetrying, id, error);
                retrying.event_data.insert("retryAfter".into(), at.get().into());
                retrying
            }
        });
    }
}

/// How people are told of a step.
pub(crate) fn describe(name: &str) -> String {
    format!("step `{name}`")
}

/// A time in a log.
pub(crate) fn millis(value: &Value) -> Option<Millis> {
    value.as_u64().and_then(|ms| Millis::try_from(ms).ok())
}
