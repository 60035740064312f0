//! Real processes that are killed, or stopped, in the middle of work.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use ledgerline_event::Event;
use ledgerline_ledger::Clients;
use serde_json::{Value, json};

use ledgerline_test_support::{scan, until};

use crate::binary::{Running, start};

/// Tasks are over at once, and a worker that dies loses them after three seconds.
const WORKER: &str = "concurrency = 8\nheartbeat-seconds = 1\n[tasks.\"*\"]\ncommand = [\"true\"]\n";

async fn events(clients: &Clients) -> Vec<Event> {
    let rows = scan(clients, "events-local").await;
    rows.into_iter().map(|row| serde_dynamo::aws_sdk_dynamodb_1::from_item(row).unwrap()).collect()
}

/// How often each task has ended.
fn ends(events: &[Event]) -> BTreeMap<&str, usize> {
    let mut ends = BTreeMap::new();
    for event in events {
        if matches!(event.event_type.as_str(), "Task Completed" | "Task Failed" | "Task Timeout") {
            *ends.entry(event.entity_id.as_str()).or_default() += 1;
        }
    }
    ends
}

/// Two hundred tasks, each depending on a few of those before it.
fn lattice() -> Value {
    let task = |n: usize| {
        let parents: Vec<String> = [n.wrapping_sub(10), n.wrapping_sub(11)]
            .into_iter()
            .filter(|parent| *parent < n)
            .map(|parent| format!("t{parent:03}"))
            .collect();
        json!({"taskId": format!("t{n:03}"), "name": "work", "dependsOn": parents, "maxAttempts": 50})
    };
    (0..200).map(task).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_two_hundred_tasks_is_completed_however_often_local_mode_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker.toml");
    fs::write(&file, WORKER).unwrap();
    let with_worker = ["--worker", file.to_str().unwrap()];
    let mut submitted = false;
    let mut kills = 0;
    loop {
        let (mut child, state) = start(folder.path(), &with_worker).await;
        let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
        if !submitted {
            let job = json!({"jobId": "job-1", "tasks": lattice()});
            let http = reqwest::Client::new();
            let request = http.post(format!("{}/api/jobs", state.api_url)).bearer_auth(&state.api_key);
            let answer = request.json(&job).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), 202, "{:?}", answer.text().await);
            submitted = true;
        }
        // Killed by its id when so many tasks more have ended, wherever everything else is then.
        let wanted = ends(&events(&clients).await).len() + fastrand::usize(5..60);
        let ended = until("more tasks end", || async {
            let ended = ends(&events(&clients).await).len();
            (ended >= wanted || ended == 200).then_some(ended)
        })
        .await;
        if ended == 200 {
            until("the job is completed", || async {
                let events = events(&clients).await;
                events.iter().any(|event| event.event_type.as_str() == "Job Completed").then_some(())
            })
            .await;
            child.kill();
            break;
        }
        child.kill();
        kills += 1;
    }
    println!("killed {kills} times on the way");
    let (mut child, state) = start(folder.path(), &with_worker).await;
    let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
    let events = events(&clients).await;
    let ends = ends(&events);
    assert_eq!(ends.len(), 200);
    assert!(ends.values().all(|count| *count == 1), "{ends:?}");
    let count = |kind: &str| events.iter().filter(|event| event.event_type.as_str() == kind).count();
    assert_eq!((count("Task Completed"), count("Task Pending"), count("Job Completed")), (200, 200, 1));
    child.kill();
}

/// A worker of its own, that says `who` it is in what its tasks put out.
fn worker(folder: &Path, who: &str, command: &str) -> Running {
    let file = folder.join(format!("{who}.toml"));
    let text = format!(
        "heartbeat-seconds = 1\n[tasks.\"*\"]\ncommand = '{command}'\nenvironment = {{ WHO = \"{who}\" }}\n"
    );
    fs::write(&file, text).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .args(["--local", "--data"])
        .arg(folder)
        .args(["worker", "--config"])
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

fn signal(running: &Running, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, signal).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_takes_over_and_the_late_end_of_the_first_is_refused_and_visible() {
    let folder = tempfile::tempdir().unwrap();
    let (mut local, state) = start(folder.path(), &[]).await;
    let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
    let submit = |id: &'static str| {
        let http = reqwest::Client::new();
        let request = http.post(format!("{}/api/tasks", state.api_url)).bearer_auth(&state.api_key);
        request.json(&json!({"name": "work", "requestId": id, "maxAttempts": 3})).send()
    };
    let awaited = |kind: &'static str, id: &'static str, attempt: u32| {
        let clients = clients.clone();
        async move {
            until(kind, || async {
                let events = events(&clients).await;
                let is_it = |event: &&Event| {
                    event.event_type.as_str() == kind
                        && event.entity_id.as_str() == id
                        && event.context.attempt == Some(attempt)
                };
                events.iter().find(is_it).cloned()
            })
            .await
        }
    };
    // Killed in mid-task: another takes over after the lease.
    assert_eq!(submit("killed").await.unwrap().status().as_u16(), 202);
    let long = "exec sleep 3600";
    let short = r#"echo "\"$WHO\"" > "$LEDGERLINE_OUTPUT""#;
    let mut first = worker(folder.path(), "first", long);
    let started = awaited("Task Processing Started", "killed", 1).await;
    let orphan = started.properties["processId"].as_i64().unwrap();
    first.kill();
    let mut second = worker(folder.path(), "second", short);
    let completed = awaited("Task Completed", "killed", 2).await;
    assert_eq!(completed.properties["output"], "second");
    second.kill();
    // What its worker left behind is ended by its id.
    let orphan = rustix::process::Pid::from_raw(i32::try_from(orphan).unwrap()).unwrap();
    rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();

    // Asleep in mid-task: another takes over, and what the first one says when it wakes is refused.
    assert_eq!(submit("asleep").await.unwrap().status().as_u16(), 202);
    let waiting = r#"while [ ! -e "$GO" ]; do sleep 0.05; done; echo "\"$WHO\"" > "$LEDGERLINE_OUTPUT""#;
    let go = folder.path().join("go");
    let waiting = waiting.replace("$GO", go.to_str().unwrap());
    let third = worker(folder.path(), "third", &waiting);
    awaited("Task Processing Started", "asleep", 1).await;
    signal(&third, rustix::process::Signal::STOP);
    fs::write(&go, "").unwrap();
    let mut fourth = worker(folder.path(), "fourth", short);
    let completed = awaited("Task Completed", "asleep", 2).await;
    assert_eq!(completed.properties["output"], "fourth");
    signal(&third, rustix::process::Signal::CONT);
    let refused = awaited("Task End Refused", "asleep", 1).await;
    assert_eq!(refused.properties["endedBy"], completed.event_id.as_str());
    let all = events(&clients).await;
    assert_eq!(ends(&all), BTreeMap::from([("asleep", 1), ("killed", 1)]));
    fourth.kill();
    drop(third);
    local.kill();
}
