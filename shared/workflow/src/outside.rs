//! What a workflow reaches outside of its own log: tasks, jobs, events to other runs.

use ledgerline_dispatch::Dispatch;
use ledgerline_event::Name;
use ledgerline_ledger::Emitter;

/// The way from a run to everything else, in the run's own context.
#[derive(Debug)]
pub struct Outside {
    pub(crate) dispatch: Dispatch,
    pub(crate) emitter: Emitter,
    pub(crate) run_id: Name,
}

impl Outside {
    pub(crate) fn new(dispatch: Dispatch, emitter: Emitter, run_id: Name) -> Self {
        Self { dispatch, emitter, run_id }
    }
}
