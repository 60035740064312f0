//! Cancelling a run: whatever is open is closed, and nothing follows.

use ledgerline_event::{LogDraft, Name, RunEventType, RunState};
use serde_json::{Map, Value};

use super::{Appended, RunRecord};
use crate::{Dispatch, DispatchError, transaction::busy};

impl Dispatch {
    /// Cancels a run that has not ended. Answers the run as it is then.
    pub async fn cancel_run(
        &self,
        tenant: &Name,
        run_id: &str,
        reason: Option<&str>,
    ) -> Result<RunRecord, DispatchError> {
        let run = self.known_run(tenant, run_id).await?;
        let mut attempt = 0;
        let (mut log, _) = self.read_log(&run, tenant).await?;
        loop {
            let data = reason.map(|reason| ("reason".to_owned(), Value::from(reason)));
            let cancelled = LogDraft {
                event_type: RunEventType::RunCancelled,
                correlation_id: run.run_id.clone(),
                event_data: Map::from_iter(data),
            };
            log.history.check(&cancelled)?;
            let drafts: Vec<LogDraft> = log.history.closings().into_iter().chain([cancelled]).collect();
            match self.append(&mut log, &drafts, None).await? {
                Appended::Done(_) if log.history.state().is_some_and(RunState::is_terminal) => break,
                // More was open than one entry holds.
                Appended::Done(_) => {}
                Appended::Behind | Appended::TokenTaken(_) | Appended::Lost | Appended::GuardRefused => {
                    attempt = busy(attempt).await?;
                    self.catch_up(&mut log).await?;
                }
            }
        }
        self.go_on(tenant, &run.run_id, run.external).await?;
        self.known_run(tenant, run_id).await
    }
}
