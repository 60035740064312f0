//! Drains: each drainer reads each tenant's time line by cursor and starts what subscribes to it.
//!
//! It promises that each start is made once per epoch, whichever process dies at whichever moment. A start that fails
//! for good is parked and holds up nothing. One that may work later opens a block, which holds up the later starts of
//! its subscription and entity, or of its whole subscription while the workflow type is not registered. With
//! `onFailure: halt` the drainer starts nothing after the event until the start works.
//!
//! Correctness rests on the order of writes and reads: a drainer announces its watermark before it reads the first page
//! ([`DrainState`], `drain`), the outbox stores the effects of a start before it sends any of them, and a drainer
//! releases the lease only if no wake-up has come.
//!
//! It stores drain states, marks, blocks, parked starts, rounds, subscriptions and workflow types. The dispatcher calls
//! it to drain; the API calls it with what tenants register and what operators request.

mod block_retry;
mod components;
mod dirty_marks;
mod drain;
mod drainers;
mod event_handler;
mod lag;
mod lease;
mod manual_start;
mod matcher_cache;
mod new_workflow_type;
mod open_blocks;
mod operator_requests;
mod operator_retry;
mod park_or_halt;
mod park_start;
mod parked_starts;
mod read_late_arrivals;
mod recently_handled;
mod registry;
mod release_blocks;
mod rewind;
mod round;
mod slow_visits;
mod start_decision;
mod start_plan;
mod sweep;
mod try_subscriptions;
mod visits;
mod waiting_starts;

pub use components::{
    DrainParts, Drains, JobEvents, Page, PageHandled, PageStop, ParkedStarts, Registry, Sweep,
};
pub use drain::Drained;
pub use drainers::{DEFAULT_DRAINER, Drainer, Drainers, JOBS_DRAINER};
pub use event_handler::Triggered;
pub use lag::{DrainerState, STALL_MS};
pub use lease::{LEASE_MS, SETTLE_MS};
pub use ledgerline_store::{
    DrainState, Epochs, Halted, ParkedBecause, ParkedFilter, ParkedPage, ParkedStart, ParkedState, Rewound,
};
pub use manual_start::ManualStart;
pub use new_workflow_type::{NewTask, NewWorkflowType};
pub use operator_retry::Retried;
pub use park_start::MAX_ATTEMPTS;
pub use registry::{NewSubscription, SubscriptionChange};
pub use rewind::{CountEvents, Rewind, RewindScope};
pub use start_plan::{Input, PlanError, StartEffects, StartPlanner, StartRequest};
pub use sweep::Swept;
pub use try_subscriptions::SampleEvent;
