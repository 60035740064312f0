//! The README's first command, and what its first screen says to do next.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use ledgerline_test_support::until;

use crate::binary::{Running, ledgerline, lines, out};

fn demo(folder: &Path) -> Running {
    let demo = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .args(["local", "--demo", "--aws-port", "0", "--port", "0", "--data"])
        .arg(folder)
        .stdout(File::create(folder.join("screen")).unwrap())
        .spawn();
    Running(demo.unwrap())
}

fn screen(folder: &Path) -> String {
    fs::read_to_string(folder.join("screen")).unwrap()
}

fn ask_to_stop(mut demo: Running) {
    let asked = Command::new("kill").arg(demo.0.id().to_string()).status().unwrap();
    assert!(asked.success());
    assert!(demo.0.wait().unwrap().success(), "it finishes and says so");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_emits_events_runs_a_job_says_where_to_look_and_stops_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let demo = demo(folder);
    until("the screen is complete", || async { screen(folder).contains("Ctrl-C stops.").then_some(()) })
        .await;
    let said = screen(folder);
    let state: Value = serde_json::from_slice(&fs::read(folder.join("local.json")).unwrap()).unwrap();
    for shown in ["awsEndpoint", "apiUrl"] {
        assert!(said.contains(state[shown].as_str().unwrap()), "{shown} is on the screen");
    }
    assert!(said.contains("apiKey in ") && !said.contains(state["apiKey"].as_str().unwrap()), "it is a file");
    for address in ["awsEndpoint", "apiUrl"] {
        assert!(state[address].as_str().unwrap().starts_with("http://127.0.0.1:"), "only this machine");
    }
    assert!(said.contains("is completed: 5 tasks in "), "{said}");

    let run = |args: &[&str]| ledgerline(folder, args);
    for event_type in ["sync.tier_completed", "price.changed", "hitl.approved", "email.parsed"] {
        assert_eq!(lines(&run(&["events", "--type", event_type, "--json"])).len(), 1, "{event_type}");
    }
    let [job] = &lines(&run(&["jobs", "--json"]))[..] else { panic!("one job") };
    assert_eq!((&job["state"], &job["completedTasks"]), (&json!("completed"), &json!(5)));
    let job_id = job["jobId"].as_str().unwrap();
    for next in ["events", "jobs", &format!("job show {job_id} --watch"), "tasks"] {
        assert!(said.contains(&format!(" {next}\n")), "{next} is on the screen: {said}");
    }
    assert!(out(&run(&["job", "show", job_id, "--watch"])).contains("is completed: 5 tasks"));
    assert_eq!(lines(&run(&["tasks", "--state", "completed", "--json"])).len(), 5);

    // What one puts out is what the next is given.
    let outputs = |task: &str| {
        let [task] = &lines(&run(&["task", &format!("{job_id}:{task}"), "--json"]))[..] else { panic!() };
        task["output"].clone()
    };
    let given = outputs("task-C")["given"].clone();
    assert_eq!(given, json!({"style": "modern", "dependencyOutputs": {"task-A": outputs("task-A")}}));
    let compiled = json!({"dependencyOutputs": {"task-C": outputs("task-C"), "task-D": outputs("task-D")}});
    assert_eq!(outputs("task-E"), json!({ "compiled": compiled }));
    ask_to_stop(demo);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_interrupted_stops_and_its_job_continues_when_the_next_one_starts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = demo(folder);
    until("its job runs", || async { screen(folder).contains("processing").then_some(()) }).await;
    ask_to_stop(first);
    assert!(!screen(folder).contains("Ctrl-C stops."), "{}", screen(folder));

    let second = demo(folder);
    until("both jobs are completed", || async {
        let jobs = ledgerline(folder, &["jobs", "--state", "completed", "--json"]);
        (jobs.status.success() && lines(&jobs).len() == 2).then_some(())
    })
    .await;
    ask_to_stop(second);
}
