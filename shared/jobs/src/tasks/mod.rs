//! Tasks: the messages that workers receive, the record by which an attempt has one worker and a generation one end,
//! and what happens when no worker can run a task.

mod dead_letter;
mod end;
mod kept_messages;
mod lease;
mod message;
mod submit;
mod summary;
mod untaken;

pub use dead_letter::DeadLetterEnd;
pub use end::{EndAnswer, TaskEnd};
pub use lease::{Acquisition, TaskLease};
pub use message::{InputRef, MessageStorage, TaskMessage, TaskStart, seal};
pub use submit::{SubmittedTask, TaskSubmission};
pub use summary::TaskPage;

pub use summary::next_row;

use ledgerline_ledger::{Emitter, Timeline};
use ledgerline_outbox::{Outbox, Queues};
use ledgerline_store::{BusyMarks, ControlTable, KeptMessages, Payloads, TaskRecords, TaskRows};

/// Tasks of one stage: submission, leases, ends, queries.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Tasks {
    pub records: TaskRecords,
    pub rows: TaskRows,
    pub messages: KeptMessages,
    pub busy: BusyMarks,
    pub payloads: Payloads,
    pub emitter: Emitter,
    pub timeline: Timeline,
    pub queues: Queues,
    pub outbox: Outbox,
}

impl Tasks {
    /// Tasks of the stage whose outbox is `outbox`.
    pub fn new(
        control: ControlTable,
        payloads: Payloads,
        emitter: Emitter,
        timeline: Timeline,
        queues: Queues,
        outbox: Outbox,
    ) -> Self {
        Self {
            records: TaskRecords::new(control.clone()),
            rows: TaskRows::new(control.clone()),
            messages: KeptMessages::new(control.clone()),
            busy: BusyMarks::new(control),
            payloads,
            emitter,
            timeline,
            queues,
            outbox,
        }
    }
}
