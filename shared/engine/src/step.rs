//! A step, as the log knows it and as this process knows it, which may be ahead of the log.

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEventType};
use serde_json::Value;

use crate::{
    Error, Retry, VISIBLE_AFTER_MS,
    command::{CommandIndex, Interest},
    draft::{draft_error, draft_with, millis},
    engine::{Progress, later},
    error::ABANDONED,
    event_router::Answer,
};

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
    local: LocalAttempt,
    /// Its end by the log, for the future that waits for it.
    result: Option<Result<Value, Error>>,
    /// How many random numbers and ids the present attempt has drawn.
    pub(crate) draws: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InLog {
    Unknown,
    Pending,
    Running,
    Ended,
}

/// The attempt in this process.
enum LocalAttempt {
    None,
    Running {
        attempt: u32,
        since: Millis,
    },
    /// It has ended, and the log does not have its end yet.
    Finished {
        attempt: u32,
        end: AttemptEnd,
    },
}

enum AttemptEnd {
    Completed(Value),
    Failed(Error),
    Retrying(Error, Millis),
}

/// What the future of a step does next.
pub enum StepTurn {
    /// Wait: the log or the time has to bring something.
    Wait,
    /// Begin an attempt.
    Start,
    /// Poll the attempt that was begun.
    Run,
    /// Return this result.
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
            local: LocalAttempt::None,
            result: None,
            draws: 0,
        }
    }

    pub(crate) fn describe(&self) -> String {
        describe(&self.name)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.result.is_some()
    }

    pub(crate) fn accept(&mut self, event: &mut LogEvent) -> Answer {
        let data = &mut event.event_data;
        match (self.log, event.event_type) {
            (InLog::Unknown, RunEventType::StepCreated) => {
                if data.get("stepName").and_then(Value::as_str) != Some(self.name.as_str()) {
                    return Answer::Rejected;
                }
                self.log = InLog::Pending;
                self.input = None;
                Answer::Accepted
            }
            (InLog::Pending | InLog::Running, RunEventType::StepStarted) => {
                let attempt = data.get("attempt").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
                self.attempt = attempt.unwrap_or(0).max(self.attempt.saturating_add(1));
                self.log = InLog::Running;
                self.retry_at = None;
                Answer::Accepted
            }
            (InLog::Running, RunEventType::StepRetrying) => {
                self.log = InLog::Pending;
                self.failures = self.failures.saturating_add(1);
                self.retry_at = data.get("retryAfter").and_then(millis);
                // A failure that the log does not have is replaced by the one that it has; a result is kept.
                if matches!(
                    self.local,
                    LocalAttempt::Finished { end: AttemptEnd::Failed(_) | AttemptEnd::Retrying(..), .. }
                ) {
                    self.local = LocalAttempt::None;
                }
                Answer::Accepted
            }
            (InLog::Running, RunEventType::StepCompleted) => {
                self.end(Some(Ok(data.remove("result").unwrap_or_default())))
            }
            (InLog::Pending | InLog::Running, RunEventType::StepFailed) => {
                let error = Error::from_log(data);
                // The end of the run closed it: the code does not learn of that.
                self.end((!error.is(ABANDONED)).then_some(Err(error)))
            }
            _ => Answer::Rejected,
        }
    }

    fn end(&mut self, result: Option<Result<Value, Error>>) -> Answer {
        self.log = InLog::Ended;
        self.local = LocalAttempt::None;
        self.result = result;
        Answer::AcceptedLast
    }

    /// What its future is to do.
    pub(crate) fn turn(&mut self, Progress { caught_up, clock }: Progress) -> StepTurn {
        if let Some(result) = self.result.take() {
            return StepTurn::Return(result);
        }
        match self.local {
            LocalAttempt::Running { .. } => StepTurn::Run,
            LocalAttempt::None if caught_up && self.starts_at().is_some_and(|at| at <= clock) => {
                self.local = LocalAttempt::Running { attempt: self.attempt.saturating_add(1), since: clock };
                self.draws = 0;
                StepTurn::Start
            }
            LocalAttempt::None | LocalAttempt::Finished { .. } => StepTurn::Wait,
        }
    }

    fn starts_at(&self) -> Option<Millis> {
        match (self.log, &self.local) {
            (InLog::Ended, _) | (_, LocalAttempt::Running { .. } | LocalAttempt::Finished { .. }) => None,
            (_, LocalAttempt::None) => Some(self.retry_at.unwrap_or(Millis::MIN)),
        }
    }

    /// Notes the result of the attempt that ran in this process.
    pub(crate) fn finish(&mut self, result: Result<Value, Error>, retry: &Retry, clock: Millis) {
        let LocalAttempt::Running { attempt, .. } = self.local else { return };
        let end = match result {
            Ok(result) => AttemptEnd::Completed(result),
            Err(error) => match retry.pause(self.failures.saturating_add(1), &error) {
                Some(pause) => AttemptEnd::Retrying(error, later(clock, pause)),
                None => AttemptEnd::Failed(error),
            },
        };
        self.local = LocalAttempt::Finished { attempt, end };
    }

    pub(crate) fn index(&self, interest: Interest) -> CommandIndex {
        let open = matches!(self.log, InLog::Pending | InLog::Running);
        if interest == Interest::Abandoned {
            return CommandIndex { to_append: open, open, ..CommandIndex::default() };
        }
        CommandIndex {
            open,
            to_append: matches!(self.local, LocalAttempt::Finished { .. }),
            to_append_at: match self.local {
                LocalAttempt::Running { attempt, since } if !self.has_logged(attempt) => {
                    Some(since.plus(VISIBLE_AFTER_MS))
                }
                _ => None,
            },
            starting_at: self.starts_at(),
            running: matches!(self.local, LocalAttempt::Running { .. }),
            has_unread: false,
        }
    }

    /// Whether the log has the start of this attempt.
    fn has_logged(&self, attempt: u32) -> bool {
        self.log == InLog::Running && self.attempt >= attempt
    }

    pub(crate) fn drafts(&self, id: &Name, drafts: &mut Vec<LogDraft>) {
        let attempt = match self.local {
            LocalAttempt::None => return,
            LocalAttempt::Running { attempt, .. } | LocalAttempt::Finished { attempt, .. } => attempt,
        };
        if self.log == InLog::Unknown {
            let mut created =
                draft_with(RunEventType::StepCreated, id, [("stepName", self.name.as_str().into())]);
            created.event_data.extend(self.input.clone().map(|input| ("input".to_owned(), input)));
            drafts.push(created);
        }
        if !self.has_logged(attempt) {
            let attempt = attempt.max(self.attempt.saturating_add(1));
            drafts.push(draft_with(RunEventType::StepStarted, id, [("attempt", attempt.into())]));
        }
        let LocalAttempt::Finished { end, .. } = &self.local else { return };
        drafts.push(match end {
            AttemptEnd::Completed(result) => {
                draft_with(RunEventType::StepCompleted, id, [("result", result.clone())])
            }
            AttemptEnd::Failed(error) => draft_error(RunEventType::StepFailed, id, error),
            AttemptEnd::Retrying(error, at) => {
                let mut retrying = draft_error(RunEventType::StepRetrying, id, error);
                retrying.event_data.insert("retryAfter".into(), at.get().into());
                retrying
            }
        });
    }
}

/// A step in words.
pub(crate) fn describe(name: &str) -> String {
    format!("step `{name}`")
}
