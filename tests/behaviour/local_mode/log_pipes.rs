//! A log without a reader costs log lines, and nothing else.

use std::{
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use ledgerline_ledger::Clients;
use ledgerline_local::LocalState;
use serde_json::Value;

use ledgerline_test_support::{at, detail, event, scan, until};

use crate::binary::Running;

/// The real binary, with pipes that the test has the other ends of, and a log of many lines.
fn spawn(folder: &Path) -> Running {
    let command = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .args(["local", "--aws-port", "0", "--port", "0", "--data"])
        .arg(folder)
        .env("RUST_LOG", "debug")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Running(command.unwrap())
}

async fn ready(folder: &Path) -> LocalState {
    until("local mode is ready", || async {
        let state = LocalState::read(folder).ok()?;
        let answer = reqwest::get(format!("{}/api/health", state.api_url)).await.ok()?;
        answer.status().is_success().then_some(state)
    })
    .await
}

async fn put(clients: &Clients, details: impl IntoIterator<Item = String>) {
    for detail in details {
        let entry = PutEventsRequestEntry::builder()
            .event_bus_name("ledgerline-local")
            .source("task-workflow.test")
            .detail_type("log-event")
            .detail(detail)
            .build();
        let answer = clients.events.put_events().entries(entry).send().await.unwrap();
        assert_eq!(answer.failed_entry_count(), 0);
    }
}

/// Refused events make log lines; the good ones after them are saved, and health says that all is well.
async fn works(state: &LocalState) {
    let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
    put(&clients, (0..50).map(|number| format!("{{\"refused\":{number}}}"))).await;
    let good =
        |number: u64| detail(&event("t", &format!("e{number}"), at(1_767_453_739_640 + number))).to_string();
    put(&clients, (0..50).map(good)).await;
    until("the good events are saved", || async {
        (scan(&clients, "events-local").await.len() == 50).then_some(())
    })
    .await;
    let health =
        reqwest::Client::new().get(format!("{}/api/health", state.api_url)).bearer_auth(&state.api_key);
    let health: Value = health.send().await.unwrap().json().await.unwrap();
    assert_eq!(health["status"], "ok", "{health}");
}

async fn terminated(child: &mut Child) -> ExitStatus {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("the process ends", || std::future::ready(child.try_wait().unwrap())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_stops_neither_the_savers_nor_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = spawn(folder.path());
    drop((running.0.stdout.take(), running.0.stderr.take()));
    works(&ready(folder.path()).await).await;
    assert!(terminated(&mut running.0).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_is_not_read_stops_neither_the_savers_nor_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = spawn(folder.path());
    works(&ready(folder.path()).await).await;
    assert!(terminated(&mut running.0).await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirected_banner_says_where_the_key_is_and_not_what_it_is() {
    use std::io::Read;
    let folder = tempfile::tempdir().unwrap();
    let mut running = spawn(folder.path());
    let state = ready(folder.path()).await;
    assert!(terminated(&mut running.0).await.success());
    let mut banner = String::new();
    running.0.stdout.take().unwrap().read_to_string(&mut banner).unwrap();
    assert!(banner.contains("apiKey in ") && banner.contains("local.json"), "{banner}");
    assert!(!banner.contains(&state.api_key), "{banner}");
}
