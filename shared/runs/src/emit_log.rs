//! Emits the log of a run to the ledger. The events of an entry have their ids and times, so sending them again changes
//! nothing; the run's record says how far they were sent.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use ledgerline_event::{Event, Invalid, LogDraft, LogEvent, Name, Properties, overflow};
use ledgerline_ledger::{EmitError, Emitter, SealedEvent, check_storable};
use serde_json::{Map, Value};

use super::{LogEntry, LookPositions, RunRecord, end_run::NO_LEASE};
use crate::Runs;
use ledgerline_outbox::ComponentError;
use ledgerline_store::Conditional;

impl Runs {
    /// An emitter for events of a run.
    pub fn run_emitter(&self, tenant: &Name, run: &RunRecord) -> Emitter {
        self.emitter.with_scope(|scope| {
            scope.tenant = tenant.clone();
            scope.app = run.app_name.clone();
            scope.context = run.context();
            scope.caused_by = run.caused_by.clone();
            scope.workflow_run_id = Some(run.run_id.to_string());
        })
    }

    /// Sends events of a run's log to the ledger.
    pub async fn emit_log(
        &self,
        tenant: &Name,
        run: &RunRecord,
        events: &[LogEvent],
    ) -> Result<(), ComponentError> {
        let emitter = self.run_emitter(tenant, run);
        let sealed = events.iter().map(|event| async {
            let event = in_ledger(&emitter, event)?;
            emitter.seal(event).await
        });
        let sealed: Vec<SealedEvent> = try_join_all(sealed).await.map_err(|error: EmitError| error)?;
        self.emitter.send_sealed(sealed).await?;
        Ok(())
    }

    /// Finishes what follows from the log of an external run: ends the run if its end is decided, gives its new waits
    /// the events that were sent for them, and emits the log.
    pub async fn settle_run(&self, tenant: &Name, run_id: &Name) -> Result<(), ComponentError> {
        loop {
            let Some(run) = self.records.get(tenant, run_id).await? else { return Ok(()) };
            if !run.external {
                // Its runner does that.
                return Ok(());
            }
            if let Some(ending) = self.logs.ending_of(&run).await? {
                let (mut log, _) = self.logs.read_log(&run, tenant).await?;
                Box::pin(self.logs.end_run(&mut log, &ending, NO_LEASE)).await?;
                continue;
            }
            let known = run.emitted.min(run.looked());
            let entries = self.logs.log_entries(tenant, run_id, known).await?;
            let mut positions = LookPositions::of(&run);
            if self.take_past_events(tenant, &run, &entries, &mut positions).await? {
                // There is more in the log.
                continue;
            }
            let emitted = self.emit_entries(tenant, &run, entries).await?;
            let looks = positions.to_json();
            return match self.records.note_settled(tenant, &run, emitted, &looks).await? {
                // If it is refused, the process that woke the run since then settles it, or the sweep.
                Conditional::Done(_) | Conditional::Refused(_) => Ok(()),
            };
        }
    }

    /// Emits what the ledger does not have yet of a run that no runner has acquired.
    pub async fn emit_pending(&self, tenant: &Name, run_id: &Name) -> Result<(), ComponentError> {
        loop {
            let Some(run) = self.records.get(tenant, run_id).await? else { return Ok(()) };
            let entries = self.logs.log_entries(tenant, run_id, run.emitted).await?;
            let emitted = self.emit_entries(tenant, &run, entries).await?;
            match self.records.note_emitted(tenant, &run, emitted).await? {
                Conditional::Done(_) => return Ok(()),
                // Its runner has emitted more by now.
                Conditional::Refused(Some(there)) if there.emitted > emitted => return Ok(()),
                // It was woken: there is more in the log.
                Conditional::Refused(_) => {}
            }
        }
    }

    /// Emits those of these entries that the ledger does not have. Returns the number of the last entry that it has
    /// then.
    async fn emit_entries(
        &self,
        tenant: &Name,
        run: &RunRecord,
        mut entries: Vec<LogEntry>,
    ) -> Result<u64, ComponentError> {
        entries.retain(|entry| entry.sequence > run.emitted);
        let last = entries.last().map_or(run.emitted, |entry| entry.sequence);
        let events: Vec<LogEvent> = entries.into_iter().flat_map(|entry| entry.events).collect();
        self.emit_log(tenant, run, &events).await?;
        Ok(last)
    }

    /// Gives the waits of these entries, and those that were notified, the events that were sent for them. Returns
    /// whether a wait took an event.
    async fn take_past_events(
        &self,
        tenant: &Name,
        run: &RunRecord,
        entries: &[LogEntry],
        positions: &mut LookPositions,
    ) -> Result<bool, ComponentError> {
        let waits = entries.iter().flat_map(|entry| &entry.events).filter(|event| event.waits_for_event());
        let waits: BTreeSet<&Name> =
            waits.map(|event| &event.correlation_id).chain(&run.notified_waits).collect();
        if waits.is_empty() {
            return Ok(false);
        }
        let (mut log, _) = self.logs.read_log(run, tenant).await?;
        let mut any = false;
        for wait_id in waits {
            let past = self.sent.find_past_event(tenant, &log.history, wait_id, positions).await?;
            if let Some(past) = past {
                // If it is refused, another process has completed the wait.
                if Box::pin(self.take_event_externally(&log, &past)).await? {
                    positions.taken(&past);
                }
                any = true;
                self.logs.catch_up(&mut log).await?;
            }
        }
        Ok(any)
    }
}

/// An event of a log as the ledger has it.
fn in_ledger(emitter: &Emitter, event: &LogEvent) -> Result<Event, Invalid> {
    emitter
        .event(event.event_type.as_str())
        .entity(event.event_type.entity().entity_type(), event.correlation_id.as_str())
        .event_id(event.event_id.clone())
        .at(event.timestamp)
        .properties(properties(&event.correlation_id, &event.event_data))
        .build_plain()
}

fn properties(correlation_id: &Name, data: &Map<String, Value>) -> Properties {
    let mut properties = data.clone();
    properties.insert("correlationId".into(), Value::from(correlation_id.as_str()));
    properties
}

/// Checks that the ledger can hold the data of an event, before it is appended: a log that cannot be emitted would stop
/// its run.
pub fn check_loggable(draft: &LogDraft) -> Result<(), Invalid> {
    let wrong = |reason: String| Invalid::new("eventData", reason);
    if draft.event_data.contains_key(overflow::MARKER) {
        return Err(wrong(format!("{} is reserved", overflow::MARKER)));
    }
    let json = serde_json::to_string(&draft.event_data).map_err(|error| wrong(error.to_string()))?;
    check_storable(&json).map_err(wrong)
}
