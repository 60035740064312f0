//! Tasks and jobs on the command line.

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::json;

use ledgerline_test_support::{World, until};

use crate::binary::{aligned, error, ledgerline, lines, one, out, run};

/// Tasks that end at once; `sell` needs a file that the test puts there.
const WORKER: &str = r#"
concurrency = 4
[tasks.sell]
command = """
test -e open || { echo '{"error":"the shop is closed","category":"auth"}' > $LEDGERLINE_ERROR; exit 1; }
"""
[tasks."*"]
command = "echo '{\"done\":true}' > $LEDGERLINE_OUTPUT"
"#;

const SHOP: &str = "
jobId: shop
tasks:
  - {taskId: fetch, name: fetch-prices, input: {store: s-1}}
  - {taskId: sell, name: sell, dependsOn: [fetch]}
  - {taskId: report, name: report, dependsOn: [fetch, sell]}
";

/// Local mode with a worker; its tasks run in the data folder.
async fn world_with_worker() -> World {
    World::with(|options| {
        let file = options.data.join("worker.toml");
        fs::write(&file, WORKER).unwrap();
        options.worker = Some(file);
    })
    .await
}

fn written(world: &World, name: &str, text: &str) -> String {
    let path = world.folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What a command says when it is given a text on standard input.
fn piped(world: &World, args: &[&str], text: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ledgerline"));
    command.args(["--local", "--data"]).arg(world.folder.path()).args(args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_watched_until_it_fails_resumed_and_watched_until_it_is_completed() {
    let world = world_with_worker().await;
    let file = written(&world, "shop.yaml", SHOP);
    let watched = run(&world, &["submit", &file, "--watch"]);
    assert_eq!(watched.status.code(), Some(1), "it failed: {watched:?}");
    let said = String::from_utf8(watched.stdout).unwrap();
    assert!(said.starts_with("shop\n") && !said.contains('\u{1b}'), "{said}");
    let line = |beginning: &str| said.lines().any(|line| line.contains(beginning));
    assert!(line("✓ fetch   completed"), "{said}");
    assert!(line("✗ sell    failed") && line("auth: the shop is closed"), "{said}");
    let end = said.lines().last().unwrap();
    assert!(end.starts_with("shop has failed at sell after ") && end.contains("`job resume shop`"), "{end}");

    let picture = out(&run(&world, &["job", "show", "shop"]));
    assert!(picture.starts_with("shop  failed\n"), "{picture}");
    assert!(picture.contains("1/3 done, 0 running, 1 failed"), "{picture}");
    assert!(picture.contains("└─ ✗ sell "), "{picture}");
    assert!(picture.contains("waits for sell (failed)"), "{picture}");
    assert_eq!(run(&world, &["job", "show", "shop", "--watch"]).status.code(), Some(1));

    let more = written(&world, "more.yaml", "- {taskId: tidy, name: tidy, dependsOn: [report]}");
    assert_eq!(out(&run(&world, &["job", "add", "shop", &more])), "shop had 3 tasks and has 4 now\n");
    written(&world, "open", "");
    let resumed = out(&run(&world, &["job", "resume", "shop", "--watch"]));
    assert!(resumed.starts_with("shop is resumed: sell\n"), "{resumed}");
    assert!(resumed.lines().last().unwrap().starts_with("shop is completed: 4 tasks in "), "{resumed}");
    assert!(resumed.contains("generation 2"), "{resumed}");
    let again = error(&run(&world, &["job", "resume", "shop"]), 1);
    assert!(again.contains("the job `shop` is completed: nothing failed in it"), "{again}");

    let jobs = out(&run(&world, &["jobs"]));
    assert!(jobs.starts_with("JOB") && jobs.contains("4/4") && aligned(&jobs), "{jobs}");
    let listed = one(&world, &["jobs", "--state", "completed"]);
    assert_eq!((&listed["jobId"], &listed["totalTasks"]), (&json!("shop"), &json!(4)));
    assert!(error(&run(&world, &["jobs", "--state", "running"]), 0).contains("No jobs in this state."));
    let shown = one(&world, &["job", "show", "shop"]);
    assert_eq!(shown["tasks"].as_array().unwrap().len(), 4);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_watch_a_job_line_by_line() {
    let world = world_with_worker().await;
    written(&world, "open", "");
    let file = written(&world, "shop.yaml", SHOP);
    let watched = lines(&run(&world, &["submit", &file, "--watch", "--json"]));
    assert_eq!(watched[0], json!({"jobId": "shop", "totalTasks": 3, "collapsed": false}));
    let last = watched.last().unwrap();
    assert_eq!((&last["jobId"], &last["state"]), (&json!("shop"), &json!("completed")));
    let completed = |id: &str| {
        let of = |line: &&serde_json::Value| line["taskId"] == id && line["state"] == "completed";
        watched.iter().filter(of).count()
    };
    assert_eq!(["fetch", "sell", "report"].map(completed), [1, 1, 1], "each once: {watched:?}");
    let again = run(&world, &["submit", &file, "--watch", "--json"]);
    assert_eq!(lines(&again)[0]["collapsed"], true);
    assert!(error(&again, 0).contains("shop was submitted before"), "{again:?}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_submitted_watched_shown_and_listed() {
    let world = world_with_worker().await;
    let task = r#"{"name": "scrape", "input": {"n": 1}, "requestId": "req-1"}"#;
    let submitted = piped(&world, &["submit", "-", "--watch"], task);
    let said = out(&submitted);
    assert!(said.starts_with("req-1\n"), "{said}");
    assert!(said.lines().last().unwrap().contains("completed"), "{said}");
    let shown = one(&world, &["task", "req-1"]);
    assert_eq!((&shown["state"], &shown["output"]), (&json!("completed"), &json!({"done": true})));
    let shown = out(&run(&world, &["task", "req-1"]));
    assert!(
        shown.contains("state       completed\n") && shown.contains("output      {\"done\":true}"),
        "{shown}"
    );
    let history = lines(&run(&world, &["task", "req-1", "--history", "--json"]));
    assert_eq!(history.first().unwrap()["eventType"], "Task Pending");
    assert_eq!(history.last().unwrap()["eventType"], "Task Completed");
    let table = out(&run(&world, &["task", "req-1", "--history"]));
    assert!(table.starts_with("TIME") && aligned(&table), "{table}");

    let failed = piped(&world, &["submit", "-", "--watch"], "name: sell\nrequestId: req-2");
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(String::from_utf8_lossy(&failed.stdout).contains("auth: the shop is closed"), "{failed:?}");
    let listed = one(&world, &["tasks", "--state", "failed"]);
    assert_eq!((&listed["requestId"], &listed["error"]), (&json!("req-2"), &json!("the shop is closed")));
    let table = out(&run(&world, &["tasks"]));
    assert!(table.starts_with("TASK") && table.contains("req-1") && aligned(&table), "{table}");
    let table = run(&world, &["tasks", "-n", "1"]);
    assert_eq!(out(&table).lines().count(), 2);
    assert!(error(&table, 0).contains("raise --limit"));
    assert!(error(&run(&world, &["tasks", "--state", "pending"]), 0).contains("No tasks in this state."));
    assert!(
        error(&run(&world, &["tasks", "--tenant", "other"]), 0).contains("Submit one with `submit FILE`")
    );
    assert!(error(&run(&world, &["task", "req-1", "--tenant", "other"]), 1).contains("there is no `req-1`"));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_a_watch_leaves_the_job_alone() {
    let world = World::start().await;
    let file = written(&world, "shop.yaml", SHOP);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ledgerline"));
    command.args(["--local", "--data"]).arg(world.folder.path()).args(["submit", &file, "--watch"]);
    let screen = fs::File::create(world.folder.path().join("screen")).unwrap();
    let watch = command.stdout(screen).stderr(Stdio::piped()).spawn().unwrap();
    until("it watches", || async {
        fs::read_to_string(world.folder.path().join("screen")).unwrap().contains("○ fetch").then_some(())
    })
    .await;
    assert!(Command::new("kill").args(["-INT", &watch.id().to_string()]).status().unwrap().success());
    let left = watch.wait_with_output().unwrap();
    assert_eq!(left.status.code(), Some(130));
    let said = String::from_utf8(left.stderr).unwrap();
    assert!(said.contains("The job goes on. `job show shop --watch` comes back to it."), "{said}");
    assert_eq!(one(&world, &["jobs"])["state"], "running");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_a_file_names_the_file_the_task_and_what_to_do() {
    let world = World::start().await;
    for (text, expected) in [
        ("", "wrong.yaml: is empty"),
        ("tasks: []", "wrong.yaml: tasks: has 0 tasks; 1 to 1000 are allowed"),
        ("input: {a: 1}", "wrong.yaml: has neither `tasks`"),
        (
            "tasks:\n  - {taskId: a, name: n, dependson: []}",
            "wrong.yaml: task 1, `a`: dependson: unknown field",
        ),
        (
            "tasks:\n  - {taskId: a, name: n, dependsOn: [z]}",
            "task `a`: depends on `z`, which is not among the tasks",
        ),
        (
            "tasks:\n  - {taskId: a, name: n, dependsOn: [b]}\n  - {taskId: b, name: n, dependsOn: [a]}",
            "wrong.yaml: tasks: the tasks wait for each other: a → b → a",
        ),
        ("name: n\ntimeoutMs: 0", "wrong.yaml: timeoutMs: is 0"),
        ("name: [", "wrong.yaml: is not YAML: "),
    ] {
        let file = written(&world, "wrong.yaml", text);
        let said = error(&run(&world, &["submit", &file]), 1);
        assert!(said.contains(expected), "{text}\n{said}");
    }
    let said = error(&piped(&world, &["submit", "-"], "{\"name\": 1}"), 1);
    assert!(said.contains("standard input: name: invalid type: integer `1`, expected a string"), "{said}");
    let said = error(&run(&world, &["submit", "nowhere.yaml"]), 1);
    assert!(said.contains("nowhere.yaml"), "{said}");
    let file = written(&world, "more.yaml", "- {taskId: a, name: n}");
    for (args, expected) in [
        (&["job", "show", "nothing"][..], "jobs: there is no `nothing`"),
        (&["job", "show", "nothing", "--watch"], "jobs: there is no `nothing`"),
        (&["job", "resume", "nothing"], "jobs: there is no `nothing`"),
        (&["job", "add", "nothing", &file], "jobs: there is no `nothing`"),
        (&["task", "nothing"], "a task of a job is called JOB:TASK"),
    ] {
        let said = error(&run(&world, args), 1);
        assert!(said.contains(expected), "{args:?}\n{said}");
    }
    out(&piped(&world, &["submit", "-"], "jobId: j\ntasks: [{taskId: a, name: n}]"));
    let said = error(&run(&world, &["job", "add", "j", &file]), 1);
    assert!(said.contains("more.yaml: tasks: the job already has a task `a`"), "{said}");
    let said = error(&run(&world, &["tasks", "--state", "done"]), 2);
    assert!(said.contains("pending, processing, completed, failed"), "{said}");
    for command in [
        &["submit"][..],
        &["job"],
        &["job", "show"],
        &["job", "add"],
        &["job", "resume"],
        &["jobs"],
        &["task"],
        &["tasks"],
    ] {
        let help = out(&ledgerline(world.folder.path(), &[command, &["--help"]].concat()));
        assert!(help.contains("Examples:"), "{command:?}");
    }
    world.local.stop().await;
}
