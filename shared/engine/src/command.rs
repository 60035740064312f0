//! One command that the code has issued: a step, a wait or a hook.

use std::task::Waker;

use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunEntity, RunEventType};
use serde_json::Value;

use crate::{
    draft::closing,
    event_router::Answer,
    hook::HookRecord,
    step::{self, StepRecord},
    unread_events::UnreadEvent,
    wait::{self, WaitRecord},
    wakers::Wakers,
};

/// The entity of the run that the command asks for.
pub(crate) enum Entity {
    Step(StepRecord),
    Wait(WaitRecord),
    Hook(HookRecord),
}

/// An entity that the code asked for, and the future that waits for it.
pub(crate) struct Command {
    pub(crate) id: Name,
    pub(crate) entity: Entity,
    pub(crate) interest: Interest,
    pub(crate) waker: Option<Waker>,
    /// The sets in which the engine has it.
    pub(crate) indexed: CommandIndex,
}

/// Whether the code still waits for a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Awaited,
    /// The code has dropped the future, and does not learn how the command ends.
    Abandoned,
}

/// The sets of the engine in which a command is, and the times under which it is there.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CommandIndex {
    /// It has an event to append, at any time.
    pub(crate) to_append: bool,
    /// It has an event to append from this time on.
    pub(crate) to_append_at: Option<Millis>,
    /// An attempt may begin from this time on.
    pub(crate) starting_at: Option<Millis>,
    /// The log has its beginning and not its end.
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

/// What an event of the log creates, in words; `None` for events that create nothing.
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
    pub(crate) fn index(&self) -> CommandIndex {
        match &self.entity {
            Entity::Step(step) => step.index(self.interest),
            Entity::Wait(wait) => wait.index(self.interest),
            Entity::Hook(hook) => hook.index(self.interest),
        }
    }

    /// Keeps the waker of its future until the log brings something.
    pub(crate) fn register(&mut self, waker: &Waker, wakers: &mut Wakers) {
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            wakers.drop_later(self.waker.replace(waker.clone()));
        }
    }

    /// Offers it the event that was delivered as number `number`.
    pub(crate) fn deliver(&mut self, event: &mut LogEvent, number: u64, wakers: &mut Wakers) -> Answer {
        // The same ULID may stand behind another prefix.
        if event.correlation_id != self.id {
            return Answer::Rejected;
        }
        let (answer, wakes) = match &mut self.entity {
            Entity::Step(step) => (step.accept(event), step.is_ready()),
            Entity::Wait(wait) => (wait.accept(event, number), wait.wakes_future(event.event_type)),
            Entity::Hook(hook) => (hook.accept(event, wakers), true),
        };
        if wakes {
            wakers.call_later(self.waker.take());
        }
        answer
    }

    /// The events that it has to append at `now`; `unread` is the event that it gets from an earlier wait.
    pub(crate) fn drafts(&self, now: Millis, unread: Option<&UnreadEvent>, drafts: &mut Vec<LogDraft>) {
        if self.interest == Interest::Abandoned {
            return drafts.extend(self.closing());
        }
        match &self.entity {
            Entity::Step(step) => step.drafts(&self.id, drafts),
            Entity::Wait(wait) => wait.drafts(&self.id, now, unread, drafts),
            Entity::Hook(hook) => hook.drafts(&self.id, drafts),
        }
    }

    /// The event that closes it, if the log has it open.
    pub(crate) fn closing(&self) -> Option<LogDraft> {
        if self.indexed.open { closing(self.entity.kind(), &self.id) } else { None }
    }
}
