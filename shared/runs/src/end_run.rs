//! The end of a run that has more open than one entry can close. The first entry that closes something writes the run's last
//! event into the record, so that the process may die between two entries: the next visit, or the sweep, ends the run.

use ledgerline_event::{LogDraft, Name, RunEntity, RunEventType, RunState};
use ledgerline_store::{RunEnding, StoreError};

use super::{Appended, RunLease, RunLog, RunRecord, log::json_size};
use crate::RunLogs;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{RequestRetry, RetryCause, back_off};

/// A larger last event lies in the payload bucket: a record has 400 KB.
const INLINE_BYTES: usize = 50_000;

/// No lease: for [`RunLogs::append`] and [`RunLogs::end_run`] by a process that is not the run's runner.
pub(crate) const NO_LEASE: Option<&RunLease> = None;

/// Whether nothing can follow an event of this type.
pub(crate) fn is_last(event_type: RunEventType) -> bool {
    event_type.entity() == RunEntity::Run
        && !matches!(event_type, RunEventType::RunCreated | RunEventType::RunStarted)
}

impl RunLogs {
    /// The last event of a run as the record keeps it until a later entry appends it. `nonce` is that of the entry.
    pub async fn ending(&self, last: &LogDraft, nonce: &Name) -> Result<RunEnding, ComponentError> {
        let json = serde_json::to_string(last)
            .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
        if json_size(&json) <= INLINE_BYTES {
            return Ok(RunEnding::Inline(json));
        }
        let key = format!("runs/{nonce}-end.json");
        self.payloads.put(&key, json.into_bytes()).await?;
        Ok(RunEnding::Stored(key))
    }

    /// The last event of a run that has begun to end and has not ended.
    pub async fn ending_of(&self, run: &RunRecord) -> Result<Option<LogDraft>, ComponentError> {
        let unreadable = |what: String| StoreError::unreadable("reading a run", what);
        let json = match (&run.ending, &run.ending_key) {
            _ if run.ended_at.is_some() => return Ok(None),
            (Some(json), _) => json.clone().into_bytes(),
            (None, Some(key)) => {
                let found = self.payloads.get(key).await?;
                found.ok_or_else(|| unreadable(format!("{key} is missing")))?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string()))?))
    }

    /// The same of a run as it is now.
    pub async fn ending_now(&self, tenant: &Name, run_id: &Name) -> Result<Option<LogDraft>, ComponentError> {
        match self.records.get(tenant, run_id).await? {
            Some(run) => self.ending_of(&run).await,
            None => Ok(None),
        }
    }

    /// Closes everything that is open and appends the run's last event. Another end may come first: the log decides. A
    /// runner passes the `lease` that it holds on the run; other processes pass `NO_LEASE`.
    pub async fn end_run(
        &self,
        log: &mut RunLog,
        last: &LogDraft,
        lease: Option<&RunLease>,
    ) -> Result<(), ComponentError> {
        let mut retries = RequestRetry::default();
        while !log.history.state().is_some_and(RunState::is_terminal) {
            let drafts: Vec<LogDraft> = log.history.closings().into_iter().chain([last.clone()]).collect();
            match self.append(log, &drafts, lease).await? {
                // Perhaps more was open than one entry closes.
                Appended::Done(_) => {}
                Appended::StaleLog | Appended::TokenTaken(_) | Appended::Lost | Appended::GuardRefused => {
                    back_off(&mut retries, RetryCause::LostRace).await?;
                    self.catch_up(log).await?;
                }
            }
        }
        Ok(())
    }
}
