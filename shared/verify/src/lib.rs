//! Compares what is stored of tasks, jobs and runs with what the ledger tells: the rows that people list, the records
//! that decide, the jobs with their counts, and the logs. Derived rows can be rebuilt; differences in authoritative
//! records are only reported.
//!
//! It promises that events still in flight are not reported as faults. It stores nothing of its own. Operators call it.

mod claims;
mod compare;
mod difference;
mod fold;
mod job_rows;
mod jobs;
mod orphans;
mod records;
mod rows;
mod runs;

use ledgerline_drains::Drains;
use ledgerline_jobs::{Jobs, Tasks};
use ledgerline_ledger::{Emitter, Timeline};
use ledgerline_outbox::Outbox;
use ledgerline_runs::Runs;
use ledgerline_store::{Claims, ControlTable, LateArrivals, Repairs, Rows};

pub use compare::VerifyProgress;
pub use difference::{Difference, DifferenceKind, Mode, Standing, Verified};

/// Compares records and rows with the ledger.
#[derive(Clone)]
pub struct Verify {
    pub(crate) rows: Rows,
    pub(crate) repairs: Repairs,
    pub(crate) claims: Claims,
    pub(crate) late_arrivals: LateArrivals,
    pub(crate) timeline: Timeline,
    pub(crate) emitter: Emitter,
    pub(crate) outbox: Outbox,
    pub(crate) tasks: Tasks,
    pub(crate) jobs: Jobs,
    pub(crate) runs: Runs,
    pub(crate) drains: Drains,
}

impl Verify {
    /// Compares the records of these components.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        control: ControlTable,
        timeline: Timeline,
        emitter: Emitter,
        outbox: Outbox,
        tasks: Tasks,
        jobs: Jobs,
        runs: Runs,
        drains: Drains,
    ) -> Self {
        let (rows, repairs) = (Rows::new(control.clone()), Repairs::new(control.clone()));
        let (claims, late_arrivals) = (Claims::new(control.clone()), LateArrivals::new(control));
        Self { rows, repairs, claims, late_arrivals, timeline, emitter, outbox, tasks, jobs, runs, drains }
    }
}
