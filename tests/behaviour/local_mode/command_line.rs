use std::process::Command;

use serde_json::{Value, json};

use ledgerline_test_support::{World, at, detail, event};

use crate::binary::{ledgerline, lines, out};

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_emits_lists_and_filters_events() {
    let world = World::start().await;
    let run = |args: &[&str]| ledgerline(world.folder.path(), args);
    let id =
        out(&run(&["emit", "price.changed", "--entity", "ITEM/10472", "--properties", r#"{"new":1.48}"#]))
            .trim()
            .to_owned();
    assert!(id.starts_with("evnt_"));
    run(&["emit", "hitl.approved", "--entity", "ACTION/1", "--app", "desk", "--at", "2h"]);
    let ahead = run(&["emit", "x", "--entity", "T/1", "--at", "2099-01-01T00:00:00Z"]);
    assert_eq!(ahead.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ahead.stderr).contains("timestamp: is "), "{ahead:?}");
    world.rows_at_least(2).await;

    let table = out(&run(&["events"]));
    let mut rows = table.lines();
    assert!(rows.next().unwrap().starts_with("TIME"), "{table}");
    assert!(rows.next().unwrap().contains("price.changed"), "the newest comes first: {table}");
    assert!(!table.contains('\u{1b}'), "no colours where no terminal is");

    let listed = lines(&run(&["events", "--type", "price.*", "--json"]));
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["eventId"], json!(id));
    assert_eq!(listed[0]["properties"], json!({"new": 1.48}));
    for (filter, count) in [
        (&["--entity", "ACTION"][..], 1),
        (&["--entity", "ITEM/10472"], 1),
        (&["--app", "desk"], 1),
        (&["--since", "1h"], 1),
        (&["--until", "1h"], 1),
        (&["--limit", "1"], 1),
        (&["--tenant", "nobody"], 0),
    ] {
        let found = lines(&run(&[&["events", "--json"], filter].concat()));
        assert_eq!(found.len(), count, "{filter:?}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_makes_and_revokes_keys() {
    let world = World::start().await;
    let run = |args: &[&str]| ledgerline(world.folder.path(), args);
    let made = lines(&run(&["keys", "create", "--scope", "read", "--label", "wall", "--json"])).remove(0);
    let status = |key: String| async move {
        let request = world.http.get(format!("{}/api/events/recent", world.local.state.api_url));
        (request.bearer_auth(key).send().await.unwrap().status().as_u16(), world)
    };
    let key = made["key"].as_str().unwrap().to_owned();
    let (code, world) = status(key.clone()).await;
    assert_eq!(code, 200);
    let run = |args: &[&str]| ledgerline(world.folder.path(), args);
    let list = out(&run(&["keys", "list"]));
    assert!(list.contains("wall") && !list.contains(&key), "{list}");
    out(&run(&["keys", "revoke", made["keyId"].as_str().unwrap()]));
    let request =
        world.http.get(format!("{}/api/events/recent", world.local.state.api_url)).bearer_auth(&key);
    assert_eq!(request.send().await.unwrap().status(), 401);

    let unknown = run(&["keys", "revoke", "nosuchkey"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no key has the id nosuchkey"));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_and_redrives_failures() {
    let world = World::start().await;
    let run = |args: &[&str]| ledgerline(world.folder.path(), args);
    let mut forged = detail(&event("local", "e-1", at(1_767_453_739_640)));
    forged["SK"] = json!("nonsense");
    world.put_events(&[forged]).await;
    world.quiet().await;
    let failure = lines(&run(&["failed", "list", "--json"])).remove(0);
    let id = failure["id"].as_str().unwrap();
    assert!(out(&run(&["failed", "list"])).contains("SK: `nonsense` does not match"));
    let shown = out(&run(&["failed", "show", id]));
    assert!(shown.contains("KEY_MISMATCH") && shown.contains("\"SK\": \"nonsense\""), "{shown}");
    assert!(out(&run(&["failed", "redrive", "--all"])).contains("redriven"));
    world.quiet().await;
    let open = lines(&run(&["failed", "list", "--json"]));
    assert_eq!(open.len(), 1, "it fails again, as a failure of its own");
    assert_ne!(open[0]["id"], failure["id"]);
    assert_eq!(run(&["failed", "show", "nothing"]).status.code(), Some(1));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_says_what_is_there_and_what_is_missing() {
    let world = World::start().await;
    let healthy = ledgerline(world.folder.path(), &["doctor"]);
    assert!(out(&healthy).contains("Everything that is needed is there."));
    let clients = world.clients();
    clients.s3.delete_bucket().bucket("ledgerline-local-payloads").send().await.unwrap();
    let sick = ledgerline(world.folder.path(), &["doctor", "--json"]);
    assert_eq!(sick.status.code(), Some(1));
    let text = String::from_utf8(sick.stdout).unwrap();
    let missing: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|check| check["state"] == "missing")
        .collect();
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0]["part"], "payload bucket");
    world.local.stop().await;
}

#[test]
fn mistakes_on_the_command_line_say_what_to_do_next() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = ledgerline(folder.path(), &["events"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("start one with `ledgerline local`"));
    let plain = Command::new(env!("CARGO_BIN_EXE_ledgerline"))
        .env_remove("LEDGERLINE_STAGE")
        .arg("events")
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&plain.stderr).contains("--local for the running local mode, or --stage")
    );
    for wrong in [&["failed", "list", "--limit", "0"][..], &["local", "--retention-days", "99999999"]] {
        assert_eq!(ledgerline(folder.path(), wrong).status.code(), Some(2), "{wrong:?}");
    }
    let wrong = ledgerline(folder.path(), &["keys", "create", "--scope", "root"]);
    assert_eq!(wrong.status.code(), Some(2));
    for command in ["local", "emit", "events", "keys", "failed"] {
        let help = ledgerline(folder.path(), &[command, "--help"]);
        assert!(out(&help).contains("Examples:"), "{command}");
    }
}
