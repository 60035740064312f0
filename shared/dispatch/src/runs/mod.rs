//! Runs of durable workflows, as the store knows them: a record, a log that only grows, and what a run waits for.
//!
//! The log decides. Entry n + 1 is put if it is absent, and whatever an entry brings about (a wait, a timer,
//! a hook, the run's state) changes in the same transaction. Concurrent appends conflict: the loser reads the
//! log again and retries. So nothing that a run waits for can come true twice.

mod append;
mod await_end;
mod call;
mod cancel;
mod create;
mod ending;
mod ends;
mod foreign;
mod hook;
mod lease;
mod log;
mod orphans;
mod outbox;
mod past_events;
mod query;
mod record;
mod runnable;
mod send;
mod sent_order;
mod side_writes;
mod sweep;
mod wake;

pub use append::Appended;
pub use call::EventTaken;
pub use create::{RunSubmission, StartedRun};
pub use foreign::{ForeignEvent, conflict};
pub use hook::{HookAnswer, HookPayload, check_chosen_token};
pub use lease::{LetGo, RUN_LEASE_MS, Released, Renewed, RunLease, RunTaken};
pub use log::{LogEntry, RunLog};
pub use outbox::check_loggable;
pub use past_events::{LookPositions, PastEvent};
pub use query::{LogPlace, RunDetails, RunPage, SentEventPage, SentEventView, ShownRun};
pub use record::RunRecord;
pub use send::{EventSubmission, SentEvent, SubmittedEvent};
pub use sweep::RunsSwept;
pub use wake::RunMessage;

pub(crate) use create::NewRun;
pub(crate) use ends::Ends;
