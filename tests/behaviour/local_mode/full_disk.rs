//! A disk without room, with the log on it: health says so, and work goes on when there is room, without a restart.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use ledgerline_ledger::Clients;
use ledgerline_local::LocalState;
use serde_json::Value;

use ledgerline_test_support::{at, detail, event, scan, until, without_retries};

use crate::binary::Running;

const SCRIPT: &str = r#"mount -t tmpfs -o size=32m tmpfs "$1" && exec "$2" local --aws-port 0 --port 0 --data "$1/data" 2>"$1/log""#;

/// Starts local mode on a small file system of its own; `None` where none can be mounted.
fn spawn(folder: &Path) -> Option<(Running, PathBuf)> {
    let allowed = Command::new("unshare")
        .args(["-Urm", "sh", "-c", "mount -t tmpfs tmpfs /tmp"])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("no file system can be mounted here: nothing is tested");
        return None;
    }
    let child = Command::new("unshare")
        .args(["-Urm", "sh", "-c", SCRIPT, "sh"])
        .args([folder.as_os_str(), env!("CARGO_BIN_EXE_ledgerline").as_ref()])
        .env("RUST_LOG", "info")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The same folder as the process sees it.
    let seen =
        Path::new("/proc").join(child.id().to_string()).join("root").join(folder.strip_prefix("/").unwrap());
    Some((Running(child), seen))
}

async fn health(state: &LocalState) -> Value {
    let client = reqwest::Client::new();
    let answer = client.get(format!("{}/api/health", state.api_url)).bearer_auth(&state.api_key).send().await;
    match answer {
        Ok(answer) => answer.json().await.unwrap_or_default(),
        Err(_) => Value::Null,
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_by_health_and_no_acknowledged_event_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let Some((_running, seen)) = spawn(folder.path()) else { return };
    let state = until("local mode is ready", || async {
        let state = LocalState::read(&seen.join("data")).ok()?;
        (health(&state).await["status"] == "ok").then_some(state)
    })
    .await;
    let impatient = without_retries(&state.aws_endpoint);
    let put = async |id: &str| {
        let entry = PutEventsRequestEntry::builder()
            .event_bus_name("ledgerline-local")
            .source("task-workflow.test")
            .detail_type("log-event")
            .detail(detail(&event("t", id, at(1_767_453_739_640))).to_string())
            .build();
        let answer = impatient.events.put_events().entries(entry).send().await;
        answer.is_ok_and(|answer| answer.failed_entry_count() == 0)
    };
    let mut acknowledged = Vec::new();
    assert!(put("before").await);
    acknowledged.push("before".to_owned());

    let mut ballast = fs::File::create(seen.join("ballast")).unwrap();
    for size in [1 << 20, 1 << 12, 1 << 8] {
        let piece = vec![b'x'; size];
        while ballast.write_all(&piece).is_ok() {}
    }
    let told = until("health says that the disk is full", || async {
        let health = health(&state).await;
        (health["status"] == "down").then_some(health)
    })
    .await;
    assert!(told["findings"].to_string().contains("full"), "{told}");
    assert!(!put("refused").await, "nothing is acknowledged that cannot be kept");

    drop(ballast);
    fs::remove_file(seen.join("ballast")).unwrap();
    until("health says that all is well again", || async {
        (health(&state).await["status"] == "ok").then_some(())
    })
    .await;
    assert!(put("after").await);
    acknowledged.push("after".to_owned());
    let clients = Clients::at_endpoint(&state.aws_endpoint, &state.region);
    until("what was acknowledged is saved", || async {
        let rows = scan(&clients, "events-local").await;
        let saved: Vec<_> = rows.iter().map(|row| row["eventId"].as_s().unwrap().clone()).collect();
        acknowledged.iter().all(|id| saved.contains(id)).then_some(())
    })
    .await;
}
