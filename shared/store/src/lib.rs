//! The control table, and the payload bucket beside it: everything that is decided, as against what is recorded in the
//! events table.
//!
//! It promises that reads of records are strongly consistent (queries of the two indexes, which say only where to look,
//! are not), that writes say on what condition they hold, and that callers tell refusal, conflict, throttling and
//! mistakes apart by [`Fault`]. All other components store their records through it; the time is always an argument.

mod api_keys;
mod blocks;
mod busy_tenants;
mod claims;
mod conditional_update;
mod dirty_marks;
mod drain_progress;
mod drain_states;
mod epochs;
mod event_idempotency;
mod failed_deliveries;
mod health_check_cursor;
mod job_records;
mod kept_messages;
pub mod keys;
mod late_arrivals;
mod listing;
mod parked_starts;
mod payload_bucket;
mod record_stream;
mod repairs;
mod request_idempotency;
mod request_retry;
mod rounds;
mod rows;
mod run_hooks;
mod run_log;
mod run_records;
mod run_sweep;
mod run_waits;
mod runnable_workflows;
mod sent_events;
mod store_error;
mod subscriptions;
pub mod sweep_cursor;
mod sweeps;
mod table;
mod task_records;
mod task_rows;
mod tenants;
mod transaction;
mod watermarks;
mod with_claim;
mod workflow_types;

pub use api_keys::{ApiKey, ApiKeys, KeyRefused, KeyScope, Revocation};
pub use blocks::{
    Block, BlockRecords, BlockTransaction, BlocksWritten, Cause, Member, OperatorAction, OperatorRequest,
    StoredBlocks,
};
pub use busy_tenants::{BusyChange, BusyMark, BusyMarks, BusyRemoval};
pub use claims::{Claim, ClaimChange, ClaimState, Claimed, Claims, StoredClaim};
pub use conditional_update::{Conditional, conditionally, number, text};
pub use dirty_marks::{Mark, MarkPartition, MarkRecords, MarkStamp};
pub use drain_progress::{Blocked, Halted, LeaseChange, Oldest, Progress};
pub use drain_states::{
    DrainState, DrainStates, HolderWoken, LeaseRequest, LeaseWrite, RewindWrite, RewindWritten,
};
pub use epochs::{Epochs, Rewound};
pub use event_idempotency::{IDEMPOTENCY_TTL_SECONDS, IdempotencyMarkers, Marker};
pub use failed_deliveries::{
    FailedDeliveries, FailedDelivery, FailureFilter, FailurePage, FailureState, Kept,
};
pub use health_check_cursor::{HealthCheckCursor, HealthCheckCursors};
pub use job_records::{
    EarlyAddition, EndsCount, JobEnd, JobInput, JobNode, JobRecord, JobRecords, JobUpdate, JobWrite, PutNew,
    StartsClaim, TaskAddition, TaskOutcome, TaskStartRow,
};
pub use kept_messages::{KeptMessage, KeptMessages};
pub use keys::ControlKey;
pub use late_arrivals::{Confirmed, LateArrivals, LatePointer, LatePointerPage};
pub use listing::ListCursor;
pub use parked_starts::{
    ParkedBecause, ParkedFilter, ParkedPage, ParkedStart, ParkedStartRecords, ParkedState, ParkedWrite,
    RowBefore, StartKeys, StoredStart,
};
pub use payload_bucket::Payloads;
pub use record_stream::RecordStream;
pub use repairs::{JobListing, Repair, Repairs, RunRepair};
pub use request_idempotency::{FirstRequest, FirstRequests, KeyedPut, KeyedRequest, idempotency_expires_at};
pub use request_retry::{RequestRetry, RetryCause};
pub use rounds::{RoundRecord, RoundRecords, RoundWrite};
pub use rows::{ListStartKey, ListedKeys, Row, Rows};
pub use run_hooks::{HookRecord, HookRecords};
pub use run_log::{
    Appender, LogEntryRow, LogGuard, PutLogEntry, RefusedParts, RunChange, RunEnding, RunLogRecords,
    RunLogWrite, RunStart, RunWrite, TableWrite,
};
pub use run_records::{NewRunLease, RunCreation, RunRecord, RunRecords, RunRelease, VisitEnd};
pub use run_sweep::RunSweepRecords;
pub use run_waits::{WaitRecord, WaitRecords, Waiter};
pub use runnable_workflows::{RefusedRun, RunnableWorkflow, RunnableWorkflowRecords};
pub use sent_events::{NewestSent, SentEventRecord, SentEventRecords, SentFloor, SentLimits, SentOrder};
pub use store_error::{Fault, StoreError};
pub use subscriptions::SubscriptionRecords;
pub use sweeps::{SweepEnd, Sweeps};
pub use table::{ControlTable, DUE_INDEX, Item, LIST_INDEX, item, item_of, key_item, read};
pub use task_records::{AcquireRequest, EndCondition, FoundRecord, Phase, TaskRecord, TaskRecords};
pub use task_rows::{RowPut, SummaryRow, TaskRows};
pub use tenants::Tenants;
pub use transaction::{Cancelled, back_off, build_error, cancelled};
pub use watermarks::{AnnouncedWatermarks, Watermarks};
pub use with_claim::WithClaim;
pub use workflow_types::WorkflowTypeRecords;
