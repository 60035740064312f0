//! Runs of durable workflows, as they are stored: each has a record, a log that only grows, and the waits that it has
//! open.
//!
//! The log decides. Entry n + 1 is put if it is absent, and everything that an entry brings about (a wait, a timer,
//! a hook, the run's state) changes in the same transaction. Concurrent appends conflict: the loser reads the
//! log again and retries. So nothing that a run waits for completes twice.
//!
//! It stores records of runs, their logs, waits, timers and hooks, and sent events with their order. The runtime of
//! workflows, the API and the outbox call it.

mod append;
mod cancel;
mod completion_notify;
mod components;
mod create;
mod derived_records;
mod emit_log;
mod end_run;
mod entry_plan;
mod expired_leases;
mod external;
mod hook;
mod lease;
mod log;
mod match_past_events;
mod query;
mod send_event;
mod sent_order;
mod sweep;
mod task_waits;
mod wake;
mod workflow_registry;

pub use append::Appended;
pub use components::{
    EventSender, ExternalRuns, Hooks, RunLeases, RunLogs, RunSweep, Runs, SentEvents, TaskWaits,
    WorkflowRegistry,
};
pub use create::{RunSubmission, StartedRun, new_run};
pub use emit_log::check_loggable;
pub use external::{ExternalEvent, conflict};
pub use hook::{HookAnswer, HookPayload, check_chosen_token};
pub use lease::{RUN_LEASE_MS, ReleasePlan, Released, Renewed, RunAcquisition, RunLease};
pub use ledgerline_outbox::SentEvent;
pub use ledgerline_store::RunRecord;
pub use log::{LogEntry, RunLog};
pub use match_past_events::{LookPositions, PastEvent};
pub use query::{LogPlace, RunDetails, RunPage, RunSummary, SentEventPage, SentEventView};
pub use send_event::{EventSubmission, SendingRun, SentRow, SubmittedEvent};
pub use sweep::RunsSwept;
pub use wake::{EventTaken, RunDriver, RunMessage};

pub(crate) use completion_notify::CompletionNotifier;
pub(crate) use create::new_run_of;
