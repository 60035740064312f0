//! The examples of tasks, as `examples/worker.toml` runs them.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use ledgerline_worker::Config;
use serde_json::{Value, json};

use ledgerline_test_support::{World, until};

use crate::binary::{Running, ledgerline, lines};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
/// Where the example in Rust is built: beside what the tests are built into.
const TARGET: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/examples");

/// What became of a task that was run as a worker runs it.
struct Ran {
    code: Option<i32>,
    output: Option<Value>,
    error: Option<Value>,
    activity: Vec<Value>,
    stderr: String,
}

/// Runs the command of a task with an input.
fn run(task: &str, input: Value) -> Ran {
    let config = Config::read(&Path::new(EXAMPLES).join("worker.toml")).unwrap();
    let entry = config.entry(task).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut child = Command::new(&entry.program)
        .args(&entry.arguments)
        .current_dir(&entry.directory)
        .envs(&entry.environment)
        .env("LEDGERLINE_OUTPUT", file("output"))
        .env("LEDGERLINE_ACTIVITY", file("activity"))
        .env("LEDGERLINE_ERROR", file("error"))
        .env("CARGO_TARGET_DIR", TARGET)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("`{}` cannot be started: {error}", entry.program));
    // A task need not read its input, and may be gone before all of it is written.
    let _ = child.stdin.take().unwrap().write_all(input.to_string().as_bytes());
    let ended = child.wait_with_output().unwrap();
    let read = |path: PathBuf| fs::read_to_string(path).ok();
    let json = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    Ran {
        code: ended.status.code(),
        output: read(file("output")).map(json),
        error: read(file("error")).map(json),
        activity: read(file("activity"))
            .unwrap_or_default()
            .lines()
            .map(|line| json(line.to_owned()))
            .collect(),
        stderr: String::from_utf8(ended.stderr).unwrap(),
    }
}

/// Whether a task does with `good` what it should, and refuses `bad`.
fn check(task: &str, good: Value, output: Value, bad: Value, error: &str) {
    let done = run(task, good);
    assert_eq!((done.code, done.output), (Some(0), Some(output)), "{}", done.stderr);
    assert_eq!(done.error, None);
    assert!(
        done.activity.iter().all(|line| line["type"] == "step_running" && line["stepName"].is_string()),
        "{:?}",
        done.activity
    );
    assert!(!done.activity.is_empty());
    let refused = run(task, bad);
    assert_eq!((refused.code, refused.output), (Some(1), None), "{}", refused.stderr);
    assert_eq!(refused.error, Some(json!({"error": error, "category": "validation"})));
}

#[test]
fn a_task_in_shell_reads_works_and_reports() {
    check(
        "scrape-store",
        json!({"storeId": "store-123"}),
        json!({"store": "store-123", "colors": ["teal", "sand"]}),
        json!({}),
        "the input has no storeId",
    );
    assert_eq!(run("font-pairing", json!({})).output, Some(json!({"fonts": ["mono", "serif"]})));
    assert_eq!(
        run("analyze-competitors", json!({})).output,
        Some(json!({"competitors": ["north", "south"]}))
    );
}

#[test]
fn a_task_in_rust_reads_works_and_reports() {
    check(
        "compile-result",
        json!({"dependencyOutputs": {"task-C": {"n": 1}, "task-D": {"n": 2}}}),
        json!({"from": ["task-C", "task-D"], "parts": [{"n": 1}, {"n": 2}]}),
        json!({"dependencyOutputs": {}}),
        "there is nothing to compile",
    );
}

#[test]
#[ignore = "needs Node 18 or later: cargo test examples -- --ignored"]
fn a_task_in_node_reads_works_and_reports() {
    check(
        "color-tags",
        json!({"style": "modern", "dependencyOutputs": {"task-A": {"colors": ["teal"]}}}),
        json!({"tags": ["modern teal"], "usage": {"inputTokens": 12, "outputTokens": 1}}),
        json!({"style": "modern"}),
        "task-A has put out no colors",
    );
}

/// What the README's first screen says to do.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node 18 or later: cargo test examples -- --ignored"]
async fn the_job_of_the_examples_is_run_by_the_worker_of_the_examples() {
    let world = World::start().await;
    let worker = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .args(["--local", "worker", "--config"])
        .arg(format!("{EXAMPLES}/worker.toml"))
        .env("LEDGERLINE_DATA", world.folder.path())
        .env("CARGO_TARGET_DIR", TARGET)
        .spawn();
    let mut worker = Running(worker.unwrap());
    let job = format!("{EXAMPLES}/job.yaml");
    let submitted = ledgerline(world.folder.path(), &["submit", &job, "--watch", "--json"]);
    let job_id = lines(&submitted)[0]["jobId"].as_str().unwrap().to_owned();
    let (_, shown) = world.get(&format!("/api/jobs/{job_id}")).await;
    assert_eq!((&shown["state"], &shown["totalTasks"]), (&json!("completed"), &json!(5)));
    let last = until("the last task is listed", || async {
        let (_, task) = world.get(&format!("/api/tasks/{job_id}:task-E")).await;
        (task["state"] == "completed").then_some(task)
    })
    .await;
    let tags =
        json!({"tags": ["modern teal", "modern sand"], "usage": {"inputTokens": 12, "outputTokens": 2}});
    let parts = json!({"from": ["task-C", "task-D"], "parts": [tags, {"fonts": ["mono", "serif"]}]});
    assert_eq!(last["output"], parts);
    assert!(Command::new("kill").arg(worker.0.id().to_string()).status().unwrap().success());
    assert!(worker.0.wait().unwrap().success(), "it stops when asked");
    world.local.stop().await;
}
