//! Steps of a run: their states, results and retries.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    change::{Lifecycle, StepChange},
    failure, null_is_a_value,
};
use crate::{LogEvent, Millis, Name, RunEntity, envelope::read_field};

states! {
    /// The state of a step.
    StepState {
        open {
            Pending "pending" "It waits for its first or its next attempt.",
            Running "running" "An attempt at it runs.",
        }
        terminal {
            Completed "completed" "It has a result and never runs again.",
            Failed "failed" "It failed and is not retried.",
        }
    }
}

impl Lifecycle for StepState {
    type Change = StepChange;
    const ENTITY: RunEntity = RunEntity::Step;
    const STATES: &'static [Self] = Self::ALL;

    fn after(before: Option<Self>, change: StepChange) -> Option<Self> {
        use StepChange as To;
        match (before, change) {
            (None, To::Created) => Some(Self::Pending),
            // From running: its runner died, and another runner starts it once more.
            (Some(Self::Pending | Self::Running), To::Started) => Some(Self::Running),
            (Some(Self::Running), To::Completed) => Some(Self::Completed),
            // From pending: it is abandoned.
            (Some(Self::Pending | Self::Running), To::Failed) => Some(Self::Failed),
            (Some(Self::Running), To::Retrying) => Some(Self::Pending),
            (None, To::Started | To::Completed | To::Failed | To::Retrying) => None,
            (Some(Self::Pending), To::Created | To::Completed | To::Retrying) => None,
            (Some(Self::Running), To::Created) => None,
            (
                Some(Self::Completed | Self::Failed),
                To::Created | To::Started | To::Completed | To::Failed | To::Retrying,
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

/// One invocation of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Its id.
    pub step_id: Name,
    /// Its name, as the workflow gives it.
    #[serde(rename = "stepName")]
    pub name: String,
    /// Its state.
    pub state: StepState,
    /// The number of the last attempt; 0 before the first.
    pub attempt: u32,
    /// How many attempts failed after which another one followed or is to follow.
    pub retries: u32,
    /// Its result, if it is completed.
    #[serde(default, deserialize_with = "null_is_a_value", skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it failed, or why its last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The code of that error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The next attempt starts at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Millis>,
    /// When it was created.
    pub created_at: Millis,
    /// When its first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    /// When it was completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

impl Step {
    pub(super) fn created(event: &LogEvent) -> Self {
        Self {
            step_id: event.correlation_id.clone(),
            name: read_field(&event.event_data, "stepName").unwrap_or_default(),
            state: StepState::Pending,
            attempt: 0,
            retries: 0,
            result: None,
            error: None,
            error_code: None,
            retry_after: None,
            created_at: event.timestamp,
            started_at: None,
            ended_at: None,
        }
    }

    pub(super) fn apply(&mut self, change: StepChange, state: StepState, event: &LogEvent) {
        let data = &event.event_data;
        self.state = state;
        self.retry_after = None;
        if state.is_terminal() {
            self.ended_at = Some(event.timestamp);
        }
        match change {
            // `Step::created` handles it: this step exists.
            StepChange::Created => {}
            StepChange::Started => {
                self.attempt = read_field(data, "attempt").unwrap_or_else(|| self.attempt.saturating_add(1));
                self.started_at = self.started_at.or(Some(event.timestamp));
            }
            StepChange::Completed => {
                self.result = Some(data.get("result").cloned().unwrap_or_default());
                (self.error, self.error_code) = (None, None);
            }
            StepChange::Failed => (self.error, self.error_code) = failure(data),
            StepChange::Retrying => {
                (self.error, self.error_code) = failure(data);
                self.retries = self.retries.saturating_add(1);
                self.retry_after = read_field(data, "retryAfter");
            }
        }
    }
}
