//! The record of a run: who works on it, how far its outbox is, where it is listed. What happened is in its log.

use std::collections::BTreeSet;

use ledgerline_event::{Context, Millis, Name, RunState};
use serde::{Deserialize, Serialize};

use super::LookPositions;

/// A run as it is stored, without its log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct RunRecord {
    pub run_id: Name,
    pub workflow_name: String,
    pub app_name: Name,
    pub state: RunState,
    /// Whether a program outside drives it over HTTP. No runner executes it then.
    #[serde(default)]
    pub external: bool,
    pub created_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// The version of the workflow that began it, and must go on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_version: Option<String>,
    /// Why the last runner could not go on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// How many visits in a row could not go on with it.
    #[serde(default)]
    pub(crate) failed_visits: u32,
    /// How many visits failed since the last one that did not, in a way that does not pass by itself.
    #[serde(default)]
    pub(crate) rejected_visits: u32,
    /// The event with which it ends, as JSON, while it closes what is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<String>,
    /// The same, where it lies in the payload bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending_key: Option<String>,
    /// Its `run_created` event.
    pub(crate) created_by: Name,
    /// The context of its events, as JSON.
    pub(crate) context: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caused_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease_owner: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease_until: Option<Millis>,
    /// How often it was woken: by an append without a lease, or by a sender that called one of its waits.
    #[serde(default)]
    pub(crate) wakes: u64,
    /// How often it was acquired since a runner last released it.
    #[serde(default)]
    pub(crate) takes: u32,
    /// The last entry of the log whose events are in the ledger.
    #[serde(default)]
    pub(crate) emitted: u64,
    /// The last entry of the log whose waits have all looked for events that were sent before. Senders set it to zero
    /// when they call the run, for runners of the version before, which know no `calledWaits`.
    #[serde(default)]
    pub(crate) looked_back: u64,
    /// The same, set by runners only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) looked: Option<u64>,
    /// The waits that senders of events have called since the run was last released.
    #[serde(default, skip_serializing)]
    pub(crate) called_waits: BTreeSet<Name>,
    /// How far its waits have looked, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) looks: Option<String>,
    /// The time for which a delayed message is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alarm_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) due_shard: Option<String>,
    /// When the sweep looks after it, unless a runner has done so by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list_in: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list_at: Option<String>,
}

impl RunRecord {
    /// Whether a runner may be working on it: the lease has not expired.
    pub(crate) fn is_held(&self, now: Millis) -> bool {
        self.lease_until.is_some_and(|until| until > now)
    }

    /// How many times before this one a runner acquired it and did not release it: the runner died, or lost
    /// the lease.
    pub fn lost_takes(&self) -> u32 {
        self.takes.saturating_sub(1)
    }

    /// How many visits in a row could not go on with it. A process that does not know this count clears the
    /// error alone, so the count holds only together with the error.
    pub fn failed_visits(&self) -> u32 {
        if self.last_error.is_some() { self.failed_visits } else { 0 }
    }

    /// How many visits failed in a way that does not pass by itself.
    pub fn rejected_visits(&self) -> u32 {
        if self.last_error.is_some() { self.rejected_visits } else { 0 }
    }

    /// The last entry of its log whose events are in the ledger.
    pub fn emitted(&self) -> u64 {
        self.emitted
    }

    /// The last entry of its log whose waits have all looked for events that were sent before.
    pub fn looked(&self) -> u64 {
        self.looked.unwrap_or(self.looked_back)
    }

    /// The waits that senders of events have called.
    pub fn called(&self) -> &BTreeSet<Name> {
        &self.called_waits
    }

    /// How far its waits have looked.
    pub(super) fn positions(&self) -> LookPositions {
        LookPositions::parse(self.looks.as_deref())
    }

    /// The time for which a delayed message is on its way.
    pub fn alarm_at(&self) -> Option<Millis> {
        self.alarm_at
    }

    /// How often it was woken: by an append without a lease, or by a sender that called one of its waits.
    pub fn wakes(&self) -> u64 {
        self.wakes
    }

    /// The context of its events.
    pub(crate) fn context(&self) -> Context {
        serde_json::from_str(&self.context).unwrap_or_default()
    }
}
