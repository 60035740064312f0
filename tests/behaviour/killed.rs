use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use ledgerline::local::LocalState;
use ledgerline_ledger::Clients;

use crate::world::{at, detail, event, scan, until};

/// A process of ours, ended by its id whatever becomes of the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the real binary and waits until it answers.
pub(crate) async fn start(folder: &Path, also: &[&str]) -> (Running, LocalState) {
    let before = LocalState::read(folder).ok();
    let child = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .args(["local", "--aws-port", "0", "--port", "0", "--data"])
        .arg(folder)
        .args(also)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let state = until("local mode is ready", || async {
        let state = LocalState::read(folder).ok().filter(|state| before.as_ref() != Some(state))?;
        let answer = reqwest::get(format!("{}/api/health", state.api_url)).await.ok()?;
        answer.status().is_success().then_some(state)
    })
    .await;
    (Running(child), state)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_under_load_every_answered_event_is_in_the_table_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut answered = Vec::new();
    let mut sequence = 0_u64;
    for _ in 0..3 {
        let (mut child, state) = start(folder.path(), &[]).await;
        let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
        // Killed by its id in the middle of the stream, after a number of answers that differs each time.
        let lifetime = 60 + fastrand::usize(..100);
        let began = Instant::now();
        for _ in 0..lifetime {
            let ids: Vec<String> = (0..10).map(|n| format!("e-{sequence}-{n}")).collect();
            sequence += 1;
            let entries = ids.iter().map(|id| {
                PutEventsRequestEntry::builder()
                    .event_bus_name("ledgerline-local")
                    .source("task-workflow.test")
                    .detail_type("log-event")
                    .detail(detail(&event("t", id, at(1_767_453_739_640 + sequence))).to_string())
                    .build()
            });
            let answer = clients.events.put_events().set_entries(Some(entries.collect())).send().await;
            if answer.is_ok_and(|answer| answer.failed_entry_count() == 0) {
                answered.extend(ids);
            }
        }
        println!("{} events answered so far, {:?} for this round", answered.len(), began.elapsed());
        child.kill();
    }

    let (mut child, state) = start(folder.path(), &[]).await;
    let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
    until("every answered event is in the table", || async {
        let rows = scan(&clients, "events-local").await;
        let saved: std::collections::HashSet<_> =
            rows.iter().map(|row| row["eventId"].as_s().unwrap().clone()).collect();
        assert_eq!(saved.len(), rows.len(), "none twice");
        answered.iter().all(|id| saved.contains(id)).then_some(())
    })
    .await;
    child.kill();
}
