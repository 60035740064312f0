use serde_json::{Value, json};

use super::*;
use crate::commands::canvas::Canvas;

const BEGIN: u64 = 1_767_453_739_000;

fn now() -> Millis {
    Millis::try_from(BEGIN + 20_000).unwrap()
}

/// A run with everything that a run can have, ten seconds after it began to wait.
fn order() -> RunView<'static> {
    run(json!({
        "steps": [
            {"stepId": "step_1", "stepName": "reserve stock", "state": "completed", "attempt": 1, "retries": 0,
             "result": 1, "createdAt": BEGIN, "startedAt": BEGIN, "endedAt": BEGIN + 5_000},
            {"stepId": "step_2", "stepName": "charge the card that the customer has chosen for this order",
             "state": "pending", "attempt": 2, "retries": 2, "error": "the bank is busy", "errorCode": "busy",
             "retryAfter": BEGIN + 24_000, "createdAt": BEGIN + 5_000, "startedAt": BEGIN + 10_000},
        ],
        "hooks": [
            {"hookId": "hook_1", "state": "active", "token": "approve-17", "received": 2, "createdAt": BEGIN + 6_000},
            {"hookId": "hook_2", "state": "conflicted", "token": "approve-17", "received": 0, "createdAt": BEGIN + 7_000},
        ],
        "waits": [
            {"waitId": "wait_1", "state": "completed", "kind": "sleep", "resumeAt": BEGIN + 5_500, "outcome": "elapsed",
             "createdAt": BEGIN + 5_000, "completedAt": BEGIN + 5_500},
            {"waitId": "wait_2", "state": "waiting", "kind": "event", "eventName": "payment.received",
             "matchCriteria": {"orderId": "o-1"}, "timeoutAt": BEGIN + 80_000, "createdAt": BEGIN + 10_000},
            {"waitId": "wait_3", "state": "completed", "kind": "task", "task": "req-1", "outcome": "timeout",
             "createdAt": BEGIN + 10_000, "completedAt": BEGIN + 15_000},
        ],
    }))
}

fn run(change: Value) -> RunView<'static> {
    let mut run = json!({
        "runId": "order-o-1", "state": "running", "workflowName": "fulfil-order", "workflowVersion": "3",
        "input": {"orderId": "o-1"}, "createdAt": BEGIN, "startedAt": BEGIN, "steps": [], "hooks": [], "waits": [],
    });
    run.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    serde_json::from_value(run).unwrap()
}

fn plain(view: &RunView<'_>) -> String {
    draw(view, RecordFields::default(), now(), &Paper::PLAIN).join("\n")
}

#[test]
fn a_run_is_drawn_as_a_timeline_of_plain_characters_where_no_terminal_is() {
    let drawn = plain(&order());
    let expected = r#"order-o-1  running
workflow  fulfil-order, version 3
created   2026-01-03T15:22:19.000Z
started   2026-01-03T15:22:19.000Z
took      20s so far
input     {"orderId":"o-1"}

  NAME                         STATE       TRIES     TOOK  0                 20s
+ reserve stock                completed       1       5s  |#####              |
o charge the card that the c~  pending         2      10s  |    -----##########|
    tries again at 2026-01-03T15:22:43.000Z (in 4s), after busy: the bank is bu~
+ sleep                        completed            500ms  |    --             |
o hook approve-17              active                 14s  |     --------------|
    2 payloads so far; `hook send approve-17` gives it one
x hook approve-17              conflicted             0ms  |      -            |
    another hook has this token
o event payment.received       waiting                10s  |         ----------|
    until 2026-01-03T15:23:39.000Z (in 1m), matching {"orderId":"o-1"}
x task req-1                   timeout                 5s  |         ------    |"#;
    assert_eq!(drawn, expected, "\n{drawn}");
    assert!(drawn.is_ascii());
}

#[test]
fn a_terminal_has_blocks_and_as_many_columns_as_it_says() {
    for width in [20, 50, 80, 120, 240] {
        let paper = Paper::blocks(width);
        for line in draw(&order(), RecordFields::default(), now(), &paper) {
            assert!(columns(&line) <= width, "{width}: {line}");
        }
    }
    let drawn = draw(&order(), RecordFields::default(), now(), &Paper::blocks(120)).join("\n");
    assert!(drawn.contains("✓ reserve stock ") && drawn.contains("│██████"), "{drawn}");
    assert!(drawn.contains("○ event payment.received ") && drawn.contains("░░░│"), "{drawn}");
    assert!(
        drawn.contains("charge the card that the customer has chosen "),
        "a wider one has longer names: {drawn}"
    );
}

#[test]
fn colours_change_nothing_else() {
    let coloured = Paper { canvas: Canvas { colours: true, ..Paper::PLAIN.canvas }, ..Paper::PLAIN };
    let lines = draw(&order(), RecordFields::default(), now(), &coloured).join("\n");
    assert!(lines.contains("\u{1b}[32m+\u{1b}[0m reserve stock"), "{lines}");
    let mut rest = lines.as_str();
    let mut bare = String::new();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        bare.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    assert_eq!(bare + rest, plain(&order()));
}

#[test]
fn the_end_of_a_run_is_told_whole() {
    let error = format!("{}https://{}", "no answer ".repeat(20), "x".repeat(100));
    let failed = run(json!({
        "state": "failed", "error": error, "errorCode": "vendor", "endedAt": BEGIN + 1_500,
        "input": "x".repeat(300),
    }));
    let drawn = plain(&failed);
    assert!(
        drawn.contains("took      1s\n") && drawn.contains("ended     2026-01-03T15:22:20.500Z"),
        "{drawn}"
    );
    assert!(drawn.lines().all(|line| columns(line) <= 80), "{drawn}");
    assert!(drawn.contains("error     vendor: no answer no answer "), "{drawn}");
    let told = drawn.split_once("error  ").unwrap().1;
    assert_eq!((told.matches("answer").count(), told.matches('x').count()), (20, 100), "{drawn}");
    let completed = run(json!({"state": "completed", "output": null, "endedAt": BEGIN + 2}));
    assert!(plain(&completed).contains("took      2ms\n") && plain(&completed).contains("output    null"));
    let cancelled = run(json!({"state": "cancelled", "reason": "ordered twice", "endedAt": BEGIN + 2}));
    assert!(plain(&cancelled).starts_with("order-o-1  cancelled\n"));
    assert!(plain(&cancelled).contains("reason    ordered twice"));
}

#[test]
fn a_pending_run_says_that_no_runner_has_begun_it() {
    let pending = run(json!({"state": "pending", "startedAt": null}));
    assert!(plain(&pending).contains("took      no runner has begun it for 20s"));
    let record = RecordFields { external: true, last_error: Some("version 3 is not here; there are: 4") };
    let drawn = draw(&pending, record, now(), &Paper::PLAIN).join("\n");
    assert!(drawn.contains("fulfil-order, version 3, executed elsewhere\n"), "{drawn}");
    assert!(drawn.ends_with("trouble   version 3 is not here; there are: 4"), "{drawn}");
}

#[test]
fn what_has_ended_makes_room_for_what_is_under_way() {
    let steps: Vec<Value> = (0..100)
        .map(|n| {
            let (state, ended) =
                if n % 50 == 0 { ("running", None) } else { ("completed", Some(BEGIN + n + 1)) };
            json!({"stepId": format!("step_{n}"), "stepName": format!("s{n}"), "state": state, "attempt": 1,
                   "retries": 0, "createdAt": BEGIN + n, "startedAt": BEGIN + n, "endedAt": ended})
        })
        .collect();
    let paper = Paper { canvas: Canvas { height: 20, ..Paper::PLAIN.canvas }, ..Paper::PLAIN };
    let lines = draw(&run(json!({ "steps": steps })), RecordFields::default(), now(), &paper);
    assert!(lines.len() < 20, "{lines:#?}");
    let shown = lines.join("\n");
    assert!(shown.contains("> s0 ") && shown.contains("> s50 ") && shown.contains("+ s99 "), "{shown}");
    assert!(shown.contains("  91 that have ended are not shown"), "{shown}");
}
