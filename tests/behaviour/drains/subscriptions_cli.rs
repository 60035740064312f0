//! Subscriptions, workflow types, drainers and parked starts on the command line.

use serde_json::{Value, json};

use ledgerline_test_support::{World, until};

use crate::binary::{aligned, error, lines, one, out, run};

/// What the list of drainers says of one.
fn drainer(world: &World, id: &str) -> Option<Value> {
    let states = lines(&run(world, &["drainers", "--json"]));
    states.into_iter().find(|state| state["drainerId"] == id)
}

/// Three price changes, hours ago.
async fn prices(world: &World) -> Vec<String> {
    let emit = |hours: u64| {
        let (entity, ago) = (format!("ITEM/{hours}"), format!("{hours}h"));
        let properties = json!({ "new": hours }).to_string();
        let emit = ["emit", "price.changed", "--entity", &entity, "--properties", &properties, "--at", &ago];
        out(&run(world, &emit)).trim().to_owned()
    };
    let ids = [3, 2, 1].map(emit).to_vec();
    world.rows_at_least(3).await;
    ids
}

async fn tasks_at_least(world: &World, count: usize) -> Vec<Value> {
    until("the tasks are there", || async {
        let tasks = lines(&run(world, &["events", "--type", "Task Pending", "--json"]));
        (tasks.len() >= count).then_some(tasks)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_adds_lists_tests_and_removes_subscriptions() {
    let world = World::start().await;
    assert!(error(&run(&world, &["subscriptions", "test"]), 1).contains("emit one, or give one with --file"));
    assert!(error(&run(&world, &["subscriptions", "list"]), 0).contains("Add one with `subscriptions add"));
    let ids = prices(&world).await;

    let added = run(
        &world,
        &[
            "subscriptions",
            "add",
            "price.*",
            "push",
            "--map",
            "item=$.entity_id",
            "--map",
            "mode=literal:a=b",
            "--filter",
            "event.properties.new > 1",
            "--on-failure",
            "halt",
            "--disabled",
            "--start-at",
            "90m",
        ],
    );
    let id = out(&added).trim().to_owned();
    assert!(id.starts_with("sub_"));
    assert!(error(&added, 0).contains("push is not registered yet"), "{added:?}");
    let shown = one(&world, &["subscriptions", "show", &id]);
    assert_eq!(shown["inputMapper"], json!({"item": "$.entity_id", "mode": "literal:a=b"}));
    assert_eq!((&shown["enabled"], &shown["onFailure"]), (&json!(false), &json!("halt")));
    assert!(out(&run(&world, &["subscriptions", "show", &id])).contains("input       item = $.entity_id"));

    out(&run(&world, &["workflows", "add", "push", "--kind", "task"]));
    assert!(out(&run(&world, &["subscriptions", "enable", &id])).contains("is enabled"));
    let tried = one(&world, &["subscriptions", "test", "--event", &ids[0]]);
    assert_eq!((&tried["matches"], &tried["input"]), (&json!(true), &json!({"item": "3", "mode": "a=b"})));
    let tried = out(&run(&world, &["subscriptions", "test", "--type", "price.*"]));
    assert!(tried.contains(&ids[2]) && tried.contains("the filter is false"), "{tried}");
    let file = world.folder.path().join("event.json");
    std::fs::write(
        &file,
        json!({"eventType": "ar.overdue", "entityType": "INVOICE", "entityId": "7"}).to_string(),
    )
    .unwrap();
    let tried = one(&world, &["subscriptions", "test", "--file", file.to_str().unwrap()]);
    assert_eq!(tried["reason"], "the glob `price.*` does not match `ar.overdue`");

    assert!(out(&run(&world, &["subscriptions", "disable", &id])).contains("is disabled"));
    let table = out(&run(&world, &["subscriptions", "list"]));
    assert!(table.starts_with("ID") && table.contains("disabled") && aligned(&table), "{table}");
    assert!(
        error(&run(&world, &["subscriptions", "list", "--tenant", "other"]), 0).contains("No subscriptions")
    );
    for command in ["show", "enable", "disable", "rm"] {
        let refused = error(&run(&world, &["subscriptions", command, &id, "--tenant", "other"]), 1);
        assert!(refused.contains(&format!("there is no `{id}`")), "{refused}");
    }
    assert!(out(&run(&world, &["subscriptions", "rm", &id])).contains("is removed"));
    assert!(lines(&run(&world, &["subscriptions", "list", "--json"])).is_empty());
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_registers_and_starts_workflow_types() {
    let world = World::start().await;
    let tasks = world.folder.path().join("tasks.yaml");
    std::fs::write(
        &tasks,
        "- taskId: a\n  name: fetch\n- taskId: b\n  name: send\n  dependsOn: [a]\n  input: {id: $.id}\n",
    )
    .unwrap();
    let json = world.folder.path().join("tasks.json");
    std::fs::write(&json, "[\t{\"taskId\": \"a\", \"name\": \"fetch\"}]").unwrap();
    let (yaml, json) = (tasks.to_str().unwrap(), json.to_str().unwrap());
    for (args, expected) in [
        (
            &["push", "--kind", "task", "--name", "push-price", "--timeout", "5m", "--max-attempts", "3"][..],
            json!({"kind": "task", "name": "push-price", "timeoutMs": 300_000, "maxAttempts": 3}),
        ),
        (
            &["nightly", "--kind", "job", "--tasks", yaml, "--idempotency-key", "$.id"],
            json!({"kind": "job", "idempotencyKey": "$.id"}),
        ),
        (&["short", "--kind", "job", "--tasks", json], json!({"kind": "job"})),
        (&["approve", "--kind", "run", "--name", "approval"], json!({"kind": "run", "workflow": "approval"})),
        (
            &["answer", "--kind", "send", "--event", "hitl.answered", "--match", "id=$.id"],
            json!({"kind": "send", "event": "hitl.answered", "match": {"id": "$.id"}}),
        ),
    ] {
        let made = one(&world, &[&["workflows", "add"], args].concat());
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(made[field], *value, "{args:?}: {made}");
        }
    }
    let table = out(&run(&world, &["workflows", "list"]));
    assert!(
        table.contains("task push-price, at most 5m, 3 attempts") && table.contains("job of 2 tasks"),
        "{table}"
    );
    assert!(aligned(&table), "{table}");

    let started = out(&run(&world, &["workflows", "start", "push", "--input", r#"{"item": 1}"#]));
    assert!(started.starts_with("task_"), "{started}");
    assert_eq!(tasks_at_least(&world, 1).await[0]["causedBy"], "cli:start");
    let input = world.folder.path().join("input.json");
    std::fs::write(&input, r#"{"id": 7}"#).unwrap();
    let input = format!("@{}", input.display());
    let first = out(&run(&world, &["workflows", "start", "nightly", "--input", &input]));
    assert!(first.starts_with("job_"), "{first}");
    let again = run(&world, &["workflows", "start", "nightly", "--input", &input]);
    assert!(error(&again, 0).contains("collapsed: nightly was started with this key before"), "{again:?}");
    assert_eq!(out(&again), first, "it names the first");
    let keyed = ["workflows", "start", "push", "--idempotency-key", "k", "--json"];
    let (first, again) = (out(&run(&world, &keyed)), out(&run(&world, &keyed)));
    assert!(first.contains("\"collapsed\":false") && again.contains("\"collapsed\":true"), "{first} {again}");

    assert!(out(&run(&world, &["workflows", "rm", "push"])).contains("push is removed"));
    let gone = error(&run(&world, &["workflows", "start", "push"]), 1);
    assert!(gone.contains("workflow type: there is no `push`; `ledgerline workflows list`"), "{gone}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_a_subscription_or_workflow_type_names_the_option_and_the_position() {
    let world = World::start().await;
    let tasks = world.folder.path().join("tasks.yaml");
    std::fs::write(&tasks, "- taskId: a\n  name: n\n  dependson: [b]\n").unwrap();
    let tasks = tasks.to_str().unwrap();
    for (code, args, expected) in [
        (1, &["subscriptions", "add", "a#b", "w"][..], "at position 2"),
        (1, &["subscriptions", "add", "a", "w", "--filter", "event. > 3"], "\n  event. > 3\n         ^"),
        (
            1,
            &["subscriptions", "add", "a", "w", "--map", "v=$.a["],
            "is no JSONPath: it ends where a `]` is missing at position 5",
        ),
        (2, &["subscriptions", "add", "a", "w", "--map", "v"], "NAME=RECIPE is expected"),
        (2, &["subscriptions", "add", "a", "w", "--on-failure", "panic"], "possible values: park, halt"),
        (1, &["subscriptions", "add", "a", "w", "--drainer", "nobody"], "this stage has `jobs`, `workflow"),
        (1, &["subscriptions", "add", "a", "w", "--start-at", "soon"], "--start-at: `soon` is neither"),
        (1, &["subscriptions", "add", "a", "w", "--start-at", "2099-01-01T00:00:00Z"], "lies in the future"),
        (
            1,
            &["subscriptions", "show", "nothing"],
            "`ledgerline subscriptions list` shows those that there are",
        ),
        (1, &["subscriptions", "test", "--event", "nothing"], "event: there is no `nothing`"),
        (2, &["subscriptions", "test", "--event", "a", "--type", "b"], "cannot be used with"),
        (2, &["workflows", "add", "w", "--kind", "cron"], "possible values: task, job, run, send"),
        (2, &["workflows", "add", "w", "--kind", "job"], "--kind job needs --tasks FILE"),
        (
            2,
            &["workflows", "add", "w", "--kind", "run", "--event", "e"],
            "--event does not go with --kind run",
        ),
        (2, &["workflows", "add", "w", "--kind", "task", "--timeout", "soon"], "a time like 90s, 5m or 2h"),
        (1, &["workflows", "add", "w", "--kind", "job", "--tasks", tasks], "unknown field `dependson`"),
        (1, &["workflows", "add", "w", "--kind", "job", "--tasks", "/nowhere"], "--tasks: reading /nowhere"),
        (
            1,
            &["workflows", "add", "w", "--kind", "run", "--idempotency-key", "id"],
            "idempotencyKey: \"id\" is no JSONPath",
        ),
        (1, &["workflows", "start", "w", "--input", "[]"], "--input: a JSON object is expected"),
        (1, &["drain", "--drainer", "nobody"], "--drainer: there is no drainer `nobody`"),
        (1, &["rewind", "--to", "2h", "--yes"], "has not begun for this tenant"),
        (1, &["parked", "show", "nothing"], "`ledgerline parked list` shows"),
        (2, &["parked", "retry"], "<IDS>..."),
    ] {
        let said = error(&run(&world, args), code);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    assert_eq!(run(&world, &["parked", "retry", "a", "b"]).status.code(), Some(1));
    for command in ["subscriptions", "workflows", "drain", "drainers", "rewind", "parked"] {
        assert!(out(&run(&world, &[command, "--help"])).contains("Examples:"), "{command}");
    }
    for command in [["subscriptions", "add"], ["subscriptions", "test"], ["workflows", "add"]] {
        assert!(out(&run(&world, &[command[0], command[1], "--help"])).contains("Examples:"), "{command:?}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_drains_and_rewinds() {
    // A drainer with a schedule of its own: no other process drains it during the test.
    let world = World::with(|options| options.drainers = "timeline=1h".into()).await;
    let ids = prices(&world).await;
    let nothing = run(&world, &["drain", "--drainer", "timeline"]);
    assert!(error(&nothing, 0).contains("`subscriptions add` comes first"), "{nothing:?}");
    assert!(drainer(&world, "timeline").is_none());
    out(&run(&world, &["workflows", "add", "push", "--kind", "task"]));
    let added = run(&world, &["subscriptions", "add", "price.*", "push", "--drainer", "timeline"]);
    assert!(error(&added, 0).contains("timeline begins at the beginning of the ledger"), "{added:?}");

    let drained = out(&run(&world, &["drain", "--drainer", "timeline"]));
    assert!(drained.lines().next().unwrap().ends_with(" events processed, 3 started"), "{drained}");
    assert!(ids.iter().all(|id| drained.contains(id)), "{drained}");
    let table = out(&run(&world, &["drainers"]));
    assert!(table.contains("timeline") && table.contains("none") && aligned(&table), "{table}");

    let refused = run(&world, &["rewind", "--drainer", "timeline", "--to", "150m"]);
    assert!(error(&refused, 2).contains("add --yes"), "{refused:?}");
    let untouched = drainer(&world, "timeline").unwrap();
    assert_eq!((&untouched["epoch"], &untouched["lastEventId"]), (&json!(0), &json!(ids[2])));

    let rewind = ["rewind", "--drainer", "timeline", "--yes", "--to"];
    let again = run(&world, &[&rewind[..], &["150m"]].concat());
    let said = error(&again, 0);
    assert!(
        said.contains("events  2\n") && said.contains("a new epoch, 1: everything that matches"),
        "{said}"
    );
    assert!(said.contains("2 of 2 events, "), "{said}");
    assert_eq!(out(&again), "timeline is back where it was: 2 events handled again, 2 started\n");
    let missing = one(&world, &[&rewind[..], &[&ids[0], "--missing-only"]].concat());
    assert_eq!(
        (&missing["events"], &missing["started"], &missing["caughtUp"], &missing["missingOnly"]),
        (&json!(3), &json!(0), &json!(true), &json!(true))
    );
    assert_eq!(tasks_at_least(&world, 5).await.len(), 5);
    for (to, expected) in [
        ("2099-01-01T00:00:00Z", "to: 2099-01-01T00:00:00.000Z lies in the future"),
        ("nothing", "to: `nothing` is neither a time"),
        ("1m", "lies after the cursor"),
    ] {
        assert!(error(&run(&world, &[&rewind[..], &[to]].concat()), 1).contains(expected), "{to}");
    }
    let other = error(&run(&world, &[&rewind[..], &["2h", "--tenant", "other"]].concat()), 1);
    assert!(other.contains("has not begun for this tenant"), "{other}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_that_another_process_drains_is_watched_to_its_end() {
    let world = World::start().await;
    let ids = prices(&world).await;
    out(&run(&world, &["workflows", "add", "push", "--kind", "task"]));
    out(&run(&world, &["subscriptions", "add", "price.*", "push"]));
    tasks_at_least(&world, 3).await;
    until("the cursor has passed them", || async {
        let state = drainer(&world, "workflow_runner").unwrap();
        (state["eventsProcessedTotal"].as_u64() >= Some(3)).then_some(())
    })
    .await;
    let again = one(&world, &["rewind", "--to", &ids[1], "--yes"]);
    assert_eq!((&again["epoch"], &again["caughtUp"]), (&json!(1), &json!(true)), "{again}");
    assert_eq!(again["started"], 2, "whichever process made the starts: {again}");
    assert_eq!(tasks_at_least(&world, 5).await.len(), 5);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_which_starts_wait_and_why() {
    let world = World::with(|options| options.drainers = "timeline=1h".into()).await;
    let ids = prices(&world).await;
    out(&run(&world, &["subscriptions", "add", "price.*", "push", "--drainer", "timeline"]));
    let halted = run(&world, &["drain", "--drainer", "timeline"]);
    let said = error(&halted, 1);
    assert!(
        said.contains(&format!(
            "The oldest start that waits is that of {}: the workflow type `push` is not registered",
            ids[0]
        )),
        "{said}"
    );
    let state = out(&run(&world, &["drainers"]));
    assert!(state.contains(&ids[0]) && state.contains("is not registered") && aligned(&state), "{state}");

    assert!(error(&run(&world, &["parked", "list"]), 0).contains("Nothing is parked."));
    let retrying = lines(&run(&world, &["parked", "list", "--all", "--json"]));
    assert_eq!(retrying.len(), 3, "an unregistered type holds up the whole subscription: {retrying:?}");
    assert_eq!(retrying.iter().filter(|start| start["waitsFor"] == *ids[0]).count(), 2, "{retrying:?}");
    let retrying = retrying.iter().find(|start| start["eventId"] == *ids[0]).unwrap();
    let id = retrying["id"].as_str().unwrap();
    let table = out(&run(&world, &["parked", "list", "--all"]));
    assert!(table.contains("retrying") && aligned(&table), "{table}");
    let shown = out(&run(&world, &["parked", "show", id]));
    assert!(shown.contains("reason        the workflow type `push` is not registered"), "{shown}");
    assert_eq!(run(&world, &["parked", "show", id, "--tenant", "other"]).status.code(), Some(1));

    let failed = run(&world, &["parked", "retry", id]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stdout).contains("not started: it failed again"), "{failed:?}");
    out(&run(&world, &["workflows", "add", "push", "--kind", "task"]));
    assert!(out(&run(&world, &["parked", "retry", id])).contains("started: task_"));
    assert_eq!(run(&world, &["parked", "drop", id]).status.code(), Some(1), "it is parked no more");
    let drained = one(&world, &["drain", "--drainer", "timeline"]);
    assert_eq!(drained["triggered"], json!([]), "those that waited were started with it");
    assert_eq!(tasks_at_least(&world, 3).await.len(), 3);
    world.local.stop().await;
}
