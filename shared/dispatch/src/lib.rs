//! Starts work from the ledger: drainers pass over each tenant's time line by cursor and start what
//! subscribes to it, each start once per epoch, whichever process dies at whichever moment.
//!
//! Correctness rests on the order of writes and reads: a drainer publishes its horizon before it reads the
//! first page ([`record`](DrainRecord), `drain`), stores the effects of a start in a claim before it sends
//! any of them (`claim`), and releases the lease only if no wake-up has come.

mod alerts;
mod asked;
mod attention;
mod block;
mod blocks;
mod claim;
mod compiled;
mod conditional;
mod course;
mod decide;
mod dispatch;
mod drain;
mod drainers;
mod due_parts;
mod epochs;
mod handle;
mod idempotency;
mod jobs;
mod lag;
mod listing;
mod manual_start;
mod marks;
mod memory;
mod new_workflow_type;
mod notice;
mod overdue;
mod parked;
mod queue;
mod record;
mod record_event;
mod registry;
mod release;
mod retry;
mod rewind;
mod round;
mod runs;
mod sample;
mod set_aside;
mod slow_visits;
mod start;
mod sweep;
mod tasks;
mod transaction;
mod verify;
mod visits;
mod waiting;

pub use attention::{Note, NoteKind};
pub use dispatch::{Dispatch, DispatchError, DispatchOptions, Parts};
pub use drain::Drained;
pub use drainers::{DEFAULT_DRAINER, Drainer, Drainers, JOBS_DRAINER};
pub use epochs::{Epochs, Rewound};
pub use handle::Triggered;
pub use idempotency::check_idempotency_key;
pub use jobs::{
    AddedTasks, JobDetails, JobPage, JobRecord, JobSubmission, JobTaskDetails, JobView, SubmittedJob,
    SubmittedJobTask,
};
pub use lag::{DrainerState, STALL_MS};
pub use manual_start::ManualStart;
pub use new_workflow_type::{NewTask, NewWorkflowType};
pub use parked::{MAX_ATTEMPTS, ParkedBecause, ParkedPage, ParkedStart, ParkedState};
pub use queue::{Queue, QueueUrls};
pub use record::{DrainRecord, Halted, LEASE_MS, SETTLE_MS};
pub use record_event::RecordedEvent;
pub use registry::{NewSubscription, SubscriptionChange};
pub use retry::Retried;
pub use rewind::Rewind;
pub use runs::{
    Appended, EventSubmission, EventTaken, ForeignEvent, HookAnswer, HookPayload, LetGo, LogEntry, LogPlace,
    LookPositions, PastEvent, RUN_LEASE_MS, Released, Renewed, RunDetails, RunLease, RunLog, RunMessage,
    RunPage, RunRecord, RunSubmission, RunTaken, RunsSwept, SentEvent, SentEventPage, SentEventView,
    ShownRun, StartedRun, SubmittedEvent, check_chosen_token, check_loggable, conflict,
};
pub use sample::SampleEvent;
pub use sweep::Swept;
pub use tasks::{
    Buried, EndAnswer, HealthChecked, InputRef, SubmittedTask, Taken, TaskEnd, TaskLease, TaskMessage,
    TaskPage, TaskSubmission, Thresholds,
};
pub use verify::{Difference, Standing, Verified, VerifyProgress, What};
