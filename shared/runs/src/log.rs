//! The log of a run: entries of events, each entry one row, in the order in which they were appended.

use futures::future::try_join_all;
use ledgerline_event::{LogDraft, LogEvent, Millis, Name, RunHistory};
use ledgerline_store::{LogEntryRow, RunRecord, StoreError, keys};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{RunDriver, RunLogs};
use ledgerline_outbox::ComponentError;

/// Larger details of an event lie in the payload bucket.
const INLINE_BYTES: usize = 50_000;
/// The names of the fields, the event's id, its type and its time, and the key of details that are in the payload bucket.
const ENVELOPE_BYTES: usize = 250;
/// The events of one entry take no more than this: a row has 400 KB.
pub(crate) const ENTRY_BYTES: usize = 300_000;

/// The events that one append added to a log.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct LogEntry {
    pub sequence: u64,
    pub events: Vec<LogEvent>,
}

impl LogEntry {
    /// How long it is as JSON, about.
    pub fn size(&self) -> usize {
        self.events.iter().map(|event| ENVELOPE_BYTES + json_size(&event.event_data)).sum()
    }
}

/// A run's log as far as it was read, folded.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct RunLog {
    pub tenant: Name,
    pub run_id: Name,
    /// The number of the last entry.
    pub sequence: u64,
    pub history: RunHistory,
    pub last_time: Millis,
    pub driver: RunDriver,
    /// Whether `history` has events that were not appended after all.
    pub diverged: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredEvent {
    #[serde(flatten)]
    event: LogEvent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_key: Option<String>,
}

impl RunLog {
    /// A log of which nothing is read.
    pub fn new(tenant: Name, run_id: Name, driver: RunDriver) -> Self {
        Self {
            tenant,
            run_id,
            sequence: 0,
            history: RunHistory::default(),
            last_time: Millis::MIN,
            driver,
            diverged: false,
        }
    }

    /// Adds an entry that follows.
    pub fn add(&mut self, entry: &LogEntry) -> Result<(), ComponentError> {
        for event in &entry.events {
            self.history.apply(event).map_err(|illegal| {
                let what = format!("the log of {} is broken at {}: {illegal}", self.run_id, entry.sequence);
                StoreError::unreadable("reading a log", what)
            })?;
            self.last_time = self.last_time.max(event.timestamp);
        }
        self.sequence = entry.sequence;
        Ok(())
    }
}

impl RunLogs {
    /// The entries after `after`, whole.
    pub async fn log_entries(
        &self,
        tenant: &str,
        run_id: &str,
        after: u64,
    ) -> Result<Vec<LogEntry>, ComponentError> {
        self.some_entries(tenant, run_id, after, usize::MAX).await
    }

    /// The first `most` of them.
    pub async fn some_entries(
        &self,
        tenant: &str,
        run_id: &str,
        after: u64,
        most: usize,
    ) -> Result<Vec<LogEntry>, ComponentError> {
        let rows = self.entries.entries(tenant, run_id, after, most).await?;
        let entries = rows.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        try_join_all(entries.into_iter().map(|(sequence, stored)| async move {
            let events = stored.into_iter().map(|event| self.whole(event));
            Ok(LogEntry { sequence, events: try_join_all(events).await? })
        }))
        .await
    }

    /// The last entry.
    pub async fn last_entry(&self, tenant: &str, run_id: &str) -> Result<Option<LogEntry>, ComponentError> {
        let Some(row) = self.entries.last(tenant, run_id).await? else { return Ok(None) };
        let (sequence, stored) = parse(row)?;
        // Callers need the types of the events, not their details, which may be in the payload bucket.
        Ok(Some(LogEntry { sequence, events: stored.into_iter().map(|stored| stored.event).collect() }))
    }

    /// The whole log of a run, folded, and its entries.
    pub async fn read_log(
        &self,
        run: &RunRecord,
        tenant: &Name,
    ) -> Result<(RunLog, Vec<LogEntry>), ComponentError> {
        self.read_log_after(run, tenant, &[]).await
    }

    /// The same if the first entries are known already: the whole log, folded, and the entries after those.
    pub async fn read_log_after(
        &self,
        run: &RunRecord,
        tenant: &Name,
        known: &[LogEntry],
    ) -> Result<(RunLog, Vec<LogEntry>), ComponentError> {
        let mut log = RunLog::new(tenant.clone(), run.run_id.clone(), RunDriver::of(run.external));
        for entry in known {
            log.add(entry)?;
        }
        let entries = self.log_entries(tenant, &run.run_id, log.sequence).await?;
        for entry in &entries {
            log.add(entry)?;
        }
        Ok((log, entries))
    }

    /// Reads the entries that other processes have appended since, and folds them into `log`. Returns the new
    /// entries.
    pub async fn catch_up(&self, log: &mut RunLog) -> Result<Vec<LogEntry>, ComponentError> {
        let known = log.sequence;
        if log.diverged {
            // The fold begins anew. The driver is not part of the fold.
            *log = RunLog::new(log.tenant.clone(), log.run_id.clone(), log.driver);
        }
        let mut entries = self.log_entries(&log.tenant, &log.run_id, log.sequence).await?;
        for entry in &entries {
            log.add(entry)?;
        }
        entries.retain(|entry| entry.sequence > known);
        Ok(entries)
    }

    /// A row for events; what is large in them is stored first.
    pub async fn entry_row(&self, nonce: &Name, events: &[LogEvent]) -> Result<LogEntryRow, ComponentError> {
        let mut stored = Vec::with_capacity(events.len());
        for event in events {
            let unreadable = |error: serde_json::Error| StoreError::unreadable("PutItem", error.to_string());
            let data = match json_size(&event.event_data) > INLINE_BYTES {
                true => Some(serde_json::to_vec(&event.event_data).map_err(unreadable)?),
                false => None,
            };
            stored.push(match data {
                None => StoredEvent { event: event.clone(), data_key: None },
                Some(data) => {
                    let key = format!("runs/{}.json", event.event_id);
                    self.payloads.put(&key, data).await?;
                    let event = LogEvent { event_data: Map::new(), ..event.clone() };
                    StoredEvent { event, data_key: Some(key) }
                }
            });
        }
        let events = serde_json::to_string(&stored)
            .map_err(|error| StoreError::unreadable("PutItem", error.to_string()))?;
        Ok(LogEntryRow::new(nonce.clone(), events))
    }

    async fn whole(&self, stored: StoredEvent) -> Result<LogEvent, ComponentError> {
        let StoredEvent { mut event, data_key } = stored;
        if let Some(key) = data_key {
            let unreadable = |what: String| StoreError::unreadable("reading a log", what);
            let body =
                self.payloads.get(&key).await?.ok_or_else(|| unreadable(format!("{key} is missing")))?;
            event.event_data = serde_json::from_slice::<Map<String, Value>>(&body)
                .map_err(|error| unreadable(format!("{key}: {error}")))?;
        }
        Ok(event)
    }
}

/// How many bytes of a row an event takes at most.
pub(crate) fn stored_size(draft: &LogDraft) -> usize {
    let data = json_size(&draft.event_data);
    let envelope = ENVELOPE_BYTES + json_size(&draft.correlation_id);
    envelope + if data > INLINE_BYTES { 2 } else { data }
}

/// How long a value is as JSON, with everything that has to be escaped.
pub(crate) fn json_size(value: &impl Serialize) -> usize {
    struct Counted(usize);
    impl std::io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(0);
    match serde_json::to_writer(&mut counted, value) {
        Ok(()) => counted.0,
        // Writing it down says what is wrong.
        Err(_) => usize::MAX / 2,
    }
}

fn parse(row: LogEntryRow) -> Result<(u64, Vec<StoredEvent>), ComponentError> {
    let unreadable = |what: String| StoreError::unreadable("reading a log", what);
    let sequence = keys::parse_run_entry(&row.sk).ok_or_else(|| unreadable(row.sk.clone()))?;
    let stored = serde_json::from_str(&row.events).map_err(|error| unreadable(error.to_string()))?;
    Ok((sequence, stored))
}

#[cfg(test)]
mod tests {
    use ledgerline_event::RunEventType;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stored_event_is_never_larger_than_was_reckoned() {
        for (id, data) in [
            ("step_1".to_owned(), json!({"result": "\"".repeat(20_000)})),
            (
                "\"".repeat(128),
                json!({"error": "\u{1}\n\\ä€😀".repeat(100), "n": [1.5e-300, -7, u64::MAX, null, true]}),
            ),
            ("x".to_owned(), json!({})),
        ] {
            let Value::Object(event_data) = data else { unreachable!("an object") };
            let correlation_id = Name::new("id", id).unwrap();
            let draft = LogDraft { event_type: RunEventType::StepCompleted, correlation_id, event_data };
            let at = Millis::try_from(9_999_999_999_999).unwrap();
            let id = Name::new("id", "evnt_01M7J576DPE1KRSR8X0X1DY98M").unwrap();
            let data_key = Some(format!("runs/{id}.json"));
            let stored = StoredEvent { event: draft.clone().at(id, at), data_key };
            let actual = serde_json::to_string(&stored).unwrap().len();
            assert!(actual <= stored_size(&draft), "{actual} of {}", stored_size(&draft));
        }
    }
}
