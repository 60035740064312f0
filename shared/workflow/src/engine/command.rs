//! One thing that the code asked for.

use std::task::Waker;

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEntity, RunEventType};
use serde_json::Value;

use super::{
    consumer::Answer, draft::closing, hook::HookRecord, step, step::StepRecord, unread::UnreadEvent, wait,
    wait::WaitRecord, wakers::Wakers,
};

/// What the code asked for.
pub(crate) enum Entity {
    Step(StepRecord),
    Wait(WaitRecord),
    Hook(HookRecord),
}

/// One thing that the code asked for, and the future that waits for it.
pub(crate) struct Command {
    pub(crate) id: Name,
    pub(crate) entity: Entity,
    /// The code has dropped its future, and does not learn how it ends.
    pub(crate) abandoned: bool,
    pub(crate) waker: Option<Waker>,
    /// What the engine's sets hold of it.
    pub(crate) indexed: Facts,
}

/// What the engine looks a command up by.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Something is to be recorded, whatever the time.
    pub(crate) wanting: bool,
    /// Something is to be recorded from then on.
    pub(crate) wanting_at: Option<Millis>,
    /// An attempt may begin from then on.
    pub(crate) starting_at: Option<Millis>,
    /// The log knows it, and not its end.
    pub(crate) open: bool,
    /// An attempt runs in this process.
    pub(crate) running: bool,
    /// A hook that takes no more payloads, and has some that the code has not read.
    pub(crate) has_unread: bool,
}

impl Entity {
    pub(crate) fn kind(&self) -> RunEntity {
        match self {
            Self::Step(_) => RunEntity::Step,
            Self::Wait(_) => RunEntity::Wait,
            Self::Hook(_) => RunEntity::Hook,
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Step(step) => step.describe(),
            Self::Wait(wait) => wait.describe(),
            Self::Hook(_) => "hook".into(),
        }
    }
}

/// How people are told of what a log asked for; `None` for events of other kinds.
pub(crate) fn describe_created(event: &LogEvent) -> Option<String> {
    match event.event_type {
        RunEventType::StepCreated => {
            Some(step::describe(event.event_data.get("stepName").and_then(Value::as_str).unwrap_or("")))
        }
        RunEventType::WaitCreated => Some(wait::describe(&event.event_data)),
        RunEventType::HookCreated | RunEventType::HookConflict => Some("hook".into()),
        _ => None,
    }
}

impl Command {
    pub(crate) fn facts(&self) -> Facts {
        match &self.entity {
            Entity::Step(step) => step.facts(self.abandoned),
            Entity::Wait(wait) => wait.facts(self.abandoned),
            Entity::Hook(hook) => hook.facts(self.abandoned),
        }
    }

    /// Shows it an event of the log.
    pub(crate) fn deliver(&mut self, event: &mut LogEvent, place: u64, wakers: &mut Wakers) -> Answer {
        // The same ULID may stand behind another prefix.
        if event.correlation_id != self.id {
            return Answer::NotConsumed;
        }
        let (answer, news) = match &mut self.entity {
            Entity::Step(step) => (step.answer(event), step.is_ready()),
            Entity::Wait(wait) => (wait.answer(event, place), wait.has_news(event.event_type)),
            Entity::Hook(hook) => (hook.answer(event, wakers), true),
        };
        if news {
            wakers.call(self.waker.take());
        }
        answer
    }

    /// What is to be recorded of it at `now`.
    pub(crate) fn drafts(&self, now: Millis, unread: Option<&UnreadEvent>, drafts: &mut Vec<LogDraft>) {
        if self.abandoned {
            return drafts.extend(self.closing());
        }
        match &self.entity {
            Entity::Step(step) => step.drafts(&self.id, drafts),
            Entity::Wait(wait) => wait.drafts(&self.id, now, unread, drafts),
            Entity::Hook(hook) => hook.drafts(&self.id, drafts),
        }
    }

    /// What closes it, if the log has it open.
    pub(crate) fn closing(&self) -> Option<LogDraft> {
        if self.indexed.open { closing(self.entity.kind(), &self.id) } else { None }
    }
}
