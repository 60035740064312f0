//! The effects of a claim: events, messages, runs that begin, events for runs, alerts.

use ledgerline_event::{Millis, Name};
use ledgerline_ledger::SealedEvent;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Queue;

/// What a claim will send, exactly.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Effects {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SealedEvent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Runs to create.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<NewRun>,
    /// Events to deliver to runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sends: Vec<SentEvent>,
    /// A text for Slack. Nothing else waits until it is sent: Slack may be down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert: Option<String>,
}

/// A message for a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Message {
    pub queue: Queue,
    /// The group that it belongs to: queues are fair between groups.
    pub group: String,
    /// JSON, as it will be sent.
    pub body: String,
    /// How long the queue hides it from consumers.
    #[serde(default)]
    pub delay_seconds: u64,
}

impl Effects {
    pub(crate) fn add(&mut self, other: Self) {
        self.events.extend(other.events);
        self.messages.extend(other.messages);
        self.runs.extend(other.runs);
        self.sends.extend(other.sends);
    }

    /// Bytes of events and messages (for batching); runs, sends and alert are not counted.
    pub fn size(&self) -> usize {
        let messages: usize = self.messages.iter().map(|message| message.body.len()).sum();
        self.events.iter().map(SealedEvent::size).sum::<usize>() + messages
    }
}

/// A request that creates a run; idempotent by `run_id` and `event_id`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct NewRun {
    pub tenant_id: Name,
    pub app_name: Name,
    pub run_id: Name,
    pub event_id: Name,
    pub created_at: Millis,
    pub data: Map<String, Value>,
    /// The context of its events, as JSON.
    pub context: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caused_by: Option<String>,
    #[serde(default)]
    pub external: bool,
}

/// An event for runs: the effect, and the record once delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SentEvent {
    pub tenant_id: Name,
    pub event_id: Name,
    pub event_name: Name,
    pub data: Value,
    /// The match with which it was sent.
    #[serde(rename = "matchCriteria")]
    pub sent_match: Value,
    /// `workflow` or `external`.
    pub source_type: String,
    /// The run that sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_instance_id: Option<Name>,
    pub timestamp: Millis,
}
