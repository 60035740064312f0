//! The health of a running task, by how long it has run and how long it has emitted no event. No clock and no store.

use ledgerline_event::{
    Invalid, Millis, TaskEvent, TaskSummary,
    catalogue::{Health, HealthSummary, TaskHealth},
};

/// Longest retry backoff: a task may be silent for that long.
const LONGEST_BACKOFF_MS: u64 = 15 * 60_000;

/// From when on a running task is not healthy any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// A task without an event for this long is in warning…
    pub warning_ms: u64,
    /// …and for this long is critical.
    pub critical_ms: u64,
    /// A task whose attempt has run for this long is in overtime.
    pub overtime_ms: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { warning_ms: 2 * 60_000, critical_ms: 5 * 60_000, overtime_ms: 60 * 60_000 }
    }
}

impl Thresholds {
    /// Reads whole seconds, each with the name of the setting that it comes from.
    pub fn of_seconds(
        warning: (&'static str, &str),
        critical: (&'static str, &str),
        overtime: (&'static str, &str),
    ) -> Result<Self, Invalid> {
        let ms = |(setting, text): (&'static str, &str)| match text.trim().parse::<u32>() {
            Ok(seconds @ 1..) => Ok(u64::from(seconds) * 1_000),
            _ => Err(Invalid::new(
                setting,
                format!("`{text}` is no number of seconds; write 120, for example"),
            )),
        };
        let thresholds =
            Self { warning_ms: ms(warning)?, critical_ms: ms(critical)?, overtime_ms: ms(overtime)? };
        if thresholds.critical_ms <= thresholds.warning_ms {
            let reason =
                format!("`{}` is not more than {}, so nothing would be a warning", critical.1, warning.0);
            return Err(Invalid::new(critical.0, reason));
        }
        Ok(thresholds)
    }
}

/// How long a task has emitted no event, by the thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    Usual,
    Long,
    TooLong,
}

/// The health of a running task.
pub(super) fn classify(task: &TaskSummary, now: Millis, thresholds: &Thresholds) -> TaskHealth {
    // A sender's clock may be ahead of ours.
    let since = |at: Millis| now.get().saturating_sub(at.get());
    let elapsed = since(task.started_at.unwrap_or(task.entered_at));
    let time_since_last_event = since(task.last_event_at);
    let allowed_silence_ms = match task.last_event_type {
        TaskEvent::AttemptFailed => LONGEST_BACKOFF_MS,
        TaskEvent::Pending
        | TaskEvent::Started
        | TaskEvent::Heartbeat
        | TaskEvent::Completed
        | TaskEvent::Failed
        | TaskEvent::TimedOut => 0,
    };
    let silence = match time_since_last_event.saturating_sub(allowed_silence_ms) {
        silent if silent >= thresholds.critical_ms => Silence::TooLong,
        silent if silent >= thresholds.warning_ms => Silence::Long,
        _ => Silence::Usual,
    };
    let health = match (silence, elapsed >= thresholds.overtime_ms) {
        // Whether it still runs at all comes before how long it has run.
        (Silence::TooLong, true | false) => Health::Critical,
        (Silence::Usual | Silence::Long, true) => Health::Overtime,
        (Silence::Long, false) => Health::Warning,
        (Silence::Usual, false) => Health::Healthy,
    };
    TaskHealth {
        request_id: task.request_id.to_string(),
        health,
        elapsed,
        time_since_last_event,
        last_event_type: task.last_event_type.event_type().to_owned(),
        worker_id: task.worker_id.clone().unwrap_or_else(|| "unknown".into()),
    }
}

/// How the health of a task has changed since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Operators are alerted.
    Worse,
    /// It is healthy again: operators are alerted that the trouble is over.
    Recovered,
    /// Less grave, and not healthy yet: operators know already that something is wrong.
    Better,
    Same,
}

impl Change {
    pub(super) const fn between(before: Health, now: Health) -> Self {
        use Health::{Critical, Healthy, Overtime, Warning};
        match (before, now) {
            (Healthy, Warning | Overtime | Critical)
            | (Warning, Overtime | Critical)
            | (Overtime, Critical) => Self::Worse,
            (Warning | Overtime | Critical, Healthy) => Self::Recovered,
            (Critical, Overtime | Warning) | (Overtime, Warning) => Self::Better,
            (Healthy, Healthy) | (Warning, Warning) | (Overtime, Overtime) | (Critical, Critical) => {
                Self::Same
            }
        }
    }
}

/// Counts one more task.
pub(super) fn count(summary: &mut HealthSummary, health: Health) {
    summary.total_processing += 1;
    match health {
        Health::Healthy => summary.healthy += 1,
        Health::Warning => summary.warning += 1,
        Health::Critical => summary.critical += 1,
        Health::Overtime => summary.overtime += 1,
    }
}

#[cfg(test)]
mod tests {
    use ledgerline_event::{Event, TaskHistory};
    use serde_json::json;

    use super::*;

    const BEGIN: u64 = 1_767_453_739_000;
    const MINUTE: u64 = 60_000;

    /// A task with these events, so many minutes after the beginning.
    fn task(events: &[(&str, u64)]) -> TaskSummary {
        let mut history = TaskHistory::default();
        for (attempt, (event_type, minute)) in (1..).zip(events) {
            let event: Event = serde_json::from_value(json!({
                "eventId": format!("e-{attempt}"), "tenantId": "t", "appName": "shop", "entityType": "TASK",
                "entityId": "req-1", "eventType": event_type, "timestamp": BEGIN + minute * MINUTE,
                "context": {"generation": 1, "attempt": 1},
                "properties": {"requestId": "req-1", "workerId": "worker-1"},
            }))
            .unwrap();
            history.add(&event);
        }
        history.summary().unwrap()
    }

    fn health_of(events: &[(&str, u64)], minute: u64) -> Health {
        let now = Millis::try_from(BEGIN + minute * MINUTE).unwrap();
        classify(&task(events), now, &Thresholds::default()).health
    }

    #[test]
    fn silence_is_a_warning_and_then_critical() {
        let started = [("Task Processing Started", 0)];
        let expected = [Health::Healthy, Health::Healthy, Health::Warning, Health::Warning, Health::Warning];
        for (minute, expected) in (0..).zip(expected).chain([(5, Health::Critical), (59, Health::Critical)]) {
            assert_eq!(health_of(&started, minute), expected, "after {minute} minutes");
        }
    }

    #[test]
    fn overtime_counts_more_than_a_warning_and_less_than_too_long_a_silence() {
        let beating = |last| [("Task Processing Started", 0), ("Task Heartbeat", last)];
        assert_eq!(health_of(&beating(59), 59), Health::Healthy);
        assert_eq!(health_of(&beating(60), 60), Health::Overtime);
        assert_eq!(health_of(&beating(60), 63), Health::Overtime);
        assert_eq!(health_of(&beating(60), 65), Health::Critical);
    }

    #[test]
    fn a_task_that_waits_for_its_next_attempt_may_be_silent_for_as_long_as_that_may_take() {
        let failed = [("Task Processing Started", 0), ("Task Processing Failed", 1)];
        assert_eq!(health_of(&failed, 16), Health::Healthy);
        assert_eq!(health_of(&failed, 18), Health::Warning);
        assert_eq!(health_of(&failed, 21), Health::Critical);
    }

    #[test]
    fn a_check_tells_what_the_events_say() {
        let now = Millis::try_from(BEGIN + 3 * MINUTE).unwrap();
        let task = task(&[("Task Processing Started", 0), ("Task Heartbeat", 1)]);
        assert_eq!(
            serde_json::to_value(classify(&task, now, &Thresholds::default())).unwrap(),
            json!({
                "requestId": "req-1", "health": "warning", "elapsed": 180_000, "timeSinceLastEvent": 120_000,
                "lastEventType": "Task Heartbeat", "workerId": "worker-1",
            })
        );
    }

    #[test]
    fn changes_follow_the_order_of_severity() {
        let all = [Health::Healthy, Health::Warning, Health::Overtime, Health::Critical];
        for (rank, before) in all.into_iter().enumerate() {
            for (other, now) in all.into_iter().enumerate() {
                let expected = match rank.cmp(&other) {
                    std::cmp::Ordering::Less => Change::Worse,
                    std::cmp::Ordering::Equal => Change::Same,
                    std::cmp::Ordering::Greater if other == 0 => Change::Recovered,
                    std::cmp::Ordering::Greater => Change::Better,
                };
                assert_eq!(Change::between(before, now), expected, "{before:?} to {now:?}");
            }
        }
    }

    #[test]
    fn a_setting_that_is_wrong_is_named() {
        let read = |warning, critical, overtime| {
            Thresholds::of_seconds(("WARNING", warning), ("CRITICAL", critical), ("OVERTIME", overtime))
        };
        assert_eq!(read("120", "300", "3600"), Ok(Thresholds::default()));
        assert!(read("2m", "300", "3600").unwrap_err().to_string().starts_with("WARNING: `2m` is no number"));
        assert!(read("120", "300", "0").unwrap_err().to_string().starts_with("OVERTIME"));
        assert!(read("300", "300", "1").unwrap_err().to_string().contains("not more than WARNING"));
    }
}
