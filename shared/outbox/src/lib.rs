//! The outbox: effects are stored first; then they are executed. Another process that finds them pending, or the sweep,
//! resumes them.
//!
//! It promises that the effects of a claim are sent at least once and that no other claim takes its place. It stores
//! claims (records of their own, or inside the record of a task or a job), rows of idempotency keys, and alerts that
//! wait. Drains, jobs and runs call it.

mod claim;
mod effects;
mod error;
mod execute;
mod idempotency;
mod last_sweep_end;
mod merge_alerts;
mod notice;
mod outbox;
mod overdue_claims;
mod queue;
mod record_event;
mod send_alerts;
mod short_hash;
mod sweep_progress;

pub use claim::{POSTPONED_MS, PendingEffects, RESUMED_AFTER_MS, start_claim_ttl};
pub use effects::{Effects, Message, NewRun, SentEvent};
pub use error::ComponentError;
pub use execute::{ClaimOrder, Executed, Resumed, Sent};
pub use idempotency::{Made, check_idempotency_key};
pub use last_sweep_end::Sweeper;
pub use ledgerline_store::{
    Claim, ClaimState, Claimed, FirstRequest, KeyedRequest, SweepEnd, idempotency_expires_at,
};
pub use merge_alerts::alert_text;
pub use notice::{About, Notice};
pub use outbox::{Outbox, RunEffect, RunEffects};
pub use queue::{Queue, QueueUrls, Queues, message_group};
pub use record_event::RecordedEvent;
pub use short_hash::short_hash;
pub use sweep_progress::{SweepProgress, rotate_after, round_robin};
