use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::{HookChange, Lifecycle};
use crate::{LogEvent, Millis, Name, RunEntity, fold::read};

states! {
    /// Where a hook stands.
    HookState {
        Active "active" false "Payloads may come in.",
        Disposed "disposed" true "No more payloads may come in.",
        Conflicted "conflicted" true "Its token is taken by another hook.",
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

/// A point of a run that receives data from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Its id.
    pub hook_id: Name,
    /// Where it stands.
    pub state: HookState,
    /// Who knows it may send a payload.
    pub token: String,
    /// What the workflow says about it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub metadata: Value,
    /// How many payloads came in.
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
            token: read(&event.event_data, "token").unwrap_or_default(),
            metadata: event.event_data.get("metadata").cloned().unwrap_or_default(),
            received: 0,
            created_at: event.timestamp,
            disposed_at: None,
        }
    }

    pub(super) fn take(&mut self, change: HookChange, state: HookState, event: &LogEvent) {
        self.state = state;
        match change {
            // Only what is not there yet can be created, or be in the way of another.
            HookChange::Created | HookChange::Conflict => {}
            HookChange::Received => self.received += 1,
            HookChange::Disposed => self.disposed_at = Some(event.timestamp),
        }
    }
}
