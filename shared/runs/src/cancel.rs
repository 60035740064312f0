//! Cancels a run: everything open is closed, and nothing follows.

use ledgerline_event::{LogDraft, Name, RunEventType, RunState};
use serde_json::{Map, Value};

use super::RunRecord;
use crate::{RunDriver, Runs};
use ledgerline_outbox::ComponentError;

impl Runs {
    /// Cancels a run that has not ended. Answers the run as it is then.
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
            // It has begun to end before: the way it began is the way it ends.
            self.logs.end_run(&mut log, ending, None).await?;
        }
        let was_cancelled = ending.is_some() && log.history.state() == Some(RunState::Cancelled);
        if !was_cancelled {
            log.history.check(&cancelled)?;
            self.logs.end_run(&mut log, &cancelled, None).await?;
        }
        self.continue_run(tenant, &run.run_id, RunDriver::of(run.external)).await?;
        self.logs.known_run(tenant, run_id).await
    }
}
