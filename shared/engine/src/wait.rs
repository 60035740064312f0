//! A wait for a time, an event, or the end of a task or a job, as log and code know it.

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEventType};
use serde_json::{Map, Value};

use crate::{
    command::{CommandIndex, Interest},
    draft::{draft, draft_with, millis},
    engine::later,
    error::{ABANDONED, TIMEOUT},
    event_router::Answer,
    handle::{Due, WaitTarget},
    unread_events::UnreadEvent,
};

/// A wait, as the log and the code know it.
pub(crate) struct WaitRecord {
    target: WaitTarget,
    due: Due,
    log: InLog,
    /// The `eventData` of its end, for the future that waits for it.
    end: Option<Map<String, Value>>,
    /// The number of the event that ended it in the log, and its time.
    ended_at: Option<(u64, Millis)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InLog {
    Unknown,
    Waiting,
    Completed,
}

impl WaitRecord {
    pub(crate) fn new(target: WaitTarget, due: Due) -> Self {
        Self { target, due, log: InLog::Unknown, end: None, ended_at: None }
    }

    /// Turns a duration into a time when the code issues the wait.
    pub(crate) fn fix_due_time(&mut self, clock: Millis) {
        if let Due::After(duration) = self.due {
            self.due = Due::At(later(clock, duration));
        }
    }

    pub(crate) fn describe(&self) -> String {
        match &self.target {
            WaitTarget::Time => "sleep".into(),
            WaitTarget::Event { name, .. } => format!("wait for the event `{name}`"),
            WaitTarget::Task(id) => format!("wait for the task `{id}`"),
            WaitTarget::Job(id) => format!("wait for the job `{id}`"),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the log has it.
    pub(crate) fn is_registered(&self) -> bool {
        self.log != InLog::Unknown
    }

    /// Whether an event of this type wakes the future of this wait. A future that starts a task or a job wakes at
    /// `wait_created`, too: it starts the task once the log has the wait for the task's end.
    pub(crate) fn wakes_future(&self, event_type: RunEventType) -> bool {
        let starts = matches!(self.target, WaitTarget::Task(_) | WaitTarget::Job(_));
        self.is_ready() || starts && event_type == RunEventType::WaitCreated
    }

    /// The `eventData` of its end.
    pub(crate) fn take_end(&mut self) -> Option<Map<String, Value>> {
        self.end.take()
    }

    /// Takes the event that ended it and that no future has read.
    pub(crate) fn take_unread(&mut self, id: &Name) -> Option<(u64, UnreadEvent)> {
        let end = self.end.take()?;
        let (number, at) = self.ended_at?;
        let is_event = end.get("outcome").is_some_and(|outcome| outcome == "event");
        is_event.then(|| (number, UnreadEvent::new(id.clone(), at, end)))
    }

    /// Whether it is open and would take the event.
    pub(crate) fn wants(&self, event: &UnreadEvent) -> bool {
        match &self.target {
            WaitTarget::Event { name, criteria, since } => {
                self.log != InLog::Completed && event.fits(name, criteria, *since)
            }
            WaitTarget::Time | WaitTarget::Task(_) | WaitTarget::Job(_) => false,
        }
    }

    pub(crate) fn accept(&mut self, event: &mut LogEvent, number: u64) -> Answer {
        match (self.log, event.event_type) {
            (InLog::Unknown, RunEventType::WaitCreated) => {
                if describe(&event.event_data) != self.describe() {
                    return Answer::Rejected;
                }
                // The time that was recorded first is the one that counts.
                let time = if matches!(self.target, WaitTarget::Time) { "resumeAt" } else { "timeoutAt" };
                if let Some(at) = event.event_data.get(time).and_then(millis) {
                    self.due = Due::At(at);
                }
                self.log = InLog::Waiting;
                Answer::Accepted
            }
            (InLog::Waiting, RunEventType::WaitCompleted) => {
                self.log = InLog::Completed;
                self.ended_at = Some((number, event.timestamp));
                let data = std::mem::take(&mut event.event_data);
                // The end of the run closed it: the code does not learn of that.
                let abandoned = data.get("outcome").is_some_and(|outcome| outcome == ABANDONED);
                self.end = (!abandoned).then_some(data);
                Answer::AcceptedLast
            }
            _ => Answer::Rejected,
        }
    }

    pub(crate) fn index(&self, interest: Interest) -> CommandIndex {
        let open = self.log == InLog::Waiting;
        let to_append = match interest {
            Interest::Awaited => self.log == InLog::Unknown,
            Interest::Abandoned => open,
        };
        let to_append_at = match self.due {
            Due::At(at) if open && interest == Interest::Awaited => Some(at),
            _ => None,
        };
        CommandIndex { open, to_append, to_append_at, ..CommandIndex::default() }
    }

    /// The events that it wants appended at `now`; `unread` is the event that it gets from an earlier wait.
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
                let outcome = if matches!(self.target, WaitTarget::Time) { "elapsed" } else { TIMEOUT };
                drafts.push(draft_with(RunEventType::WaitCompleted, id, [("outcome", outcome.into())]));
            }
            (InLog::Waiting | InLog::Completed, _) => {}
        }
    }

    fn created(&self, id: &Name) -> LogDraft {
        let mut created = draft(RunEventType::WaitCreated, id);
        let mut set = |field: &str, value: Value| created.event_data.insert(field.to_owned(), value);
        let mut time = "timeoutAt";
        match &self.target {
            WaitTarget::Time => time = "resumeAt",
            WaitTarget::Event { name, criteria, since } => {
                set("eventName", name.as_str().into());
                set("matchCriteria", criteria.clone());
                if let Some(since) = since {
                    set("since", since.get().into());
                }
            }
            WaitTarget::Task(task) => _ = set("task", task.as_str().into()),
            WaitTarget::Job(job) => _ = set("job", job.as_str().into()),
        }
        if let Due::At(at) = self.due {
            set(time, at.get().into());
        }
        created
    }
}

/// A wait that a log has, in words.
pub(crate) fn describe(data: &Map<String, Value>) -> String {
    let text = |field: &str| data.get(field).and_then(Value::as_str);
    match (text("eventName"), text("task"), text("job")) {
        (Some(name), ..) => format!("wait for the event `{name}`"),
        (_, Some(task), _) => format!("wait for the task `{task}`"),
        (.., Some(job)) => format!("wait for the job `{job}`"),
        (None, None, None) => "sleep".into(),
    }
}
