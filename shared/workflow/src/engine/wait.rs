//! What is known of a wait: for a time, for an event, or for the end of a task or a job.

use std::time::Duration;

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEventType};
use serde_json::{Map, Value};

use super::{
    command::Facts,
    consumer::Answer,
    draft::{draft, draft_with},
    later,
    step::millis,
    unread::UnreadEvent,
};
use crate::error::{ABANDONED, TIMEOUT};

/// What is waited for.
pub(crate) enum WaitFor {
    /// For time to pass.
    Time,
    /// For an event that contains the criteria.
    Event { name: String, criteria: Value, since: Option<Millis> },
    /// For the end of a task.
    Task(String),
    /// For the end of a job.
    Job(String),
}

/// When a wait is over though nothing came.
#[derive(Clone, Copy)]
pub(crate) enum Due {
    Never,
    At(Millis),
    /// So long after it was asked for.
    After(Duration),
}

/// A wait, as the log and the code know it.
pub(crate) struct WaitRecord {
    what: WaitFor,
    due: Due,
    log: InLog,
    /// For the future that waits for it: what the log says about its end.
    result: Option<Map<String, Value>>,
    /// When its end came: the number of the event in the log, and its time.
    ended_at: Option<(u64, Millis)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InLog {
    Unknown,
    Waiting,
    Completed,
}

impl WaitRecord {
    pub(crate) fn new(what: WaitFor, due: Due) -> Self {
        Self { what, due, log: InLog::Unknown, result: None, ended_at: None }
    }

    /// Fixes the time, once, when it is asked for.
    pub(crate) fn asked(&mut self, clock: Millis) {
        if let Due::After(duration) = self.due {
            self.due = Due::At(later(clock, duration));
        }
    }

    pub(crate) fn describe(&self) -> String {
        match &self.what {
            WaitFor::Time => "sleep".into(),
            WaitFor::Event { name, .. } => format!("wait for the event `{name}`"),
            WaitFor::Task(id) => format!("wait for the task `{id}`"),
            WaitFor::Job(id) => format!("wait for the job `{id}`"),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.result.is_some()
    }

    /// Whether the log has it.
    pub(crate) fn is_registered(&self) -> bool {
        self.log != InLog::Unknown
    }

    /// Whether an event of this type wakes the future of this wait. A future that starts a task or a job wakes at
    /// `wait_created`, too: it starts the task once the log has the wait for the task's end.
    pub(crate) fn has_news(&self, event_type: RunEventType) -> bool {
        let starts = matches!(self.what, WaitFor::Task(_) | WaitFor::Job(_));
        self.is_ready() || starts && event_type == RunEventType::WaitCreated
    }

    /// What the log says about its end.
    pub(crate) fn take(&mut self) -> Option<Map<String, Value>> {
        self.result.take()
    }

    /// Takes the event that came and that no future has read.
    pub(crate) fn take_unread(&mut self, id: &Name) -> Option<(u64, UnreadEvent)> {
        let result = self.result.take()?;
        let (place, at) = self.ended_at?;
        let is_event = result.get("outcome").is_some_and(|outcome| outcome == "event");
        is_event.then(|| (place, UnreadEvent::new(id.clone(), at, result)))
    }

    /// Whether it is open and would take the event.
    pub(crate) fn wants(&self, event: &UnreadEvent) -> bool {
        match &self.what {
            WaitFor::Event { name, criteria, since } => {
                self.log != InLog::Completed && event.fits(name, criteria, *since)
            }
            WaitFor::Time | WaitFor::Task(_) | WaitFor::Job(_) => false,
        }
    }

    pub(crate) fn answer(&mut self, event: &mut LogEvent, place: u64) -> Answer {
        match (self.log, event.event_type) {
            (InLog::Unknown, RunEventType::WaitCreated) => {
                if describe(&event.event_data) != self.describe() {
                    return Answer::NotConsumed;
                }
                // The time that was recorded first is the one that counts.
                let time = if matches!(self.what, WaitFor::Time) { "resumeAt" } else { "timeoutAt" };
                if let Some(at) = event.event_data.get(time).and_then(millis) {
                    self.due = Due::At(at);
                }
                self.log = InLog::Waiting;
                Answer::Consumed
            }
            (InLog::Waiting, RunEventType::WaitCompleted) => {
                self.log = InLog::Completed;
                self.ended_at = Some((place, event.timestamp));
                let data = std::mem::take(&mut event.event_data);
                // It was closed because the run ends: the code has nothing to learn from that.
                let abandoned = data.get("outcome").is_some_and(|outcome| outcome == ABANDONED);
                self.result = (!abandoned).then_some(data);
                Answer::Finished
            }
            _ => Answer::NotConsumed,
        }
    }

    pub(crate) fn facts(&self, abandoned: bool) -> Facts {
        let open = self.log == InLog::Waiting;
        let wanting = if abandoned { open } else { self.log == InLog::Unknown };
        let wanting_at = match self.due {
            Due::At(at) if open && !abandoned => Some(at),
            _ => None,
        };
        Facts { open, wanting, wanting_at, ..Facts::default() }
    }

    /// What is to be recorded of it: `unread` is the event that it gets from a wait before it.
    pub(crate) fn drafts(
        &self,
        id: &Name,
        now: Millis,
        unread: Option<&UnreadEvent>,
        drafts: &mut Vec<LogDraft>,
    ) {
        if self.log == InLog::Unknown {
            drafts.push(self.created(id));
        }
        if let Some(unread) = unread {
            return drafts.push(unread.hand_over_to(id));
        }
        match (self.log, self.due) {
            (InLog::Unknown, _) => {}
            (InLog::Waiting, Due::At(at)) if at <= now => {
                let outcome = if matches!(self.what, WaitFor::Time) { "elapsed" } else { TIMEOUT };
                drafts.push(draft_with(RunEventType::WaitCompleted, id, [("outcome", outcome.into())]));
            }
            (InLog::Waiting | InLog::Completed, _) => {}
        }
    }

    fn created(&self, id: &Name) -> LogDraft {
        let mut created = draft(RunEventType::WaitCreated, id);
        let mut set = |field: &str, value: Value| created.event_data.insert(field.to_owned(), value);
        let mut time = "timeoutAt";
        match &self.what {
            WaitFor::Time => time = "resumeAt",
            WaitFor::Event { name, criteria, since } => {
                set("eventName", name.as_str().into());
                set("matchCriteria", criteria.clone());
                if let Some(since) = since {
                    set("since", since.get().into());
                }
            }
            WaitFor::Task(task) => _ = set("task", task.as_str().into()),
            WaitFor::Job(job) => _ = set("job", job.as_str().into()),
        }
        if let Due::At(at) = self.due {
            set(time, at.get().into());
        }
        created
    }
}

/// How people are told of a wait that a log has.
pub(crate) fn describe(data: &Map<String, Value>) -> String {
    let text = |field: &str| data.get(field).and_then(Value::as_str);
    match (text("eventName"), text("task"), text("job")) {
        (Some(name), ..) => format!("wait for the event `{name}`"),
        (_, Some(task), _) => format!("wait for the task `{task}`"),
        (.., Some(job)) => format!("wait for the job `{job}`"),
        (None, None, None) => "sleep".into(),
    }
}
