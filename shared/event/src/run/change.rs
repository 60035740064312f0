//! The changes that events make to each kind of entity, so that a `match` can cover every pair of state and change.

use crate::{RunEntity, RunEventType};

/// The change that an event makes, by the kind of entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Run(RunChange),
    Step(StepChange),
    Hook(HookChange),
    Wait(WaitChange),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunChange {
    Created,
    Started,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepChange {
    Created,
    Started,
    Completed,
    Failed,
    Retrying,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookChange {
    Created,
    Conflict,
    Received,
    Disposed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitChange {
    Created,
    Completed,
}

impl Change {
    pub(super) const fn of(event_type: RunEventType) -> Self {
        match event_type {
            RunEventType::RunCreated => Self::Run(RunChange::Created),
            RunEventType::RunStarted => Self::Run(RunChange::Started),
            RunEventType::RunCompleted => Self::Run(RunChange::Completed),
            RunEventType::RunFailed => Self::Run(RunChange::Failed),
            RunEventType::RunCancelled => Self::Run(RunChange::Cancelled),
            RunEventType::StepCreated => Self::Step(StepChange::Created),
            RunEventType::StepStarted => Self::Step(StepChange::Started),
            RunEventType::StepCompleted => Self::Step(StepChange::Completed),
            RunEventType::StepFailed => Self::Step(StepChange::Failed),
            RunEventType::StepRetrying => Self::Step(StepChange::Retrying),
            RunEventType::HookCreated => Self::Hook(HookChange::Created),
            RunEventType::HookConflict => Self::Hook(HookChange::Conflict),
            RunEventType::HookReceived => Self::Hook(HookChange::Received),
            RunEventType::HookDisposed => Self::Hook(HookChange::Disposed),
            RunEventType::WaitCreated => Self::Wait(WaitChange::Created),
            RunEventType::WaitCompleted => Self::Wait(WaitChange::Completed),
        }
    }
}

/// The states of one kind of entity and the legal transitions.
pub(super) trait Lifecycle: Copy + 'static {
    type Change: Copy;
    const ENTITY: RunEntity;
    const STATES: &'static [Self];

    /// The state after `change` in the state `before` (`None`: the entity does not exist); `None` if that is illegal.
    fn after(before: Option<Self>, change: Self::Change) -> Option<Self>;

    fn text(self) -> &'static str;

    fn is_final(self) -> bool;
}
