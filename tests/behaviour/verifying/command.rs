//! `ledgerline verify`

use ledgerline_store::keys;
use serde_json::{Value, json};

use ledgerline_test_support::{World, text, until};

use crate::binary::{aligned, ledgerline, lines, out, run};

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_compares_and_rebuilds() {
    let world = World::start().await;
    let submit = |id: &str| {
        let task = json!({"name": "x", "requestId": id}).to_string();
        world.post("/api/tasks", task)
    };
    for id in ["a", "b"] {
        submit(id).await;
    }
    until("both are listed", || async {
        Some(lines(&run(&world, &["tasks", "--json"]))).filter(|tasks| tasks.len() == 2)
    })
    .await;
    assert_eq!(out(&run(&world, &["verify"])), "2 tasks, 0 jobs, 0 runs, 2 events: everything agrees\n");
    let summary = lines(&run(&world, &["verify", "--json"]));
    let expected = json!({
        "tasks": 2, "jobs": 0, "runs": 0, "events": 2, "differences": 0, "faults": 0, "rebuilt": 0, "notSettled": 0,
    });
    assert_eq!(summary, [expected]);

    let update = world.control().update(&keys::task_summary(&world.local.state.tenant, "a"));
    let update = update.update_expression("SET listIn = :list");
    let list = format!("TASKS#{}#failed", world.local.state.tenant);
    update.expression_attribute_values(":list", text(&list)).send().await.unwrap();
    let verified = run(&world, &["verify"]);
    assert_eq!(verified.status.code(), Some(1), "{verified:?}");
    let said = String::from_utf8(verified.stdout).unwrap();
    let table: Vec<&str> = said.lines().take(2).collect();
    assert!(aligned(&table.join("\n")), "{said}");
    assert!(table[0].starts_with("ENTITY") && table[1].starts_with("TASK/a"), "{said}");
    assert!(said.contains("row-in-wrong-list  nothing is decided by it; `verify --rebuild`"), "{said}");
    assert!(said.ends_with("2 tasks, 0 jobs, 0 runs, 2 events: 1 difference, 0 rebuilt\n"), "{said}");
    let verified = run(&world, &["verify", "--json"]);
    assert_eq!(verified.status.code(), Some(1));
    let said = String::from_utf8(verified.stdout).unwrap();
    let said: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(said.len(), 2);
    assert_eq!((&said[0]["entityId"], &said[0]["difference"]), (&json!("a"), &json!("row-in-wrong-list")));
    assert_eq!((&said[0]["standing"], &said[1]["faults"]), (&json!("fault"), &json!(1)));
    assert!(said[0]["advice"].as_str().unwrap().contains("verify --rebuild"), "{said:?}");

    let rebuilt = out(&run(&world, &["verify", "--rebuild"]));
    assert!(rebuilt.contains("  rebuilt  "), "{rebuilt}");
    assert!(rebuilt.ends_with("2 tasks, 0 jobs, 0 runs, 2 events: 1 difference, 1 rebuilt\n"), "{rebuilt}");
    assert!(out(&run(&world, &["verify"])).ends_with("everything agrees\n"));
    let help = out(&ledgerline(world.folder.path(), &["verify", "--help"]));
    assert!(help.contains("Examples:"), "{help}");
    world.local.stop().await;
}
