//! The findings of local mode about itself, for `/api/health`: its store, its queues, its parts and its log.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ledgerline_embedded::{Counts, Embedded, Waiting};
use ledgerline_ledger::Names;
use producer_api::{Finding, Level, Vitals};
use serde_json::json;

use super::{
    functions::SAVER,
    supervisor::{Part, Supervisor},
};

/// Events that wait longer than this to be saved are late.
const LATE_MS: u64 = 60_000;
/// A queue whose oldest message waits longer than this has no reader, or one that is too slow.
const UNREAD_MS: u64 = 2 * 60_000;
/// How long a failed request of the store is reported.
const FAILED_WITHIN: Duration = Duration::from_secs(15);

/// A function that checks everything each time it is called.
pub(super) fn vitals(
    embedded: &Embedded,
    names: &Names,
    supervisor: &Supervisor,
    dropped_log_lines: fn() -> u64,
) -> Vitals {
    let (prober, queues) = (embedded.prober(), embedded.queues());
    let (ingest, supervisor) = (names.ingest_queue.clone(), supervisor.clone());
    let queues_of_work = [names.task_queue.clone(), names.run_queue.clone()];
    Arc::new(move || {
        let mut findings = Vec::new();
        if let Err(reason) = prober.has_its_files() {
            findings.push(Finding::new(Level::Down, "store", reason));
        } else if let Err(reason) = prober.probe() {
            findings.push(Finding::new(Level::Down, "store", format!("a write failed: {reason}")));
        } else if let Some(reason) = prober.failed_within(FAILED_WITHIN) {
            let reason = format!("a moment ago: {reason}");
            findings.push(Finding::new(Level::Degraded, "store", reason));
        }
        let (waiting, parts) = (queues.waiting(), supervisor.parts());
        let saving = waiting.get(&ingest).copied().unwrap_or_default();
        findings.extend(saving_behind(saving));
        findings.extend(queues_of_work.iter().filter_map(|name| unread_queue(name, *waiting.get(name)?)));
        findings.extend(part_findings(&parts));
        let queues: BTreeMap<_, _> = waiting
            .into_iter()
            .map(|(name, Waiting { counts, oldest_ms, .. })| {
                let Counts { visible, in_flight, delayed } = counts;
                let shown = json!({ "visible": visible, "inFlight": in_flight, "delayed": delayed, "oldestMs": oldest_ms });
                (name, shown)
            })
            .collect();
        let parts: BTreeMap<_, _> = parts
            .into_iter()
            .map(|(name, part)| {
                let shown =
                    json!({ "running": part.running, "restarts": part.restarts, "trouble": part.trouble() });
                (name, shown)
            })
            .collect();
        (findings, json!({ "queues": queues, "parts": parts, "droppedLogLines": dropped_log_lines() }))
    })
}

fn saving_behind(Waiting { counts, oldest_ms, .. }: Waiting) -> Option<Finding> {
    let ms = oldest_ms.filter(|ms| *ms >= LATE_MS)?;
    let waiting = counts.visible + counts.in_flight;
    let reason = format!("saving is {} s behind; {waiting} events wait", ms / 1000);
    Some(Finding::new(Level::Degraded, "saving", reason))
}

fn unread_queue(name: &str, Waiting { counts, oldest_visible_ms, .. }: Waiting) -> Option<Finding> {
    let seconds = oldest_visible_ms.filter(|ms| *ms >= UNREAD_MS)? / 1000;
    let reason = match counts.visible {
        1 => format!("1 message waits for {seconds} s: does a worker or runner read it?"),
        many => format!("{many} messages wait, the oldest for {seconds} s: does a worker or runner read it?"),
    };
    Some(Finding::new(Level::Note, name, reason))
}

fn part_findings(parts: &BTreeMap<String, Part>) -> Vec<Finding> {
    let savers = || parts.iter().filter(|(name, _)| name.starts_with(SAVER));
    if savers().all(|(_, part)| !part.running) {
        let reason = savers().find_map(|(_, part)| part.trouble()).unwrap_or("none runs");
        return vec![Finding::new(Level::Down, "saving", format!("no saver runs: {reason}"))];
    }
    let finding = |(name, part): (&String, &Part)| {
        let reason = match (part.running, part.trouble()) {
            (true, None) => return None,
            (true, Some(reason)) => format!("was started again: {reason}"),
            (false, reason) => format!("does not run: {}", reason.unwrap_or("it ended by itself")),
        };
        Some(Finding::new(Level::Degraded, name.clone(), reason))
    };
    parts.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(running: bool) -> Part {
        Part { running, ..Part::default() }
    }

    #[test]
    fn without_any_saver_the_ledger_is_down_and_without_one_of_them_degraded() {
        let parts = |running: [bool; 2]| {
            let names = ["save-event-to-dynamo-1", "save-event-to-dynamo-2"].map(str::to_owned);
            BTreeMap::from_iter(names.into_iter().zip(running.map(part)))
        };
        let levels = |running| part_findings(&parts(running)).iter().map(|finding| finding.level).max();
        assert_eq!(levels([true, true]), None);
        assert_eq!(levels([true, false]), Some(Level::Degraded));
        assert_eq!(levels([false, false]), Some(Level::Down));
    }

    #[test]
    fn events_that_wait_for_a_minute_are_late() {
        let waiting = |oldest_ms| Waiting {
            counts: Counts { visible: 7, ..Counts::default() },
            oldest_ms: Some(oldest_ms),
            ..Waiting::default()
        };
        assert!(saving_behind(waiting(59_999)).is_none());
        let finding = saving_behind(waiting(61_000)).unwrap();
        assert_eq!(finding.reason, "saving is 61 s behind; 7 events wait");
    }

    #[test]
    fn a_message_that_is_received_for_long_is_not_one_that_waits() {
        let counts = Counts { visible: 1, in_flight: 1, delayed: 0 };
        let waiting = |ms| Waiting { counts, oldest_ms: Some(3_600_000), oldest_visible_ms: Some(ms) };
        assert!(unread_queue("tasks", waiting(1_000)).is_none());
        let finding = unread_queue("tasks", waiting(UNREAD_MS)).unwrap();
        assert_eq!(finding.reason, "1 message waits for 120 s: does a worker or runner read it?");
    }
}
