use ledgerline_event::Name;
use ledgerline_jobs::{JobDetails, JobRecord, JobTaskDetails, JobView};
use serde_json::{Value, json};

use super::*;

const BEGIN: u64 = 1_767_453_739_000;

fn now() -> Millis {
    Millis::try_from(BEGIN + 12_000).unwrap()
}

/// A task of the job `j`; what is known of it, if it has begun, over what every begun task has.
fn task(id: &str, parents: &[&str], state: Option<&str>, known: Value) -> JobTaskDetails {
    let summary = state.map(|state| {
        let mut summary = json!({
            "requestId": format!("j:{id}"), "state": state, "generation": 1, "pendingAt": BEGIN,
            "enteredAt": BEGIN + 1_000, "lastEventAt": BEGIN + 1_000, "lastEventType": "Task Heartbeat",
        });
        summary.as_object_mut().unwrap().extend(known.as_object().unwrap().clone());
        serde_json::from_value::<TaskSummary>(summary).unwrap()
    });
    JobTaskDetails {
        task_id: Name::new("taskId", id).unwrap(),
        name: format!("do-{id}"),
        depends_on: parents.iter().map(|parent| (*parent).to_owned()).collect(),
        state: summary.as_ref().map(|summary| summary.state),
        summary,
    }
}

fn job(tasks: Vec<JobTaskDetails>, more: Value) -> JobDetails {
    let mut record = json!({
        "jobId": "j", "requestId": "j", "appName": "cli", "createdAt": BEGIN, "total": tasks.len(),
        "done": 0, "failed": 0, "active": 1, "generation": 1, "createdBy": "evnt_1",
    });
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let record: JobRecord = serde_json::from_value(record).unwrap();
    JobDetails { job: JobView::from(record), tasks }
}

fn diamond() -> JobDetails {
    let tasks = vec![
        task("a", &[], Some("completed"), json!({"durationMs": 1_200, "endedAt": BEGIN + 1_500})),
        task("b", &[], Some("completed"), json!({"durationMs": 340, "attempt": 2, "endedAt": BEGIN + 1_000})),
        task(
            "c",
            &["a"],
            Some("failed"),
            json!({"durationMs": 3_000, "attempt": 3, "error": "no\nkey \u{1b}[31m", "errorCategory": "auth", "endedAt": BEGIN + 9_000}),
        ),
        task("d", &["a"], Some("processing"), json!({"startedAt": BEGIN + 2_000, "attempt": 2})),
        task("e", &["c", "d"], None, json!({})),
    ];
    job(tasks, json!({"failed": 1, "done": 2}))
}

#[test]
fn a_job_is_drawn_with_its_branches_its_progress_and_what_each_task_waits_for() {
    let lines = draw(&diamond(), now(), &Canvas::ENDLESS);
    assert_eq!(
        lines,
        [
            "j  failing",
            &format!("{}{}  2/5 done, 1 running, 1 failed, 12s", "━".repeat(18), "─".repeat(12)),
            "",
            "✓ a        do-a  completed   1s",
            "├─ ✗ c     do-c  failed      3s       attempt 3, auth: no key [31m",
            "└─ ● d     do-d  processing  10s      attempt 2",
            "   └─ · e  do-e  waiting              waits for c (failed), d",
            "✓ b        do-b  completed   340ms    attempt 2",
        ]
    );
}

#[test]
fn a_picture_fits_into_its_terminal_and_hides_first_what_is_done() {
    let mut tasks: Vec<JobTaskDetails> = (0..200)
        .map(|n| {
            task(&format!("t{n:03}"), &[], Some("completed"), json!({"durationMs": 5, "endedAt": BEGIN + n}))
        })
        .collect();
    tasks.push(task("u", &["t000"], Some("processing"), json!({"startedAt": BEGIN})));
    tasks.push(task("v", &["u"], None, json!({})));
    let canvas = Canvas { width: 40, height: 10, colours: false };
    let lines = draw(&job(tasks, json!({})), now(), &canvas);
    assert_eq!(lines.len(), 9, "one is left for the cursor: {lines:#?}");
    assert!(lines.iter().all(|line| columns(line) <= 40), "{lines:#?}");
    let has = |id: &str| lines.iter().any(|line| line.contains(id));
    assert!(has(" u ") && has(" v ") && has(" t199 ") && !has(" t000 "), "{lines:#?}");
    assert_eq!(lines.last().unwrap(), "… and 197 more: 197 completed");
}

#[test]
fn colours_are_for_terminals_only() {
    let plain = draw(&diamond(), now(), &Canvas::ENDLESS).join("\n");
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let coloured = draw(&diamond(), now(), &Canvas { width: 100, height: 50, colours: true }).join("\n");
    assert!(
        coloured.contains("\u{1b}[32m✓\u{1b}[0m") && coloured.contains("\u{1b}[31m✗\u{1b}[0m"),
        "{coloured}"
    );
}

#[test]
fn a_change_is_one_line() {
    let details = diamond();
    let line = |task: usize| change_line(&details.tasks[task], &details, now());
    assert_eq!(line(2), "2026-01-03T15:22:20.000Z  ✗ c  failed      3s  attempt 3, auth: no key [31m");
    assert_eq!(line(0), "2026-01-03T15:22:20.000Z  ✓ a  completed   1s");
}

#[test]
fn what_waits_in_vain_is_told_what_is_missing() {
    let nothing = job(vec![], json!({"total": 3}));
    assert!(hint(&nothing, now()).unwrap().contains("dispatcher has not taken it up"));
    assert_eq!(hint(&nothing, Millis::try_from(BEGIN + 5).unwrap()), None);
    let pending = job(vec![task("a", &[], Some("pending"), json!({}))], json!({}));
    assert!(hint(&pending, now()).unwrap().contains("start one with `worker`"));
    assert!(draw(&pending, now(), &Canvas::ENDLESS).last().unwrap().contains("No worker takes it"));
    assert_eq!(hint(&diamond(), now()), None);
}

#[test]
fn every_state_of_a_task_says_what_it_is_about() {
    let said = |state: &str, known: Value| {
        task_note(task("a", &[], Some(state), known).summary.as_ref().unwrap()).unwrap_or_default()
    };
    for (state, known, expected) in [
        ("pending", json!({"generation": 2}), "generation 2, for a worker"),
        (
            "processing",
            json!({"lastEventType": "Task Processing Failed", "error": "reset", "errorCategory": "network"}),
            "waits for its next attempt after network: reset",
        ),
        (
            "processing",
            json!({"lastActivity": {"type": "step_running", "stepName": "login", "timestamp": 1_767_453_739}}),
            "login",
        ),
        ("completed", json!({"attempt": 1}), ""),
        ("failed", json!({"timeoutMs": 600_000}), "ran longer than 10m"),
    ] {
        assert_eq!(said(state, known), expected, "{state}");
    }
}

#[test]
fn the_time_stands_still_when_a_job_has_ended() {
    let tasks = |state| vec![task("a", &[], Some(state), json!({"endedAt": BEGIN + 3_000}))];
    let completed = job(tasks("completed"), json!({"completedAt": BEGIN + 4_000, "done": 1, "active": 0}));
    let failed = job(tasks("failed"), json!({"failed": 1, "active": 0, "generation": 2}));
    assert_eq!((elapsed(&completed, now()), elapsed(&failed, now())), ("4s".into(), "3s".into()));
    assert_eq!(draw(&failed, now(), &Canvas::ENDLESS)[0], "j  failed  resumed once");
}
