//! Runs, hooks and sent events on the command line.

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use ledgerline_test_support::{World, external_runs::id, until};

use crate::binary::{aligned, error, lines, one, out, run};

/// Appends an event to a run.
fn append(world: &World, run_id: &str, event_type: &str, correlation_id: Option<&str>, data: Value) -> Value {
    let data = data.to_string();
    let mut args = vec!["run", "append", run_id, event_type, "--event-data", &data];
    args.extend(correlation_id.iter().flat_map(|id| ["--correlation-id", id]));
    one(world, &args)
}

fn begun(world: &World, run_id: &str) {
    append(world, run_id, "run_created", None, json!({"workflowName": "backup", "input": {"disk": 7}}));
    append(world, run_id, "run_started", None, json!({"workflowVersion": "3"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_started_listed_shown_and_cancelled_by_hand() {
    let world = World::start().await;
    let file = world.folder.path().join("order.json");
    fs::write(&file, r#"{"orderId":"o-1"}"#).unwrap();
    let file = format!("@{}", file.display());
    assert_eq!(
        out(&run(&world, &["run", "start", "order", "--input", &file, "--id", "order-1"])),
        "order-1\n"
    );
    let again = run(
        &world,
        &["run", "start", "order", "--input", r#"{"orderId":"o-1"}"#, "--id", "order-1", "--json"],
    );
    assert_eq!(lines(&again), [json!({"runId": "order-1", "collapsed": true})]);
    assert!(error(&again, 0).contains("order-1 was started before"), "{again:?}");
    let other = error(&run(&world, &["run", "start", "order", "--id", "order-1"]), 1);
    assert!(other.contains("a run `order-1` exists and was asked for something else"), "{other}");
    let made = out(&run(&world, &["run", "start", "order", "--input", "-3"]));
    assert!(made.starts_with("wrun_"), "{made}");

    let shown = out(&run(&world, &["run", "show", "order-1"]));
    assert!(shown.starts_with("order-1  pending\nworkflow  order\n"), "{shown}");
    assert!(shown.contains("input     {\"orderId\":\"o-1\"}\n") && shown.is_ascii(), "{shown}");
    assert_eq!(one(&world, &["run", "show", "order-1"])["state"], "pending");
    let table = out(&run(&world, &["runs"]));
    assert!(table.starts_with("RUN") && table.contains("order-1") && aligned(&table), "{table}");
    let few = run(&world, &["runs", "-n", "1"]);
    assert_eq!(out(&few).lines().count(), 2);
    assert!(error(&few, 0).contains("raise --limit"));
    assert!(error(&run(&world, &["runs", "--state", "failed"]), 0).contains("No runs in this state."));
    assert!(
        error(&run(&world, &["runs", "--tenant", "other"]), 0)
            .contains("Start one with `run start WORKFLOW`")
    );

    let cancelled = out(&run(&world, &["run", "cancel", "order-1", "--reason", "ordered twice"]));
    assert_eq!(cancelled, "order-1 is cancelled\n");
    let again = error(&run(&world, &["run", "cancel", "order-1"]), 1);
    assert!(again.contains("run order-1 is cancelled, which is final"), "{again}");
    assert_eq!(one(&world, &["runs", "--state", "cancelled"])["runId"], "order-1");
    let events = run(&world, &["run", "events", "order-1", "--json"]);
    let types: Vec<Value> = lines(&events).iter().map(|event| event["eventType"].clone()).collect();
    assert_eq!(types, ["run_created", "run_cancelled"]);
    let table = out(&run(&world, &["run", "events", "order-1"]));
    assert!(table.starts_with("TIME") && table.contains("ordered twice") && aligned(&table), "{table}");
    for args in [
        &["run", "show", "x"][..],
        &["run", "events", "x"],
        &["run", "cancel", "x"],
        &["run", "show", "x", "--watch"],
    ] {
        assert!(error(&run(&world, args), 1).contains("there is no `x`"), "{args:?}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_drawn_as_a_timeline_with_what_it_waits_for() {
    let world = World::start().await;
    begun(&world, "backup-7");
    append(&world, "backup-7", "step_created", Some(&id("step", 1)), json!({"stepName": "dump the disk"}));
    append(&world, "backup-7", "step_started", Some(&id("step", 1)), json!({"attempt": 1}));
    append(
        &world,
        "backup-7",
        "step_failed",
        Some(&id("step", 1)),
        json!({"error": "no space", "errorCode": "disk"}),
    );
    let hook = append(&world, "backup-7", "hook_created", Some(&id("hook", 1)), json!({}));
    let token = hook["hook"]["token"].as_str().unwrap();
    let data = json!({"eventName": "disk.emptied", "matchCriteria": {"disk": 7}, "timeoutAt": 1_999_999_999_000_u64});
    append(&world, "backup-7", "wait_created", Some(&id("wait", 1)), data);
    let shown = out(&run(&world, &["run", "show", "backup-7"]));
    let row = |beginning: &str| shown.lines().any(|line| line.starts_with(beginning));
    assert!(shown.contains("workflow  backup, version 3, executed elsewhere\n"), "{shown}");
    assert!(row("  NAME ") && row("x dump the disk ") && row("    disk: no space"), "{shown}");
    assert!(row("o hook htok_") && shown.contains(&format!("`hook send {token}` gives it one")), "{shown}");
    assert!(row("o event disk.emptied ") && shown.contains("until 2033-05-18T03:33:19.000Z (in "), "{shown}");
    assert!(shown.contains("matching {\"disk\":7}") && shown.is_ascii(), "{shown}");
    assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");

    assert_eq!(out(&run(&world, &["hook", "send", token, "--payload", "[1]"])), "backup-7 has it\n");
    let sent = one(
        &world,
        &["send-event", "disk.emptied", "--match", r#"{"disk":7.0,"by":"me"}"#, "--event-data", "\"ok\""],
    );
    assert!(sent["eventId"].as_str().unwrap().starts_with("evnt_"), "{sent}");
    let listed = one(&world, &["sent-events", "disk.emptied"]);
    assert_eq!((&listed["eventId"], &listed["consumedCount"]), (&sent["eventId"], &json!(1)));
    let table = out(&run(&world, &["sent-events", "disk.emptied"]));
    assert!(table.starts_with("TIME") && table.contains("external") && aligned(&table), "{table}");
    assert!(error(&run(&world, &["sent-events", "nothing"]), 0).contains("`send-event nothing` sends one"));
    let (_, shown) = world.get("/api/runs/backup-7").await;
    assert_eq!((&shown["hooks"][0]["received"], &shown["waits"][0]["outcome"]), (&json!(1), &json!("event")));

    append(&world, "backup-7", "run_completed", None, json!({"output": {"bytes": 1024}}));
    let shown = out(&run(&world, &["run", "show", "backup-7"]));
    assert!(
        shown.starts_with("backup-7  completed\n") && shown.contains("output    {\"bytes\":1024}\n"),
        "{shown}"
    );
    let gone = error(&run(&world, &["hook", "send", token]), 1);
    assert!(gone.contains("the hook was disposed of, or its run has ended"), "{gone}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_what_happens_and_how_it_ended() {
    let world = World::start().await;
    begun(&world, "backup-7");
    let screen = world.folder.path().join("screen");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ledgerline"));
    command.args(["--local", "--data"]).arg(world.folder.path()).args(["run", "show", "backup-7", "--watch"]);
    let watch = command.stdout(fs::File::create(&screen).unwrap()).spawn().unwrap();
    let said = || fs::read_to_string(&screen).unwrap();
    until("it watches", || async { said().contains("run_started").then_some(()) }).await;
    append(&world, "backup-7", "step_created", Some(&id("step", 1)), json!({"stepName": "dump"}));
    append(&world, "backup-7", "step_started", Some(&id("step", 1)), json!({"attempt": 1}));
    append(&world, "backup-7", "step_retrying", Some(&id("step", 1)), json!({"error": "busy"}));
    until("it has told of the step", || async {
        said().contains("step_retrying   dump  busy").then_some(())
    })
    .await;
    append(&world, "backup-7", "run_failed", None, json!({"error": "out of tapes"}));
    assert_eq!(watch.wait_with_output().unwrap().status.code(), Some(1));
    let said = said();
    assert!(said.lines().next().unwrap().ends_with("run_created     backup  {\"disk\":7}"), "{said}");
    assert!(said.contains("step_failed     dump  abandoned: "), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("backup-7 has failed after ") && last.ends_with(": out of tapes"), "{said}");
    assert!(!said.contains('\u{1b}'));

    begun(&world, "backup-8");
    append(&world, "backup-8", "run_completed", None, json!({"output": 1}));
    let told = lines(&run(&world, &["run", "show", "backup-8", "--watch", "--json"]));
    let types: Vec<&Value> = told.iter().map(|line| &line["eventType"]).collect();
    assert_eq!(types, [&json!("run_created"), &json!("run_started"), &json!("run_completed"), &Value::Null]);
    assert_eq!((&told[3]["state"], &told[3]["output"]), (&json!("completed"), &json!(1)));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_a_watch_leaves_the_run_alone() {
    let world = World::start().await;
    let screen = world.folder.path().join("screen");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ledgerline"));
    command.args(["--local", "--data"]).arg(world.folder.path());
    command.args(["run", "start", "order", "--id", "order-1", "--watch"]);
    let watch = command.stdout(fs::File::create(&screen).unwrap()).stderr(Stdio::piped()).spawn().unwrap();
    until("it watches", || async {
        fs::read_to_string(&screen).unwrap().contains("run_created").then_some(())
    })
    .await;
    assert!(Command::new("kill").args(["-INT", &watch.id().to_string()]).status().unwrap().success());
    let left = watch.wait_with_output().unwrap();
    assert_eq!(left.status.code(), Some(130));
    let said = String::from_utf8(left.stderr).unwrap();
    assert!(said.contains("The run goes on. `run show order-1 --watch` comes back to it."), "{said}");
    assert_eq!(one(&world, &["runs"])["state"], "pending");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_on_the_command_line_names_what_is_wrong() {
    let world = World::start().await;
    begun(&world, "r");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "start", "w", "--input", "text"], 1, "--input: JSON is expected"),
        (&["run", "start", "w", "--input", "@nothing.json"], 1, "--input: reading nothing.json"),
        (&["run", "start", "w", "--id", "a#b"], 1, "runId: `a#b` contains '#'"),
        (&["run", "append", "r", "run_ended"], 2, "[possible values: run_created, run_started, "),
        (&["run", "append", "r", "step_created"], 1, "correlationId: is missing"),
        (
            &["run", "append", "r", "run_created", "--event-data", "[]"],
            1,
            "--event-data: a JSON object is expected",
        ),
        (&["run", "append", "r", "run_started"], 1, "run r is running; it must be pending"),
        (
            &["run", "append", "x", "run_started"],
            1,
            "there is no `x`; append run_created first, or start one",
        ),
        (
            &["runs", "--state", "done"],
            2,
            "[possible values: pending, running, completed, failed, cancelled]",
        ),
        (&["runs", "--limit", "0"], 2, "--limit"),
        (&["hook", "send", "nothing"], 1, "no hook has this token"),
        (&["hook", "send", "a#b"], 1, "TOKEN: `a#b` contains '#'"),
        (&["send-event", "e", "--match", "[1]"], 1, "match: is an array; an object is expected"),
        (&["send-event", "Task Pending"], 1, "event: `Task Pending` cannot be sent"),
        (&["sent-events", "a#b"], 1, "NAME: `a#b` contains '#'"),
    ];
    for (args, code, expected) in cases {
        let said = error(&run(&world, args), *code);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    for args in [
        &["run", "--help"][..],
        &["run", "start", "--help"],
        &["hook", "send", "--help"],
        &["send-event", "--help"],
    ] {
        assert!(out(&run(&world, args)).contains("Examples:\n  ledgerline --local "), "{args:?}");
    }
    world.local.stop().await;
}
