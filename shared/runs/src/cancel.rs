//! Cancels a run: everything open is closed, and nothing follows.

use ledgerline_event::{LogDraft, Name, RunEventType, RunState};
use serde_json::{Map, Value};

use super::{RunRecord, end_run::NO_LEASE};
use crate::{RunDriver, Runs};
use ledgerline_outbox::ComponentError;

impl Runs {
    /// Cancels a run that has not ended. Returns the run afterwards.
    pub async fn cancel_run(
        &self,
        tenant: &Name,
        run_id: &str,
        reason: Option<&str>,
    ) -> Result<RunRecord, ComponentError> {
        let run = self.logs.known_run(tenant, run_id).await?;
        let (mut log, _) = self.logs.read_log(&run, tenant).await?;
        let data = reason.map(|reason| ("reason".to_owned(), Value::from(reason)));
        let cancelled = LogDraft {
            event_type: RunEventType::RunCancelled,
            correlation_id: run.run_id.clone(),
            event_data: Map::from_iter(data),
        };
        let ending = self.logs.ending_of(&run).await?;
        if let Some(ending) = &ending {
            // An interrupted end is finished as recorded in `ending`, even if that is not a cancellation.
            self.logs.end_run(&mut log, ending, NO_LEASE).await?;
        }
        let finished_earlier_cancel = ending.is_some() && log.history.state() == Some(RunState::Cancelled);
        if !finished_earlier_cancel {
            log.history.check(&cancelled)?;
            self.logs.end_run(&mut log, &cancelled, NO_LEASE).await?;
        }
        self.continue_run(tenant, &run.run_id, RunDriver::of(run.external)).await?;
        self.logs.known_run(tenant, run_id).await
    }
}
