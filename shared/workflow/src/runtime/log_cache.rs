//! A cache of the logs that this process has read. An entry never changes once it is appended, so a later visit reads only
//! the entries after the cached ones: a run that is woken a thousand times does not read its log a thousand times.

use std::collections::{BTreeMap, HashMap};

use ledgerline_event::Name;
use ledgerline_runs::LogEntry;

/// The most bytes of JSON of all cached logs together.
const BYTES_MAX: usize = 16_000_000;

/// A run, by its tenant and its id.
pub(super) type RunKey = (Name, Name);

/// The first entries of one log, without a gap.
#[derive(Debug, Default)]
pub(super) struct CachedLog {
    entries: Vec<LogEntry>,
    bytes: usize,
}

impl CachedLog {
    pub(super) fn entries(&self) -> &[LogEntry] {
        &self.entries
    }

    /// Adds the entries that follow; skips entries that it has.
    pub(super) fn add(&mut self, entries: &[LogEntry]) {
        for entry in entries {
            if entry.sequence == self.entries.len() as u64 + 1 {
                self.bytes += entry.size();
                self.entries.push(entry.clone());
            }
        }
    }
}

/// The logs that were used most recently.
#[derive(Debug, Default)]
pub(super) struct LogCache {
    logs: HashMap<RunKey, (u64, CachedLog)>,
    /// The runs, in the order in which their logs were put here.
    by_use: BTreeMap<u64, RunKey>,
    uses: u64,
    bytes: usize,
}

impl LogCache {
    /// Takes a log out of the cache; empty if the cache does not have it.
    pub(super) fn take(&mut self, run: &RunKey) -> CachedLog {
        let Some((used, log)) = self.logs.remove(run) else { return CachedLog::default() };
        self.by_use.remove(&used);
        self.bytes -= log.bytes;
        log
    }

    /// Puts a log into the cache, and drops the least recently used logs if there is no room.
    pub(super) fn put(&mut self, run: RunKey, log: CachedLog) {
        self.take(&run);
        if log.bytes > BYTES_MAX {
            return;
        }
        self.bytes += log.bytes;
        self.uses += 1;
        self.by_use.insert(self.uses, run.clone());
        self.logs.insert(run, (self.uses, log));
        while self.bytes > BYTES_MAX
            && let Some((_, oldest)) = self.by_use.pop_first()
            && let Some((_, dropped)) = self.logs.remove(&oldest)
        {
            self.bytes -= dropped.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::{LogDraft, Millis, RunEventType};
    use serde_json::json;

    use super::*;

    fn run(number: u64) -> RunKey {
        (Name::new("tenantId", "t").unwrap(), Name::new("runId", format!("run_{number}")).unwrap())
    }

    fn entry(sequence: u64, bytes: usize) -> LogEntry {
        let name = |text: &str| Name::new("id", text).unwrap();
        let serde_json::Value::Object(event_data) = json!({ "result": "x".repeat(bytes) }) else {
            unreachable!("an object")
        };
        let draft =
            LogDraft { event_type: RunEventType::StepCompleted, correlation_id: name("step_1"), event_data };
        LogEntry { sequence, events: vec![draft.at(name("evnt_1"), Millis::MIN)] }
    }

    fn log(sizes: &[usize]) -> CachedLog {
        let mut log = CachedLog::default();
        for (sequence, bytes) in (1..).zip(sizes) {
            log.add(&[entry(sequence, *bytes)]);
        }
        log
    }

    #[test]
    fn a_log_has_no_gap_and_no_entry_twice() {
        let mut log = log(&[10, 10]);
        log.add(&[entry(2, 10), entry(3, 10), entry(5, 10)]);
        let sequences: Vec<u64> = log.entries().iter().map(|entry| entry.sequence).collect();
        assert_eq!(sequences, [1, 2, 3]);
    }

    #[test]
    fn the_least_recently_used_logs_are_dropped() {
        let mut logs = LogCache::default();
        for number in 0..3 {
            logs.put(run(number), log(&[5_000_000]));
        }
        let first = logs.take(&run(0));
        logs.put(run(0), first);
        logs.put(run(3), log(&[5_000_000]));
        let known = |logs: &mut LogCache, number| logs.take(&run(number)).entries().len();
        assert_eq!([0, 1, 2, 3].map(|number| known(&mut logs, number)), [1, 0, 1, 1]);
        assert_eq!((logs.bytes, logs.logs.len(), logs.by_use.len()), (0, 0, 0));
    }

    #[test]
    fn a_log_that_is_too_large_is_not_cached_and_drops_no_other() {
        let mut logs = LogCache::default();
        logs.put(run(0), log(&[10]));
        logs.put(run(1), log(&[BYTES_MAX]));
        assert_eq!((logs.take(&run(0)).entries().len(), logs.take(&run(1)).entries().len()), (1, 0));
    }
}
