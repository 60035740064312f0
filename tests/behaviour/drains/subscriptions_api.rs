//! Subscriptions, workflow types, drainers and parked starts over HTTP.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ledgerline_store::KeyScope;
use reqwest::Method;
use serde_json::{Value, json};

use ledgerline_test_support::{
    World,
    api::{Caller, HOUR, detail_of, now},
    at, detail, event, until,
};

/// Puts `count` price changes of `tenant` in the ledger, a minute apart, and says when they began.
async fn prices(world: &World, tenant: &str, count: u64) -> u64 {
    let began = now() - HOUR;
    let events: Vec<Value> = (0..count)
        .map(|n| detail(&event(tenant, &format!("{tenant}-{n}"), at(began + n * 60_000))))
        .collect();
    world.put_events(&events).await;
    world.rows_at_least(events.len()).await;
    // A row is there before its saver has looked whether a drainer is past it; a subscription that is made meanwhile gets it.
    world.quiet().await;
    began
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_made_shown_changed_and_removed() {
    let world = World::start().await;
    let admin = Caller::admin(&world);
    let made = admin
        .created(
            "/api/subscriptions",
            json!({
                "eventTypeGlob": "vendor.*", "workflowType": "review", "onFailure": "halt", "enabled": false,
                "inputMapper": {"vendor": "$.entity_id"}, "filterExpr": "event.properties.cost > 10",
            }),
        )
        .await;
    let id = made["subscriptionId"].as_str().unwrap();
    assert!(id.starts_with("sub_"));
    assert_eq!((&made["drainerId"], &made["onFailure"]), (&json!("workflow_runner"), &json!("halt")));
    let path = format!("/api/subscriptions/{id}");
    assert_eq!(admin.get(&path).await, (200, made.clone()));
    assert_eq!(admin.items("/api/subscriptions").await, std::slice::from_ref(&made));

    let change = json!({"enabled": true, "filterExpr": null, "eventTypeGlob": "vendor.cost_changed"});
    let (status, changed) = admin.send(Method::PATCH, &path, change.to_string()).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(changed.get("filterExpr"), None);
    assert_eq!(changed["inputMapper"], made["inputMapper"], "what is not named stays");
    assert_eq!(admin.get(&path).await.1, changed);

    assert_eq!(admin.send(Method::DELETE, &path, "").await, (200, changed));
    assert_eq!(admin.get(&path).await.0, 404);
    assert!(admin.items("/api/subscriptions").await.is_empty());
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trial_says_what_matches_why_not_and_with_what_input() {
    let world = World::start().await;
    let admin = Caller::admin(&world);
    let (status, problem) = admin.send(Method::POST, "/api/subscriptions/test", "").await;
    assert_eq!((status, detail_of(&problem)), (404, "event: the ledger is empty; pass an `event` to try"));

    prices(&world, "local", 2).await;
    let add = |body| admin.created("/api/subscriptions", body);
    admin.created("/api/workflows", json!({"workflowType": "push", "kind": "run"})).await;
    add(json!({"eventTypeGlob": "price.*", "workflowType": "push", "inputMapper": {"item": "$.entity_id"}}))
        .await;
    add(json!({"eventTypeGlob": "price.*", "workflowType": "push", "filterExpr": "event.properties.new > 2.0"})).await;
    add(json!({"eventTypeGlob": "price.*", "workflowType": "unregistered"})).await;
    add(json!({"eventTypeGlob": "ar.*", "workflowType": "push"})).await;
    add(json!({"eventTypeGlob": "price.*", "workflowType": "push", "inputMapper": {"x": "$.payload.nothing"}})).await;

    let trial = json!({"eventId": "local-0", "subscription": {"eventTypeGlob": "*", "workflowType": "push"}});
    let (status, answer) = admin.post("/api/subscriptions/test", trial).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["event"]["eventId"], "local-0");
    assert_eq!(answer["event"].get("PK"), None);
    let told: Vec<_> = answer["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["matches"].as_bool().unwrap(), item["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            (true, "starts `push`"),
            (false, "the filter is false"),
            (false, "fails: the workflow type `unregistered` is not registered"),
            (false, "the glob `ar.*` does not match `price.changed`"),
            (false, "fails: inputMapper: x: `$.payload.nothing` finds nothing in this event"),
            (true, "starts `push`"),
        ]
    );
    assert_eq!(answer["items"][0]["input"], json!({"item": "10472"}));
    assert_eq!(answer["items"][5]["input"], json!({"new": 1.48, "id": "local-0"}), "the draft comes last");
    assert_eq!(admin.items("/api/subscriptions").await.len(), 5, "the draft is not stored");

    let sample = json!({"event": {"eventType": "ar.overdue", "entityType": "INVOICE", "entityId": "7"}});
    let (_, answer) = admin.post("/api/subscriptions/test", sample).await;
    assert_eq!(answer["items"][3]["matches"], true, "{answer}");
    let (_, answer) = admin.post("/api/subscriptions/test", json!({"type": "price.*"})).await;
    assert_eq!(answer["event"]["eventId"], "local-1", "the newest of them: {answer}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workflow_types_are_registered_started_and_removed() {
    let world = World::start().await;
    let admin = Caller::admin(&world);
    let writer = Caller::new(&world, "local", KeyScope::Write).await;
    let types = [
        json!({"workflowType": "push", "kind": "task", "name": "push-price", "timeoutMs": 60_000, "maxAttempts": 3}),
        json!({"workflowType": "nightly", "kind": "job", "tasks": [{"taskId": "a", "name": "n", "dependsOn": [], "input": {"id": "$.id"}}]}),
        json!({"workflowType": "approve", "kind": "run", "workflow": "approval"}),
        json!({"workflowType": "answer", "kind": "send", "event": "hitl.answered", "match": {"id": "$.id"}, "idempotencyKey": "$.id"}),
    ];
    for asked in &types {
        let mut made = admin.created("/api/workflows", asked.clone()).await;
        assert!(made.as_object_mut().unwrap().remove("createdAt").unwrap().is_u64());
        assert_eq!(made, *asked);
    }
    assert_eq!(admin.items("/api/workflows").await.len(), 4);
    let mut last_started = Value::Null;
    for (workflow_type, prefix) in
        [("push", "task_"), ("nightly", "job_"), ("approve", "wrun_"), ("answer", "evnt_")]
    {
        let path = format!("/api/workflows/{workflow_type}/start");
        let (status, answer) = writer.post(&path, json!({"input": {"id": "7"}})).await;
        assert_eq!((status, &answer["collapsed"]), (202, &json!(false)), "{answer}");
        assert!(answer["started"].as_str().unwrap().starts_with(prefix), "{answer}");
        assert_eq!(answer["workflowType"], workflow_type);
        last_started = answer["started"].clone();
    }
    let (status, answer) = writer.post("/api/workflows/answer/start", json!({"input": {"id": "7"}})).await;
    assert_eq!((status, &answer["collapsed"]), (202, &json!(true)), "one start per key");
    assert_eq!(answer["started"], last_started, "it names the first");
    assert_eq!(
        writer.send(Method::POST, "/api/workflows/push/start", "").await.0,
        202,
        "no input is no body"
    );
    // The tasks of the job that was started are caused by its own event.
    let tasks = writer.tasks_at_least(2).await;
    let causes: BTreeSet<_> = tasks.iter().map(|task| task["causedBy"].as_str().unwrap()).collect();
    let of_job = |cause: &&&str| !cause.starts_with("event:Job Created:");
    assert_eq!(causes.iter().filter(of_job).collect::<Vec<_>>(), [&"api:start"]);

    let (status, removed) = admin.send(Method::DELETE, "/api/workflows/push", "").await;
    assert_eq!((status, &removed["name"]), (200, &json!("push-price")));
    assert_eq!(writer.post("/api/workflows/push/start", json!({})).await.0, 404);
    assert_eq!(admin.send(Method::DELETE, "/api/workflows/push", "").await.0, 404);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_covers_reading_starting_or_everything() {
    let world = World::start().await;
    let read = Caller::new(&world, "local", KeyScope::Read).await;
    let write = Caller::new(&world, "local", KeyScope::Write).await;
    for path in ["/api/subscriptions", "/api/workflows", "/api/drainers", "/api/parked"] {
        assert_eq!(read.get(path).await.0, 200, "{path}");
    }
    for path in ["/api/subscriptions/x", "/api/parked/x"] {
        assert_eq!(read.get(path).await.0, 404, "{path}");
    }
    let start = "/api/workflows/x/start";
    assert_eq!(read.post(start, json!({})).await.0, 403);
    assert_eq!(write.post(start, json!({})).await.0, 404);
    for (method, path) in [
        (Method::POST, "/api/events/drain"),
        (Method::POST, "/api/subscriptions"),
        (Method::POST, "/api/subscriptions/test"),
        (Method::PATCH, "/api/subscriptions/x"),
        (Method::DELETE, "/api/subscriptions/x"),
        (Method::POST, "/api/workflows"),
        (Method::DELETE, "/api/workflows/x"),
        (Method::POST, "/api/drainers/x/rewind"),
        (Method::POST, "/api/parked/x/retry"),
        (Method::DELETE, "/api/parked/x"),
    ] {
        let (status, problem) = write.send(method.clone(), path, "").await;
        assert_eq!(status, 403, "{method} {path}: {problem}");
        assert!(detail_of(&problem).contains("`admin` is needed"), "{problem}");
        let url = format!("{}{path}", world.local.state.api_url);
        assert_eq!(world.http.request(method, url).send().await.unwrap().status(), 401, "{path}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_start_what_subscribes_and_a_rewind_starts_it_again() {
    let world = World::with(|options| options.drainers = "timeline=1h".into()).await;
    let admin = Caller::admin(&world);
    let began = prices(&world, "local", 3).await;
    let (status, drained) = admin.send(Method::POST, "/api/events/drain", "").await;
    assert_eq!((status, drained), (200, json!({"processed": 0, "triggered": [], "skippedDueToLock": false})));
    admin.created("/api/workflows", json!({"workflowType": "push", "kind": "task"})).await;
    admin.created("/api/subscriptions", json!({"eventTypeGlob": "price.*", "workflowType": "push"})).await;
    assert_eq!(admin.tasks_at_least(3).await.len(), 3);

    // What was started makes events of its own, which the cursor passes some seconds later.
    let last = format!("TIMESTAMP#{}", began + 120_000);
    let passed = || {
        until("the drainer has passed", || async {
            let states = admin.items("/api/drainers").await;
            let mut ours = states.into_iter().filter(|state| state["drainerId"] == "workflow_runner");
            ours.find(|state| *state["cursor"].as_str().unwrap() > *last)
        })
    };
    let state = passed().await;
    assert_eq!(
        (&state["drainerId"], &state["epoch"], &state["stalled"]),
        (&json!("workflow_runner"), &json!(0), &json!(false))
    );
    assert!(state["eventsProcessedTotal"].as_u64() >= Some(3), "{state}");
    assert!(state["lastEventId"].is_string() && state["lastDrainedAt"].is_u64(), "{state}");
    let (_, health) = admin.get("/api/health").await;
    assert_eq!(health["status"], "ok");
    let mut drainers = health["drainers"].as_array().unwrap().iter();
    let told = drainers.find(|state| state["drainerId"] == "workflow_runner").unwrap();
    assert_eq!(told["stalled"], json!(false));
    assert!(told["lagMs"].as_u64() < Some(60_000), "{health}");
    let stranger = world.http.get(format!("{}/api/health", world.local.state.api_url));
    assert_eq!(world.answer(stranger).await, (200, json!({"status": "ok"})));

    let path = "/api/drainers/workflow_runner/rewind";
    let (status, rewind) = admin.post(path, json!({"to": "local-1"})).await;
    assert_eq!(
        (status, &rewind["epoch"], &rewind["missingOnly"]),
        (200, &json!(1), &json!(false)),
        "{rewind}"
    );
    assert!(
        rewind["events"].as_u64() >= Some(2) && rewind["from"].as_str().unwrap().ends_with("local-1"),
        "{rewind}"
    );
    assert_eq!((&rewind["started"], &rewind["caughtUp"]), (&json!(2), &json!(true)), "{rewind}");
    admin.tasks_at_least(5).await;
    passed().await;
    let (status, rewind) = admin.post(path, json!({"to": began - HOUR, "missingOnly": true})).await;
    assert_eq!(
        (status, &rewind["epoch"], &rewind["missingOnly"]),
        (200, &json!(0), &json!(true)),
        "{rewind}"
    );
    assert!(rewind["events"].as_u64() >= Some(3), "{rewind}");
    assert_eq!(rewind["started"], 0, "missing only: nothing is missing");
    passed().await;
    let (_, drained) = admin.post("/api/events/drain", json!({"drainerId": "workflow_runner"})).await;
    assert_eq!(drained["triggered"], json!([]), "missing only: nothing is missing");
    assert_eq!(admin.tasks().await.len(), 5);

    // A drainer with a schedule of its own is drained on request.
    let other = json!({
        "eventTypeGlob": "price.*", "workflowType": "push", "drainerId": "timeline", "startAt": began + 90_000,
    });
    let timeline = admin.created("/api/subscriptions", other).await;
    let (status, drained) = admin.post("/api/events/drain", json!({"drainerId": "timeline"})).await;
    assert_eq!(status, 200, "{drained}");
    assert_eq!(drained["triggered"].as_array().unwrap().len(), 1, "{drained}");
    let triggered = &drained["triggered"][0];
    assert_eq!(
        (&triggered["eventId"], &triggered["subscriptionId"], &triggered["workflowType"]),
        (&json!("local-2"), &timeline["subscriptionId"], &json!("push"))
    );
    assert!(triggered["started"].as_str().unwrap().starts_with("task_"));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_starts_are_listed_retried_and_dropped() {
    let world = World::start().await;
    let admin = Caller::admin(&world);
    prices(&world, "local", 1).await;
    admin.created("/api/workflows", json!({"workflowType": "push", "kind": "task"})).await;
    // Twelve at once for one event: eight may start.
    let off = json!({"eventTypeGlob": "price.*", "workflowType": "push", "enabled": false});
    let mut ids = Vec::new();
    for _ in 0..12 {
        let made = admin.created("/api/subscriptions", off.clone()).await;
        ids.push(made["subscriptionId"].as_str().unwrap().to_owned());
    }
    for id in &ids {
        let path = format!("/api/subscriptions/{id}");
        admin.send(Method::PATCH, &path, json!({"enabled": true}).to_string()).await;
    }
    prices_now(&world).await;
    let parked = until("four are parked", || async {
        Some(admin.items("/api/parked").await).filter(|parked| parked.len() >= 4)
    })
    .await;
    assert_eq!(parked.len(), 4);
    assert!(parked.iter().all(|start| start["because"] == "fanout-cap" && start["state"] == "parked"));
    let (status, page) = admin.get("/api/parked?limit=3").await;
    assert_eq!((status, page["items"].as_array().unwrap().len()), (200, 3));
    let (_, rest) =
        admin.get(&format!("/api/parked?limit=3&cursor={}", page["cursor"].as_str().unwrap())).await;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["cursor"]), (1, &Value::Null));

    let path = format!("/api/parked/{}", parked[0]["id"].as_str().unwrap());
    assert_eq!(admin.get(&path).await, (200, parked[0].clone()));
    let (status, retried) = admin.send(Method::POST, &format!("{path}/retry"), "").await;
    assert_eq!((status, &retried["alreadyStarted"]), (200, &json!(false)), "{retried}");
    assert!(retried["started"].as_str().unwrap().starts_with("task_"));
    assert_eq!(admin.get(&path).await.0, 404);

    let path = format!("/api/parked/{}", parked[1]["id"].as_str().unwrap());
    assert_eq!(admin.send(Method::DELETE, &path, "").await, (200, parked[1].clone()));
    assert_eq!(admin.send(Method::DELETE, &path, "").await.0, 404);

    admin.send(Method::DELETE, "/api/workflows/push", "").await;
    let path = format!("/api/parked/{}", parked[2]["id"].as_str().unwrap());
    let (status, problem) = admin.send(Method::POST, &format!("{path}/retry"), "").await;
    assert_eq!(
        (status, detail_of(&problem)),
        (409, "it failed again: the workflow type `push` is not registered")
    );
    assert_eq!(admin.get(&path).await.1["attempts"], 1, "it is still there, and says so");
    assert_eq!(admin.tasks_at_least(9).await.len(), 9);
    world.local.stop().await;
}

/// One price change now.
async fn prices_now(world: &World) {
    world.put_events(&[detail(&event("local", "now", at(now())))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_each_others_subscriptions_drainers_or_parked_starts() {
    let world = World::start().await;
    let (mine, theirs) = (Caller::admin(&world), Caller::new(&world, "other", KeyScope::Admin).await);
    prices(&world, "local", 1).await;
    let made =
        mine.created("/api/subscriptions", json!({"eventTypeGlob": "price.*", "workflowType": "push"})).await;
    let retrying = until("the start is retried", || async {
        let (_, page) = mine.get("/api/parked?all=true").await;
        page["items"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!((&retrying["state"], &retrying["attempts"]), (&json!("retrying"), &json!(1)));
    assert!(mine.items("/api/parked").await.is_empty(), "not yet parked");

    for path in ["/api/subscriptions", "/api/workflows", "/api/drainers", "/api/parked?all=true"] {
        assert!(theirs.items(path).await.is_empty(), "{path}");
    }
    let subscription = format!("/api/subscriptions/{}", made["subscriptionId"].as_str().unwrap());
    let parked = format!("/api/parked/{}", retrying["id"].as_str().unwrap());
    for (method, path, body) in [
        (Method::GET, subscription.clone(), json!({})),
        (Method::PATCH, subscription.clone(), json!({"enabled": false})),
        (Method::DELETE, subscription.clone(), json!({})),
        (Method::GET, parked.clone(), json!({})),
        (Method::POST, format!("{parked}/retry"), json!({})),
        (Method::DELETE, parked.clone(), json!({})),
        (Method::POST, "/api/drainers/workflow_runner/rewind".into(), json!({"to": now() - HOUR})),
        (Method::POST, "/api/subscriptions/test".into(), json!({"eventId": "local-0"})),
        (Method::POST, "/api/subscriptions/test".into(), json!({"type": "price.changed"})),
    ] {
        let (status, problem) = theirs.send(method.clone(), &path, body.to_string()).await;
        assert_eq!(status, 404, "{method} {path}: {problem}");
    }
    let (_, drained) = theirs.post("/api/events/drain", json!({})).await;
    assert_eq!(drained["processed"], 0);
    assert_eq!(theirs.get("/api/health").await.1["drainers"], json!([]));
    assert_eq!(mine.get(&subscription).await, (200, made));
    assert_eq!(mine.get(&parked).await.0, 200);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drainer_that_stands_still_is_alerted() {
    let ahead = Arc::new(AtomicU64::new(0));
    let clock = ahead.clone();
    let world =
        World::with(|options| options.clock = Arc::new(move || at(now() + clock.load(Ordering::SeqCst))))
            .await;
    let admin = Caller::admin(&world);
    prices(&world, "local", 1).await;
    let halting = json!({"eventTypeGlob": "price.*", "workflowType": "nothing", "onFailure": "halt"});
    admin.created("/api/subscriptions", halting).await;
    let state = until("it is halted on the event", || async {
        admin.items("/api/drainers").await.into_iter().find(|state| state.get("haltedOnEventId").is_some())
    })
    .await;
    assert_eq!(
        (&state["haltedOnEventId"], &state["lastError"]),
        (&json!("local-0"), &json!("the workflow type `nothing` is not registered"))
    );
    ahead.store(2 * HOUR, Ordering::SeqCst);
    let (status, health) = admin.get("/api/health").await;
    assert_eq!((status, &health["status"]), (200, &json!("stalled")), "{health}");
    let mut drainers = health["drainers"].as_array().unwrap().iter();
    let told = drainers.find(|state| state["drainerId"] == "workflow_runner").unwrap();
    assert_eq!(told["stalled"], json!(true));
    assert!(told["lagMs"].as_u64() >= Some(3 * HOUR), "{health}");
    world.local.stop().await;
}
