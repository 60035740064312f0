//! Hooks of a run: their tokens, and the payloads that they have taken.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::{HookChange, Lifecycle};
use crate::{LogEvent, Millis, Name, RunEntity, envelope::read_field};

states! {
    /// The state of a hook.
    HookState {
        open {
            Active "active" "It takes payloads.",
        }
        terminal {
            Disposed "disposed" "It takes no more payloads.",
            Conflicted "conflicted" "Another hook has its token.",
        }
    }
}

impl Lifecycle for HookState {
    type Change = HookChange;
    const ENTITY: RunEntity = RunEntity::Hook;
    const STATES: &'static [Self] = Self::ALL;

    fn after(before: Option<Self>, change: HookChange) -> Option<Self> {
        use HookChange as To;
        match (before, change) {
            (None, To::Created) => Some(Self::Active),
            // Instead of being created.
            (None, To::Conflict) => Some(Self::Conflicted),
            (Some(Self::Active), To::Received) => Some(Self::Active),
            (Some(Self::Active), To::Disposed) => Some(Self::Disposed),
            (None, To::Received | To::Disposed) => None,
            (Some(Self::Active), To::Created | To::Conflict) => None,
            (
                Some(Self::Disposed | Self::Conflicted),
                To::Created | To::Conflict | To::Received | To::Disposed,
            ) => None,
        }
    }

    fn text(self) -> &'static str {
        self.as_str()
    }

    fn is_final(self) -> bool {
        self.is_terminal()
    }
}

/// A point of a run that receives payloads from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Its id.
    pub hook_id: Name,
    /// Its state.
    pub state: HookState,
    /// Its token: every sender that knows it may send a payload.
    pub token: String,
    /// Data that the workflow shows with it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub metadata: Value,
    /// How many payloads it received.
    pub received: u64,
    /// When it was created.
    pub created_at: Millis,
    /// When it was disposed of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disposed_at: Option<Millis>,
}

impl Hook {
    pub(super) fn created(state: HookState, event: &LogEvent) -> Self {
        Self {
            hook_id: event.correlation_id.clone(),
            state,
            token: read_field(&event.event_data, "token").unwrap_or_default(),
            metadata: event.event_data.get("metadata").cloned().unwrap_or_default(),
            received: 0,
            created_at: event.timestamp,
            disposed_at: None,
        }
    }

    pub(super) fn apply(&mut self, change: HookChange, state: HookState, event: &LogEvent) {
        self.state = state;
        match change {
            // `Hook::created` handles both: this hook exists.
            HookChange::Created | HookChange::Conflict => {}
            HookChange::Received => self.received += 1,
            HookChange::Disposed => self.disposed_at = Some(event.timestamp),
        }
    }
}
