//! What needs attention is shown wherever people look: health, `doctor`, `drainers`, and the terminal of local mode.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};

use ledgerline_test_support::{BEGIN, World, at, detail, event, until};

use crate::binary::{Running, ledgerline, out};

const MINUTE: u64 = 60_000;

/// Local mode with one of everything that waits for an operator, and the clock that the test moves.
async fn troubled() -> (World, Arc<AtomicU64>) {
    let time = Arc::new(AtomicU64::new(BEGIN));
    let clock = time.clone();
    let world =
        World::with(|options| options.clock = Arc::new(move || at(clock.load(Ordering::SeqCst)))).await;
    let created = |(status, answer): (u16, Value)| assert!((200..300).contains(&status), "{status} {answer}");
    created(
        world
            .post(
                "/api/workflows",
                json!({"workflowType": "w", "kind": "task", "name": "reprice"}).to_string(),
            )
            .await,
    );
    for subscription in [
        json!({"eventTypeGlob": "price.*", "workflowType": "w"}),
        json!({"eventTypeGlob": "price.*", "workflowType": "missing"}),
        json!({"eventTypeGlob": "price.*", "workflowType": "w", "inputMapper": {"x": "$.payload.none"}}),
    ] {
        created(world.post("/api/subscriptions", subscription.to_string()).await);
    }
    created(world.post("/api/runs", json!({"workflow": "order", "input": {}}).to_string()).await);
    let mut refused = detail(&event("local", "e2", at(BEGIN)));
    refused["GSI1PK"] = json!("ITEM#wrong");
    world.put_events(&[detail(&event("local", "e1", at(BEGIN - 1_000))), refused]).await;
    (world, time)
}

async fn kinds(world: &World) -> (String, BTreeSet<String>) {
    let (_, health) = world.get("/api/health").await;
    let kind = |note: &Value| note["kind"].as_str().unwrap().to_owned();
    let kinds = health["attention"].as_array().unwrap().iter().map(kind).collect();
    (health["status"].as_str().unwrap().to_owned(), kinds)
}

#[tokio::test(flavor = "multi_thread")]
async fn health_doctor_and_drainers_show_what_waits_for_an_operator() {
    let (world, time) = troubled().await;
    let early = ["blocked-starts", "failed-deliveries", "parked-starts"].map(str::to_owned);
    until("starts and deliveries have failed", || async {
        let (_, kinds) = kinds(&world).await;
        early.iter().all(|kind| kinds.contains(kind)).then_some(())
    })
    .await;
    until("the task is listed", || async {
        let (_, tasks) = world.get("/api/tasks?state=pending").await;
        (!tasks["items"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    let (status, before) = kinds(&world).await;
    assert_eq!((status.as_str(), &before), ("ok", &BTreeSet::from(early.clone())), "the rest is on its way");

    time.fetch_add(3 * MINUTE, Ordering::SeqCst);
    let (status, now) = kinds(&world).await;
    let with_work: BTreeSet<String> =
        early.iter().cloned().chain(["no-worker".to_owned(), "no-runner".to_owned()]).collect();
    assert_eq!((status.as_str(), now), ("ok", with_work));

    let doctor = out(&ledgerline(world.folder.path(), &["doctor"]));
    for shown in
        ["parked starts", "blocked starts", "failed deliveries", "no worker", "no runner", "reprice", "order"]
    {
        assert!(doctor.contains("ATTENTION") && doctor.contains(shown), "{shown}: {doctor}");
    }
    let drainers = ledgerline(world.folder.path(), &["drainers"]);
    let said = String::from_utf8_lossy(&drainers.stderr);
    assert!(
        said.contains("Needs attention") && said.contains("no worker") && said.contains("parked list"),
        "{said}"
    );

    // Local mode sweeps by real time: no sweep comes because the ledger's clock has moved.
    time.fetch_add(20 * MINUTE, Ordering::SeqCst);
    let (status, now) = kinds(&world).await;
    assert!(now.contains("late-sweep"), "{now:?}");
    assert_eq!(status, "degraded");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_of_local_mode_says_what_begins_to_need_attention() {
    let folder = tempfile::tempdir().unwrap();
    let command = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .args(["local", "--aws-port", "0", "--port", "0", "--data"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut running = Running(command.unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().contains("Ctrl-C stops")));
    let emitted = ["emit", "price.changed", "--entity", "ITEM/1", "--properties", "{}"];
    out(&ledgerline(folder.path(), &["workflows", "add", "w", "--kind", "task"]));
    out(&ledgerline(
        folder.path(),
        &["subscriptions", "add", "price.*", "w", "--map", "x=$.properties.none"],
    ));
    out(&ledgerline(folder.path(), &emitted));
    let said = lines.map(Result::unwrap).find(|line| line.contains("parked starts")).unwrap();
    assert!(said.contains("1 parked start; the newest would start `w`"), "{said}");
}
