//! The record of one generation of a task: who may run it, how often it was tried, how it ended.
//!
//! It begins as the claim of its start and ends as the claim of its end: the events of both are
//! inside until they are sent. A task that a workflow type or another system started has no record
//! until a worker takes it, or until the drainer `jobs` reads its end.

use ledgerline_event::{Millis, Name, Seconds, catalogue::ErrorCategory};
use serde::{Deserialize, Serialize};

use crate::claim::{Claim, ClaimState};

/// Messages up to this size are kept in the record: every renewal of a lease writes all of it.
pub(super) const KEPT_MESSAGE_BYTES: usize = 2_000;

/// Where a generation stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// No worker runs it.
    #[default]
    Waiting,
    /// A worker has taken it.
    Running,
    /// It will not run again.
    Ended,
}

/// A generation of a task as it is stored, without the claim in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskRecord {
    #[serde(default)]
    pub(crate) phase: Phase,
    /// How often it was taken. Also the fence: a worker with another number changes nothing.
    #[serde(default)]
    pub(crate) attempt: u32,
    /// Attempts that count: one that was given back unharmed does not.
    #[serde(default)]
    pub(crate) counted: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease_until: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worker_id: Option<String>,
    /// Which request took it: a worker whose answer was lost recognises itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) taken_by: Option<String>,
    /// The attempt that was last let go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) let_go: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_category: Option<ErrorCategory>,
    /// The terminal event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) end_event: Option<Name>,
    /// The attempt that ended it, if a worker did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) end_attempt: Option<u32>,
    /// When it was started, if that was here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created_at: Option<Millis>,
    /// Whether its job counts it as active.
    #[serde(default)]
    pub(crate) in_job: bool,
    /// The run that started it, and may wait for its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workflow_run_id: Option<Name>,
    /// What was asked for: a repeated submission must ask for the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_hash: Option<String>,
    /// The message, to send it again if its worker is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// The row that has the message, if the record itself has not. Records of the version before name none: their
    /// message lies under the name that every submission of the id used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_key: Option<String>,
    /// The attempt whose message was sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) given_back: Option<u32>,
    /// When its message was last enqueued again because no worker had taken it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enqueued_at: Option<Millis>,
    #[serde(default, skip_serializing)]
    pub(crate) ttl: Option<Seconds>,
    /// Whether what it last claimed was sent.
    #[serde(default, rename = "state", skip_serializing)]
    pub(crate) claim_state: Option<ClaimState>,
}

impl TaskRecord {
    /// Whether a worker may still be running it: its lease has not expired.
    pub(crate) fn is_held(&self, now: Millis) -> bool {
        self.phase == Phase::Running && self.lease_until.is_some_and(|until| until > now)
    }

    pub(crate) fn has_pending_claim(&self) -> bool {
        self.claim_state == Some(ClaimState::Pending)
    }

    /// A record of a task that could not even be started.
    pub(crate) fn failed_at_once(end_event: Name, now: Millis) -> Self {
        Self { phase: Phase::Ended, end_event: Some(end_event), created_at: Some(now), ..Self::default() }
    }
}

/// A record with a claim in it, to be written.
#[derive(Serialize)]
pub(crate) struct WithClaim<'a, R> {
    #[serde(flatten)]
    pub(crate) record: &'a R,
    #[serde(flatten)]
    pub(crate) claim: &'a Claim,
}
