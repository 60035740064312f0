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
    /// Runs that begin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<NewRun>,
    /// Events that are sent to runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sends: Vec<SentEvent>,
    /// For people. Nothing waits for it: Slack may be down.
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
    /// How long it stays hidden.
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

    /// How much has to be held and sent.
    pub fn size(&self) -> usize {
        let messages: usize = self.messages.iter().map(|message| message.body.len()).sum();
        self.events.iter().map(SealedEvent::size).sum::<usize>() + messages
    }
}

/// A run that is about to be, fixed to the last byte: making it twice makes it once.
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
    pub context: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caused_by: Option<String>,
    #[serde(default)]
    pub external: bool,
}

/// An event that was sent, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SentEvent {
    pub tenant_id: Name,
    pub event_id: Name,
    pub event_name: Name,
    pub data: Value,
    pub match_criteria: Value,
    /// `workflow` or `external`.
    pub source_type: String,
    /// The run that sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_instance_id: Option<Name>,
    pub timestamp: Millis,
}
