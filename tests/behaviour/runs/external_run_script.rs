//! Runs that are driven from a shell: the script of the docs.

use std::process::Command;

use ledgerline_store::KeyScope;
use serde_json::Value;

use ledgerline_test_support::{
    World,
    api::{Caller, now},
    at,
    external_runs::in_ledger,
    name,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_script_takes_runs_through_all_that_can_happen_to_them() {
    let world = World::start().await;
    let tenant = name("acme");
    let (_, key) = world.api_keys().create(&tenant, KeyScope::Write, None, at(now())).await.unwrap();
    let url = world.local.state.api_url.clone();
    let script = tokio::task::spawn_blocking(move || {
        Command::new("bash")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/foreign-run.sh"))
            .env("LEDGERLINE_API", url)
            .env("LEDGERLINE_KEY", key)
            .env("NO_PROXY", "127.0.0.1")
            .output()
            .unwrap()
    });
    let ended = script.await.unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success(), "{}\n{said}", String::from_utf8_lossy(&ended.stderr));

    let caller = Caller::new(&world, "acme", KeyScope::Read).await;
    let runs: Vec<(&str, &str)> =
        said.lines().rev().take(4).map(|line| line.split_once(' ').unwrap()).collect();
    let mut seen: Vec<String> = Vec::new();
    for (state, run) in runs {
        let (_, shown) = caller.get(&format!("/api/runs/{run}")).await;
        assert_eq!(shown["state"], state, "{shown}");
        let (_, page) = caller.get(&format!("/api/runs/{run}/events?limit=500")).await;
        let log = page["items"].as_array().unwrap();
        let told = in_ledger(&caller, run, log.len()).await;
        assert_eq!(told.len(), log.len(), "the ledger has nothing else of {run}");
        for event in log {
            let told = &told[event["eventId"].as_str().unwrap()];
            assert_eq!(told["eventType"], event["eventType"]);
            assert_eq!(told["entityId"], event["correlationId"]);
            assert_eq!(told["properties"]["correlationId"], event["correlationId"]);
        }
        seen.extend(log.iter().filter_map(|event| event["eventType"].as_str().map(str::to_owned)));
        let steps = shown["steps"].as_array().unwrap().iter().chain(shown["hooks"].as_array().unwrap());
        let open = steps.chain(shown["waits"].as_array().unwrap());
        let open: Vec<&Value> = open
            .filter(|entity| {
                ["pending", "running", "active", "waiting"].iter().any(|state| entity["state"] == *state)
            })
            .collect();
        assert!(open.is_empty(), "nothing stays open: {open:?}");
    }
    let missing: Vec<_> = ledgerline_event::RunEventType::ALL
        .iter()
        .filter(|event_type| !seen.iter().any(|seen| seen == event_type.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    world.local.stop().await;
}
