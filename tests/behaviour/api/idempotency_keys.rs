//! Requests that are repeated with an idempotency key: each makes one thing, and every repeat names it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::future::join_all;
use ledgerline_embedded::{Moment, Verdict};
use ledgerline_runs::{EventSubmission, HookAnswer, HookPayload};
use ledgerline_store::KeyScope;
use serde_json::{Value, json};

use ledgerline_test_support::{
    Ledger, World,
    api::{Caller, HOUR, detail_of, now},
    at,
    external_runs::{appended, begun, id},
    name, until,
};

use crate::binary::{ledgerline, out};

const DAY: u64 = 24 * HOUR;

/// A route that makes something, the field of its body that names it, and the field of its answer that does.
struct Route {
    path: &'static str,
    body: Value,
    other: Value,
    id_in_body: Option<&'static str>,
    id_in_answer: &'static str,
}

fn routes() -> Vec<Route> {
    let tasks = |name: &str| json!([{"taskId": "a", "name": name}]);
    vec![
        Route {
            path: "/api/events/send",
            body: json!({"event": "paid", "match": {"order": 7, "by": "card"}, "data": {"n": [1, 2]}}),
            other: json!({"event": "paid", "match": {"order": 7, "by": "card"}, "data": {"n": [2, 1]}}),
            id_in_body: Some("idempotencyKey"),
            id_in_answer: "eventId",
        },
        Route {
            path: "/api/hooks/approve",
            body: json!({"ok": true}),
            other: json!({"ok": false}),
            id_in_body: None,
            id_in_answer: "eventId",
        },
        Route {
            path: "/api/workflows/push/start",
            body: json!({"input": {"item": 1}}),
            other: json!({"input": {"item": 2}}),
            id_in_body: None,
            id_in_answer: "started",
        },
        Route {
            path: "/api/workflows/answer/start",
            body: json!({"input": {"id": "7"}}),
            other: json!({"input": {"id": "8"}}),
            id_in_body: None,
            id_in_answer: "started",
        },
        Route {
            path: "/api/tasks",
            body: json!({"name": "push", "input": {"item": 1}}),
            other: json!({"name": "push", "input": {"item": 2}}),
            id_in_body: Some("requestId"),
            id_in_answer: "requestId",
        },
        Route {
            path: "/api/jobs",
            body: json!({"tasks": tasks("push")}),
            other: json!({"tasks": tasks("pull")}),
            id_in_body: Some("jobId"),
            id_in_answer: "jobId",
        },
        Route {
            path: "/api/runs",
            body: json!({"workflow": "order", "input": {"n": 1}}),
            other: json!({"workflow": "order", "input": {"n": 2}}),
            id_in_body: Some("runId"),
            id_in_answer: "runId",
        },
        Route {
            path: "/api/events/record",
            body: json!({"eventType": "priced", "entityType": "ITEM", "entityId": "1", "properties": {"n": 1}}),
            other: json!({"eventType": "priced", "entityType": "ITEM", "entityId": "1", "properties": {"n": 2}}),
            id_in_body: Some("idempotencyKey"),
            id_in_answer: "eventId",
        },
    ]
}

/// What the routes need: a run with a hook, and workflow types.
async fn furnish(caller: &Caller<'_>) {
    begun(caller, "r").await;
    appended(caller, "r", "hook_created", Some(&id("hook", 1)), json!({"token": "approve"})).await;
    caller.created("/api/workflows", json!({"workflowType": "push", "kind": "task"})).await;
    let answer = json!({"workflowType": "answer", "kind": "send", "event": "answered", "match": {"id": "$.id"},
        "idempotencyKey": "$.id"});
    caller.created("/api/workflows", answer).await;
}

/// The route's answer to a request under a key.
async fn keyed(caller: &Caller<'_>, path: &str, key: &str, body: &Value) -> (u16, Value) {
    caller.with_header("Idempotency-Key", key, path, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_repeated_with_its_key_names_what_the_first_one_made() {
    let world = World::start().await;
    let acme = Caller::new(&world, "acme", KeyScope::Admin).await;
    let other_tenant = Caller::new(&world, "other", KeyScope::Admin).await;
    furnish(&acme).await;
    furnish(&other_tenant).await;
    for (number, route) in routes().into_iter().enumerate() {
        let Route { path, body, other, id_in_body, id_in_answer } = route;
        let key = format!("key-{number}");
        let (status, first) = keyed(&acme, path, &key, &body).await;
        assert_eq!((status, &first["collapsed"]), (202, &json!(false)), "{path}: {first}");
        assert!(first[id_in_answer].is_string(), "{path}: {first}");
        for _ in 0..2 {
            let (status, repeat) = keyed(&acme, path, &key, &body).await;
            assert_eq!((status, &repeat["collapsed"]), (202, &json!(true)), "{path}: {repeat}");
            assert_eq!(repeat[id_in_answer], first[id_in_answer], "{path}");
            assert_eq!(repeat["runId"], first["runId"], "{path}");
        }
        let (status, refused) = keyed(&acme, path, &key, &other).await;
        match path {
            "/api/events/record" => {
                assert_eq!((status, &refused["eventId"]), (202, &first["eventId"]), "{path}: {refused}");
                assert_eq!(refused["collapsed"], true);
            }
            _ => assert_eq!(status, 409, "{path}: {refused}"),
        }
        if let Some(field) = id_in_body {
            let with_id = |id: &str| {
                let mut body = body.clone();
                body[field] = id.into();
                body
            };
            let (status, same) = acme.post(path, with_id(&key)).await;
            assert_eq!((status, &same[id_in_answer]), (202, &first[id_in_answer]), "{path}: {same}");
            let (status, both) = keyed(&acme, path, &key, &with_id(&key)).await;
            assert_eq!((status, &both["collapsed"]), (202, &json!(true)), "{path}: {both}");
            let (status, problem) = keyed(&acme, path, &key, &with_id("another")).await;
            assert_eq!(status, 400, "{path}: {problem}");
            let detail = detail_of(&problem);
            assert!(detail.starts_with("Idempotency-Key: ") && detail.contains(field), "{path}: {detail}");
        }
        let (status, theirs) = keyed(&other_tenant, path, &key, &other).await;
        assert_eq!((status, &theirs["collapsed"]), (202, &json!(false)), "{path}: {theirs}");
        let key = format!("once-{number}");
        let fresh = match path {
            "/api/workflows/answer/start" => json!({"input": {"id": "of its own"}}),
            _ => body.clone(),
        };
        let answers = join_all((0..8).map(|_| keyed(&acme, path, &key, &fresh))).await;
        assert!(answers.iter().all(|(status, _)| *status == 202), "{path}: {answers:?}");
        let ids: std::collections::BTreeSet<_> =
            answers.iter().map(|(_, answer)| answer[id_in_answer].to_string()).collect();
        assert_eq!(ids.len(), 1, "{path}: {answers:?}");
        let new = answers.iter().filter(|(_, answer)| answer["collapsed"] == false);
        assert_eq!(new.count(), 1, "{path}: {answers:?}");
    }
    // Two sendings under two keys, two starts of a type that sends, three payloads: nothing was made twice.
    let count = async |path: &str| acme.get(path).await.1["items"].as_array().unwrap().len();
    assert_eq!(count("/api/events/sent?event=paid").await, 2);
    assert_eq!(count("/api/events/sent?event=answered").await, 2);
    let (_, run) = acme.get("/api/runs/r").await;
    assert_eq!(run["hooks"][0]["received"], 2, "{run}");
    until("everything is saved", || async {
        (count("/api/events/recent?type=priced").await == 2).then_some(())
    })
    .await;
    world.quiet().await;
    assert_eq!(count("/api/events/recent?type=priced").await, 2);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_idempotency_key_is_refused_with_the_name_of_the_header() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    furnish(&caller).await;
    for route in routes() {
        let long = "x".repeat(256);
        for (key, expected) in
            [("", "Idempotency-Key: has 0 bytes"), (&long, "Idempotency-Key: has 256 bytes; 1 to 255")]
        {
            let (status, problem) = keyed(&caller, route.path, key, &route.body).await;
            assert_eq!(status, 400, "{}: {problem}", route.path);
            assert!(detail_of(&problem).starts_with(expected), "{}: {problem}", route.path);
        }
    }
    for path in ["/api/tasks", "/api/jobs"] {
        let route = routes().into_iter().find(|route| route.path == path).unwrap();
        let (status, problem) = keyed(&caller, path, "a:b", &route.body).await;
        assert_eq!(status, 400, "{path}: {problem}");
        assert!(detail_of(&problem).starts_with("Idempotency-Key: `a:b` contains ':'"), "{problem}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_was_received_is_answered_so_when_its_hook_is_gone() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    furnish(&caller).await;
    let (_, first) = keyed(&caller, "/api/hooks/approve", "k", &json!(1)).await;
    appended(&caller, "r", "hook_disposed", Some(&id("hook", 1)), json!({})).await;
    for ended in [false, true] {
        let (status, repeat) = keyed(&caller, "/api/hooks/approve", "k", &json!(1)).await;
        assert_eq!((status, &repeat["collapsed"]), (202, &json!(true)), "{ended}: {repeat}");
        assert_eq!((&repeat["eventId"], &repeat["runId"]), (&first["eventId"], &first["runId"]));
        assert_eq!(keyed(&caller, "/api/hooks/approve", "k", &json!(2)).await.0, 409);
        assert_eq!(keyed(&caller, "/api/hooks/approve", "new", &json!(1)).await.0, 410);
        caller.post("/api/runs/r/cancel", json!({})).await;
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_thirty_days_a_key_is_free() {
    let ahead = Arc::new(AtomicU64::new(0));
    let clock = ahead.clone();
    let world =
        World::with(|options| options.clock = Arc::new(move || at(now() + clock.load(Ordering::SeqCst))))
            .await;
    let caller = Caller::admin(&world);
    furnish(&caller).await;
    let free = ["/api/events/send", "/api/hooks/approve", "/api/workflows/push/start", "/api/events/record"];
    let routes = || routes().into_iter().filter(|route| free.contains(&route.path));
    let mut firsts = Vec::new();
    for Route { path, body, id_in_answer, .. } in routes() {
        let (_, first) = keyed(&caller, path, "k", &body).await;
        assert_eq!(first["collapsed"], false, "{path}: {first}");
        firsts.push(first[id_in_answer].clone());
    }
    world.quiet().await;
    ahead.store(30 * DAY - HOUR, Ordering::SeqCst);
    for (Route { path, body, id_in_answer, .. }, first) in routes().zip(&firsts) {
        let (_, repeat) = keyed(&caller, path, "k", &body).await;
        assert_eq!((&repeat["collapsed"], &repeat[id_in_answer]), (&json!(true), first), "{path}: {repeat}");
    }
    // The rows are still there: DynamoDB deletes them later than they expire.
    ahead.store(30 * DAY + HOUR, Ordering::SeqCst);
    for (Route { path, other, id_in_answer, .. }, first) in routes().zip(&firsts) {
        let (status, new) = keyed(&caller, path, "k", &other).await;
        assert_eq!((status, &new["collapsed"]), (202, &json!(false)), "{path}: {new}");
        assert_ne!(&new[id_in_answer], first, "{path}");
    }
    world.local.stop().await;
}

/// What fails, and at which moment.
type Fails = Arc<std::sync::Mutex<Option<(&'static str, bool)>>>;

async fn failing() -> (Ledger, Fails) {
    let fails: Fails = Arc::default();
    let failing = fails.clone();
    let ledger = Ledger::with(Some(Arc::new(move |call, moment| {
        let fails = *failing.lock().unwrap();
        let after = matches!(moment, Moment::After { .. });
        Box::pin(async move {
            match fails {
                Some((operation, lost)) if operation == call.operation && lost == after => {
                    Verdict::Fail { status: 500, code: "InternalServerError".into() }
                }
                _ => Verdict::Proceed,
            }
        })
    })))
    .await;
    (ledger, fails)
}

/// Every request that a keyed send makes fails once, before or after it was carried out; the repeat makes one of it.
#[tokio::test]
async fn a_send_that_failed_half_way_is_finished_by_its_repeat() {
    for operation in ["TransactWriteItems", "PutEvents", "BatchWriteItem", "Query", "UpdateItem"] {
        for lost in [false, true] {
            let (ledger, fails) = failing().await;
            let event: EventSubmission = serde_json::from_value(
                json!({"event": "paid", "match": {"order": 7}, "idempotencyKey": "k"}),
            )
            .unwrap();
            let emitter = ledger.emitter("t");
            *fails.lock().unwrap() = Some((operation, lost));
            let first = ledger.stage.events.send_event(&emitter, event.clone(), None).await;
            assert!(first.is_err(), "{operation} {lost}: {first:?}");
            *fails.lock().unwrap() = None;
            ledger.advance(1_000);
            let repeat = ledger.stage.events.send_event(&emitter, event.clone(), None).await.unwrap();
            // Only what was not even claimed is new.
            assert_eq!(repeat.collapsed, (operation, lost) != ("TransactWriteItems", false), "{operation}");
            let again = ledger.stage.events.send_event(&emitter, event.clone(), None).await.unwrap();
            assert!(again.collapsed && again.event_id == repeat.event_id, "{operation} {lost}");
            let sent = ledger.stage.runs.sent_events(&name("t"), &name("paid"), 10, None).await.unwrap();
            let ids: Vec<_> = sent.items.iter().map(|sent| sent.event.event_id.clone()).collect();
            assert_eq!(ids, [repeat.event_id], "{operation} {lost}");
            assert_eq!(ledger.events("t", "paid").await.len(), 1, "{operation} {lost}");
        }
    }
}

/// Two sends with one key, each of which finds the key free before the other takes it, while the table throttles what would
/// notify runs: both are accepted as the one event that is there.
#[tokio::test]
async fn sends_that_race_for_a_key_name_the_event_that_is_there_though_no_run_is_notified() {
    let both_looked = Arc::new(tokio::sync::Barrier::new(2));
    let looked = Arc::new(AtomicU64::new(0));
    let ledger = Ledger::with(Some(Arc::new(move |call, moment| {
        let (both_looked, looked) = (both_looked.clone(), looked.clone());
        Box::pin(async move {
            let is_key = String::from_utf8_lossy(&call.body).contains("REQUEST#t#SEND#k");
            match (call.operation.as_str(), moment) {
                ("GetItem", Moment::After { .. }) if is_key && looked.fetch_add(1, Ordering::SeqCst) < 2 => {
                    both_looked.wait().await;
                    Verdict::Proceed
                }
                ("Query", Moment::Before) => {
                    let code = "ProvisionedThroughputExceededException".into();
                    Verdict::Fail { status: 400, code }
                }
                _ => Verdict::Proceed,
            }
        })
    })))
    .await;
    let emitter = ledger.emitter("t");
    let event = json!({"event": "paid", "match": {"order": 7}, "idempotencyKey": "k"});
    let send = || async {
        let event: EventSubmission = serde_json::from_value(event.clone()).unwrap();
        ledger.stage.events.send_event(&emitter, event, None).await.unwrap()
    };
    let (one, other) = futures::join!(send(), send());
    assert_eq!(one.event_id, other.event_id);
    assert!(one.collapsed != other.collapsed);
    let again = send().await;
    assert_eq!((again.event_id, again.collapsed), (one.event_id, true));
}

/// The same with a payload for a hook.
#[tokio::test]
async fn a_payload_that_failed_half_way_is_received_once() {
    for operation in ["TransactWriteItems", "SendMessageBatch", "SendMessage"] {
        for lost in [false, true] {
            let (ledger, fails) = failing().await;
            let emitter = ledger.emitter("t");
            for (event_type, correlation, data) in [
                ("run_created", None, json!({"workflowName": "w", "input": {}})),
                ("run_started", None, json!({})),
                ("hook_created", Some(id("hook", 1)), json!({"token": "approve"})),
            ] {
                let event = json!({"eventType": event_type, "correlationId": correlation, "eventData": data});
                let event = serde_json::from_value(event).unwrap();
                ledger.stage.external_runs.append_external(&emitter, "r", event).await.unwrap();
            }
            let post = async || {
                let payload = HookPayload { payload: json!(1), idempotency_key: Some("k".into()) };
                ledger.stage.hooks.receive_by_hook(Some(&name("t")), "approve", payload).await
            };
            *fails.lock().unwrap() = Some((operation, lost));
            let _ = post().await;
            *fails.lock().unwrap() = None;
            let HookAnswer::Received { event_id, .. } = post().await.unwrap() else { panic!("{operation}") };
            let HookAnswer::Received { event_id: again, collapsed: true, .. } = post().await.unwrap() else {
                panic!("{operation}")
            };
            assert_eq!(again, event_id);
            let run = ledger.stage.runs.run(&name("t"), "r").await.unwrap();
            let shown = serde_json::to_value(&run).unwrap();
            assert_eq!(shown["hooks"][0]["received"], 1, "{operation} {lost}: {shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_are_repeated_say_collapsed_and_name_the_first_id() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    furnish(&caller).await;
    let commands: [&[&str]; 4] = [
        &["emit", "priced", "--entity", "ITEM/1"],
        &["send-event", "paid", "--match", r#"{"order":7}"#],
        &["workflows", "start", "push"],
        &["hook", "send", "approve", "--payload", "1"],
    ];
    for command in commands {
        let keyed = |more: &[&str]| {
            let args: Vec<&str> = [command, &["--idempotency-key", "k"], more].concat();
            ledgerline(world.folder.path(), &args)
        };
        let first: Value = serde_json::from_str(&out(&keyed(&["--json"]))).unwrap();
        assert_eq!(first["collapsed"], false, "{command:?}: {first}");
        let again = keyed(&["--json"]);
        let mut expected = first.clone();
        expected["collapsed"] = true.into();
        assert_eq!(serde_json::from_str::<Value>(&out(&again)).unwrap(), expected, "{command:?}");
        let id = first["eventId"].as_str().or(first["started"].as_str()).unwrap().to_owned();
        let plain = keyed(&[]);
        let said = String::from_utf8_lossy(&plain.stderr).into_owned();
        assert!(said.starts_with("collapsed: ") && said.contains(&id), "{command:?}: {plain:?}");
    }
    world.local.stop().await;
}
