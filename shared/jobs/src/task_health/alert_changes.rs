//! The alert about a tenant's tasks: only what has changed for the worse, or is over.

use std::collections::BTreeMap;

use ledgerline_event::{
    Name, TaskSummary,
    catalogue::{Health, TaskHealth, TaskState},
};

use super::{classify::Change, lost_workers::LostTask};

/// So many changes are in the alert; of the rest their number.
const SHOWN_IN_FULL: usize = 10;

/// Tasks that are not healthy, as the last check left them.
pub(super) type Unwell = BTreeMap<String, Health>;

/// A task of this check.
pub(super) struct Checked {
    pub task: TaskSummary,
    pub health: TaskHealth,
    pub lost: Option<LostTask>,
}

/// What an alert says, and what to remember.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    worse: Vec<(Health, String)>,
    over: Vec<String>,
    pub unwell: Unwell,
}

impl Changes {
    /// The difference between the last check and this one. `left` are tasks that were not healthy and are not
    /// listed any more, as their rows say.
    pub(super) fn of(before: &Unwell, checked: &[Checked], left: &[TaskSummary]) -> Self {
        let mut changes = Self::default();
        for Checked { task, health, lost } in checked {
            let id = &health.request_id;
            let was = before.get(id).copied().unwrap_or(Health::Healthy);
            match Change::between(was, health.health) {
                Change::Worse => changes.worse.push((health.health, worse(task, health, *lost))),
                Change::Recovered => changes.over.push(format!("*recovered* {}", called(task))),
                Change::Better | Change::Same => {}
            }
            if health.health != Health::Healthy {
                changes.unwell.insert(id.clone(), health.health);
            }
        }
        for task in left {
            let id = task.request_id.to_string();
            let Some(was) = before.get(&id) else { continue };
            match task.state {
                // The list is a moment behind the row.
                TaskState::Processing => drop(changes.unwell.insert(id, *was)),
                TaskState::Pending => changes.over.push(format!("*waits again* {}", called(task))),
                TaskState::Completed => changes.over.push(format!("*completed* {}", called(task))),
                TaskState::Failed => {
                    let error = task.error.as_deref().map(escaped);
                    let why = error.map_or_else(String::new, |error| format!(": {error}"));
                    changes.over.push(format!("*failed* {}{why}", called(task)));
                }
            }
        }
        // The gravest first, in whatever order they were listed.
        changes.worse.sort_by_key(|(health, _)| match health {
            Health::Critical => 0,
            Health::Overtime => 1,
            Health::Warning | Health::Healthy => 2,
        });
        changes
    }

    /// One alert for all of it; `None` if nothing has changed.
    pub(super) fn text(&self, tenant: &Name, ledger_flag: &str) -> Option<String> {
        let sign = match (self.worse.is_empty(), self.over.is_empty()) {
            (true, true) => return None,
            (true, false) => ":white_check_mark:",
            (false, true | false) => ":rotating_light:",
        };
        let changes = self.worse.iter().map(|(_, line)| line).chain(&self.over);
        let mut lines = vec![format!("{sign} *Running tasks of {}*", escaped(tenant))];
        lines.extend(changes.take(SHOWN_IN_FULL).cloned());
        if let Some(more @ 1..) = (self.worse.len() + self.over.len()).checked_sub(SHOWN_IN_FULL) {
            lines.push(format!("… and {more} more"));
        }
        lines.push(format!("`ledgerline {ledger_flag} --tenant '{tenant}' tasks --state processing`"));
        Some(lines.join("\n"))
    }
}

fn worse(task: &TaskSummary, health: &TaskHealth, lost: Option<LostTask>) -> String {
    let word = match health.health {
        Health::Critical => "critical",
        Health::Overtime => "overtime",
        Health::Warning => "warning",
        Health::Healthy => "healthy",
    };
    let (elapsed, silent) = (minutes(health.elapsed), minutes(health.time_since_last_event));
    let worker = escaped(&health.worker_id);
    let mut line =
        format!("*{word}* {}: runs for {elapsed}, last heard of {silent} ago, {worker}", called(task));
    match lost {
        None => {}
        Some(LostTask::SentAgain | LostTask::SentBefore) => {
            line.push_str("; its worker is gone, and it was given back to the queue")
        }
        Some(LostTask::NotKept) => {
            line.push_str("; its worker is gone, and only the queue can bring it again")
        }
    }
    line
}

fn called(task: &TaskSummary) -> String {
    let id = escaped(&task.request_id);
    task.name.as_deref().map_or_else(|| id.clone(), |name| format!("{id} ({})", escaped(name)))
}

fn minutes(ms: u64) -> String {
    format!("{} min", ms / 60_000)
}

/// What Slack would take for markup, and no more of it than a person reads.
fn escaped(text: &str) -> String {
    let short: String = text.chars().take(300).collect();
    short.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(id: &str, state: &str) -> TaskSummary {
        serde_json::from_value(json!({
            "requestId": id, "state": state, "name": "scrape<store", "generation": 1,
            "enteredAt": 1_767_453_739_000_u64, "lastEventAt": 1_767_453_739_000_u64,
            "lastEventType": "Task Heartbeat", "error": "no & key",
        }))
        .unwrap()
    }

    fn checked(id: &str, health: Health, lost: Option<LostTask>) -> Checked {
        let health = TaskHealth {
            request_id: id.into(),
            health,
            elapsed: 420_000,
            time_since_last_event: 300_000,
            last_event_type: "Task Heartbeat".into(),
            worker_id: "worker-1".into(),
        };
        Checked { task: task(id, "processing"), health, lost }
    }

    fn unwell(tasks: &[(&str, Health)]) -> Unwell {
        tasks.iter().map(|(id, health)| ((*id).to_owned(), *health)).collect()
    }

    fn text(changes: &Changes) -> Option<String> {
        changes.text(&Name::new("tenant", "acme").unwrap(), "--stage dev")
    }

    #[test]
    fn what_stays_as_it_was_or_gets_a_little_better_is_not_alerted() {
        let before = unwell(&[("a", Health::Critical), ("b", Health::Warning)]);
        let now = [
            checked("a", Health::Warning, None),
            checked("b", Health::Warning, None),
            checked("c", Health::Healthy, None),
        ];
        let changes = Changes::of(&before, &now, &[]);
        assert_eq!(text(&changes), None);
        assert_eq!(changes.unwell, unwell(&[("a", Health::Warning), ("b", Health::Warning)]));
    }

    #[test]
    fn the_gravest_comes_first_and_then_what_is_over() {
        let before = unwell(&[("a", Health::Warning), ("d", Health::Overtime), ("e", Health::Critical)]);
        let now = [
            checked("a", Health::Healthy, None),
            checked("b", Health::Warning, None),
            checked("c", Health::Critical, Some(LostTask::SentAgain)),
        ];
        let changes = Changes::of(&before, &now, &[task("d", "completed"), task("e", "failed")]);
        let expected = "\
:rotating_light: *Running tasks of acme*
*critical* c (scrape&lt;store): runs for 7 min, last heard of 5 min ago, worker-1; its worker is gone, and it was given back to the queue
*warning* b (scrape&lt;store): runs for 7 min, last heard of 5 min ago, worker-1
*recovered* a (scrape&lt;store)
*completed* d (scrape&lt;store)
*failed* e (scrape&lt;store): no &amp; key
`ledgerline --stage dev --tenant 'acme' tasks --state processing`";
        assert_eq!(text(&changes).as_deref(), Some(expected));
        assert_eq!(changes.unwell, unwell(&[("b", Health::Warning), ("c", Health::Critical)]));
    }

    #[test]
    fn a_task_that_the_list_has_lost_for_a_moment_is_remembered() {
        let before = unwell(&[("a", Health::Critical)]);
        let changes = Changes::of(&before, &[], &[task("a", "processing")]);
        assert_eq!((text(&changes), changes.unwell), (None, before));
    }

    #[test]
    fn many_changes_are_one_message() {
        let now: Vec<_> = (0..100).map(|id| checked(&id.to_string(), Health::Critical, None)).collect();
        let alert = text(&Changes::of(&Unwell::new(), &now, &[])).unwrap();
        assert_eq!(alert.matches("*critical*").count(), SHOWN_IN_FULL);
        assert!(alert.contains("… and 90 more"));
    }
}
