//! The components of this module, each with the handles that it needs.

use std::sync::Arc;

use futures::future::BoxFuture;
use ledgerline_event::{Event, Name};
use ledgerline_ledger::{Emitter, Timeline};
use ledgerline_outbox::{ComponentError, Outbox};
use ledgerline_store::{ControlTable, JobRecords, Payloads};

use crate::Tasks;

/// An end that a run may wait for.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Ended {
    /// A task that the run started has ended by this event.
    Task { run_id: Name, end: Box<Event> },
    /// A job that the run started is completed, or one of its tasks has failed.
    Job { tenant: Name, run_id: Name, job_id: Name, failed_task: Option<Name> },
}

/// Receives ends. The stage injects it: the crate of runs does not depend on this one.
pub type EndListener = Arc<dyn Fn(Ended) -> BoxFuture<'static, Result<(), ComponentError>> + Send + Sync>;

/// The inputs of tasks of jobs: their own, and the outputs of their parents.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct JobInputs {
    pub payloads: Payloads,
    pub emitter: Emitter,
    pub timeline: Timeline,
    pub records: JobRecords,
}

/// What callers ask of jobs: submission, added tasks, resumption, queries.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Jobs {
    pub records: JobRecords,
    pub inputs: JobInputs,
    pub tasks: Tasks,
    pub outbox: Outbox,
}

impl Jobs {
    /// Jobs whose tasks are `tasks`.
    pub fn new(
        control: ControlTable,
        payloads: Payloads,
        emitter: Emitter,
        timeline: Timeline,
        tasks: Tasks,
        outbox: Outbox,
    ) -> Self {
        let records = JobRecords::new(control);
        let inputs = JobInputs { payloads, emitter, timeline, records: records.clone() };
        Self { records, inputs, tasks, outbox }
    }
}
