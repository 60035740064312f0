//! The outbox: effects are stored before they are sent, executed, resumed by the next process that meets them, and swept.
//!
//! It promises that the effects of a claim are sent at least once and that no other claim takes its place. It stores claims (records of their
//! own, or inside the record of a task or a job), rows of idempotency keys, and alerts that wait. Drains, jobs and runs call it.

mod alerts;
mod claim;
mod digest;
mod effects;
mod error;
mod execute;
mod idempotency;
mod notice;
mod outbox;
mod overdue;
mod queue;
mod record_event;
mod sweep_course;
mod sweep_end;

pub use alerts::alert_text;
pub use claim::{Intent, POSTPONED_MS, RESUMED_AFTER_MS, outliving};
pub use digest::{digest, group};
pub use effects::{Effects, Message, NewRun, SentEvent};
pub use error::DispatchError;
pub use execute::{Carried, Resumed, Sent, Together};
pub use idempotency::{Made, check_idempotency_key};
pub use ledgerline_store::{
    Claim, ClaimState, Claimed, FirstRequest, KeyedRequest as Keyed, SweepEnd, free_at,
};
pub use notice::{About, Notice};
pub use outbox::{Outbox, RunEffect, RunEffects};
pub use queue::{Queue, QueueUrls, Queues};
pub use record_event::RecordedEvent;
pub use sweep_course::{Course, around, in_turn};
pub use sweep_end::Sweeper;
