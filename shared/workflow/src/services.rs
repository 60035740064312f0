//! What a workflow reaches besides its own log: tasks, jobs, and events for other runs.

use ledgerline_event::Name;
use ledgerline_ledger::Emitter;
use ledgerline_stage::Stage;

/// Starts tasks and jobs and sends events in the context of a run.
#[derive(Debug)]
pub struct Services {
    pub(crate) stage: Stage,
    pub(crate) emitter: Emitter,
    pub(crate) run_id: Name,
}

impl Services {
    pub(crate) fn new(stage: Stage, emitter: Emitter, run_id: Name) -> Self {
        Self { stage, emitter, run_id }
    }
}
