//! Runs over HTTP: starting, showing, listing, cancelling, and driving one event by event.

use futures::future::join_all;
use ledgerline_store::KeyScope;
use reqwest::Method;
use serde_json::{Value, json};

use ledgerline_test_support::{
    World,
    api::{Caller, all, detail_of},
    external_runs::{append, appended, begun, id, in_ledger, log},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_started_shown_listed_and_cancelled() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let run = json!({"workflow": "order", "input": {"orderId": "o-1"}, "runId": "order-1"});
    let (status, answer) = caller.post("/api/runs", run.clone()).await;
    assert_eq!((status, answer), (202, json!({"runId": "order-1", "collapsed": false})));
    let (status, answer) = caller.post("/api/runs", run).await;
    assert_eq!((status, answer), (202, json!({"runId": "order-1", "collapsed": true})));
    let (status, problem) = caller.post("/api/runs", json!({"workflow": "order", "runId": "order-1"})).await;
    assert_eq!(status, 409);
    assert!(
        detail_of(&problem).contains("a run `order-1` exists and was asked for something else"),
        "{problem}"
    );
    let (_, answer) = caller.post("/api/runs", json!({"workflow": "order"})).await;
    let other = answer["runId"].as_str().unwrap().to_owned();
    assert!(other.starts_with("wrun_"), "{answer}");

    let (status, shown) = caller.get("/api/runs/order-1").await;
    assert_eq!(status, 200);
    assert_eq!((&shown["state"], &shown["workflowName"]), (&json!("pending"), &json!("order")));
    assert_eq!((&shown["input"], &shown["external"]), (&json!({"orderId": "o-1"}), &json!(false)));
    assert_eq!((&shown["steps"], &shown["hooks"], &shown["waits"]), (&json!([]), &json!([]), &json!([])));
    assert_eq!(
        caller.get(&format!("/api/runs/{other}")).await.1["input"],
        json!({}),
        "nothing is an empty object"
    );
    assert_eq!(all(&caller, "/api/runs?state=pending&limit=1", "runId").await, [other.as_str(), "order-1"]);

    let (status, cancelled) =
        caller.post("/api/runs/order-1/cancel", json!({"reason": "ordered twice"})).await;
    assert_eq!(
        (status, &cancelled["state"], &cancelled["runId"]),
        (200, &json!("cancelled"), &json!("order-1"))
    );
    assert!(cancelled["endedAt"].is_u64());
    let (status, problem) = caller.send(Method::POST, "/api/runs/order-1/cancel", "").await;
    assert_eq!((status, &problem["state"]), (409, &json!("cancelled")), "{problem}");
    let (_, shown) = caller.get("/api/runs/order-1").await;
    assert_eq!((&shown["state"], &shown["reason"]), (&json!("cancelled"), &json!("ordered twice")));
    assert_eq!(
        caller.send(Method::POST, &format!("/api/runs/{other}/cancel"), "").await.0,
        200,
        "without a body"
    );
    assert_eq!(log(&caller, "order-1").await, ["run_created", "run_cancelled"]);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_that_no_runner_has_is_refused_as_soon_as_runners_have_said_what_they_have() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let published = [("order".to_owned(), vec!["1".to_owned()]), ("refund".to_owned(), vec!["1".to_owned()])];
    world.local.stage.runs.registry.publish_workflows(published).await.unwrap();
    let (status, problem) = caller.post("/api/runs", json!({"workflow": "odrer"})).await;
    assert_eq!(status, 400);
    assert_eq!(detail_of(&problem), "workflow: no runner has `odrer`; there are: order, refund");
    assert_eq!(caller.post("/api/runs", json!({"workflow": "refund"})).await.0, 202);
    assert_eq!(all(&caller, "/api/runs?", "workflowName").await, ["refund"], "nothing is left of the other");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_driven_event_by_event_and_the_ledger_has_each_once() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let (step, run) = (id("step", 1), "driven-1");
    let created = json!({"workflowName": "order", "input": {"n": 1}, "deploymentId": "d-7"});
    let answer = appended(&caller, run, "run_created", None, created).await;
    assert_eq!(answer["event"]["correlationId"], run);
    assert_eq!((&answer["run"]["state"], &answer["run"]["input"]), (&json!("pending"), &json!({"n": 1})));
    appended(&caller, run, "run_started", Some(run), json!({"workflowVersion": "7"})).await;
    let answer = appended(&caller, run, "step_created", Some(&step), json!({"stepName": "charge"})).await;
    assert_eq!(
        (&answer["event"]["eventType"], &answer["step"]["stepId"], &answer["step"]["state"]),
        (&json!("step_created"), &json!(step), &json!("pending"))
    );
    appended(&caller, run, "step_started", Some(&step), json!({"attempt": 1})).await;
    // Large enough to lie in the bucket, in the log and in the ledger.
    let result = json!({"pages": "x".repeat(300_000)});
    let answer = appended(&caller, run, "step_completed", Some(&step), json!({"result": result})).await;
    assert_eq!(answer["step"]["result"], result);
    appended(&caller, run, "run_completed", None, json!({"output": [1, 2]})).await;

    let (_, shown) = caller.get("/api/runs/driven-1").await;
    assert_eq!(
        (&shown["state"], &shown["output"], &shown["external"]),
        (&json!("completed"), &json!([1, 2]), &json!(true))
    );
    assert_eq!((&shown["workflowVersion"], &shown["steps"][0]["result"]), (&json!("7"), &result));
    let types =
        ["run_created", "run_started", "step_created", "step_started", "step_completed", "run_completed"];
    assert_eq!(log(&caller, run).await, types);
    assert_eq!(all(&caller, "/api/runs/driven-1/events?limit=1", "eventType").await, types, "page by page");
    let (_, page) = caller.get("/api/runs/driven-1/events?limit=4").await;
    let rest = format!("/api/runs/driven-1/events?limit=2&cursor={}", page["cursor"].as_str().unwrap());
    let (_, page) = caller.get(&rest).await;
    assert_eq!((page["items"].as_array().unwrap().len(), &page["cursor"]), (2, &Value::Null));
    assert_eq!(page["items"][0]["eventData"]["result"], result);
    assert_eq!(
        caller.get("/api/runs/driven-1/events?cursor=99.0").await.1,
        json!({"items": [], "cursor": null})
    );

    let told = in_ledger(&caller, run, types.len()).await;
    assert_eq!(told.len(), types.len());
    let (_, page) = caller.get("/api/runs/driven-1/events").await;
    for event in page["items"].as_array().unwrap() {
        let told = &told[event["eventId"].as_str().unwrap()];
        for field in ["eventType", "timestamp"] {
            assert_eq!(told[field], event[field]);
        }
        assert_eq!(told["entityId"], event["correlationId"]);
        let mut properties = told["properties"].as_object().unwrap().clone();
        assert_eq!(properties.remove("correlationId").as_ref(), Some(&event["correlationId"]));
        assert_eq!(Value::Object(properties), event.get("eventData").cloned().unwrap_or(json!({})));
        let of_step = event["eventType"].as_str().unwrap().starts_with("step");
        assert_eq!(told["entityType"], if of_step { "STEP" } else { "RUN" });
        assert_eq!((&told["context"]["origin"], &told["appName"]), (&json!("producer-api"), &json!("api")));
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_closes_more_than_one_transaction_can_hold() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    begun(&caller, "r").await;
    for number in 0..105 {
        let sleep = json!({"resumeAt": 1_999_999_999_999_u64});
        appended(&caller, "r", "wait_created", Some(&id("wait", number)), sleep).await;
    }
    assert_eq!(caller.send(Method::POST, "/api/runs/r/cancel", "").await.0, 200);
    let (_, shown) = caller.get("/api/runs/r").await;
    let waits = shown["waits"].as_array().unwrap();
    assert!(waits.len() == 105 && waits.iter().all(|wait| wait["outcome"] == "abandoned"), "{shown}");
    assert_eq!(log(&caller, "r").await.last().unwrap(), "run_cancelled");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_append_the_same_at_once_one_succeeds() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let created = json!({"workflowName": "order", "input": 1});
    let answers = join_all((0..8).map(|_| append(&caller, "r", "run_created", None, created.clone()))).await;
    let statuses = |answers: &[(u16, Value)]| {
        let mut statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
        statuses.sort_unstable();
        statuses
    };
    assert_eq!(statuses(&answers), [201, 409, 409, 409, 409, 409, 409, 409], "{answers:?}");
    let answers = join_all((0..8).map(|_| append(&caller, "r", "run_started", None, json!({})))).await;
    assert_eq!(statuses(&answers), [201, 409, 409, 409, 409, 409, 409, 409], "{answers:?}");
    // Different ones all do.
    let steps: Vec<String> = (0..8).map(|number| id("step", number)).collect();
    let created =
        steps.iter().map(|step| append(&caller, "r", "step_created", Some(step), json!({"stepName": "s"})));
    assert_eq!(statuses(&join_all(created).await), [201; 8]);
    let told = in_ledger(&caller, "r", 10).await;
    assert_eq!((told.len(), log(&caller, "r").await.len()), (10, 10));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_by_state_exactly_and_page_by_page() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    for number in 0..7 {
        let run = format!("r{number}");
        appended(&caller, &run, "run_created", None, json!({"workflowName": "order", "input": 1})).await;
        if number > 0 {
            appended(&caller, &run, "run_started", None, json!({})).await;
        }
        match number {
            2 | 3 => drop(appended(&caller, &run, "run_completed", None, json!({"output": 1})).await),
            4 => drop(appended(&caller, &run, "run_failed", None, json!({"error": "e"})).await),
            5 => drop(appended(&caller, &run, "run_cancelled", None, json!({})).await),
            _ => {}
        }
    }
    for (state, expected) in [
        ("pending", &["r0"][..]),
        ("running", &["r6", "r1"]),
        ("completed", &["r3", "r2"]),
        ("failed", &["r4"]),
        ("cancelled", &["r5"]),
    ] {
        for limit in [1, 50] {
            let path = format!("/api/runs?state={state}&limit={limit}");
            assert_eq!(
                all(&caller, &path, "runId").await,
                expected,
                "{state}: at once, and the newest first"
            );
        }
    }
    let every = all(&caller, "/api/runs?limit=2", "runId").await;
    assert_eq!(every, ["r6", "r1", "r0", "r4", "r5", "r3", "r2"], "those under way first");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_seen_and_touched_only_by_their_tenant() {
    let world = World::start().await;
    let acme = Caller::new(&world, "acme", KeyScope::Write).await;
    let other = Caller::new(&world, "other", KeyScope::Write).await;
    let reader = Caller::new(&world, "acme", KeyScope::Read).await;
    let run = json!({"workflow": "order", "runId": "same"});
    assert_eq!(reader.post("/api/runs", run.clone()).await.0, 403);
    assert_eq!(acme.post("/api/runs", run.clone()).await.0, 202);
    begun(&acme, "driven").await;
    for path in ["/api/runs/same", "/api/runs/driven", "/api/runs/driven/events"] {
        assert_eq!(other.get(path).await.0, 404, "{path}");
        assert_eq!(reader.get(path).await.0, 200, "{path}");
    }
    let event = json!({"eventType": "run_completed", "eventData": {"output": 1}});
    assert_eq!(other.post("/api/runs/driven/events", event.clone()).await.0, 404);
    assert_eq!(reader.post("/api/runs/driven/events", event).await.0, 403);
    assert_eq!(other.send(Method::POST, "/api/runs/driven/cancel", "").await.0, 404);
    assert_eq!(reader.send(Method::POST, "/api/runs/driven/cancel", "").await.0, 403);
    assert!(all(&other, "/api/runs?", "runId").await.is_empty());

    let (status, answer) = other.post("/api/runs", run).await;
    assert_eq!((status, &answer["collapsed"]), (202, &json!(false)), "another tenant's is another run");
    assert_eq!(all(&other, "/api/runs?", "runId").await, ["same"]);
    assert_eq!(all(&acme, "/api/runs?", "runId").await, ["driven", "same"]);
    assert_eq!(other.send(Method::POST, "/api/runs/same/cancel", "").await.0, 200);
    assert_eq!(acme.get("/api/runs/same").await.1["state"], "pending");
    world.local.stop().await;
}
