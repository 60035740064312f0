//! Tasks over HTTP.

use ledgerline_event::catalogue::TaskProcessingStarted;
use ledgerline_jobs::TaskLease;
use ledgerline_store::KeyScope;
use reqwest::Method;
use serde_json::json;

use ledgerline_test_support::{
    World,
    api::{Caller, all, detail_of, in_state},
    local_worker::{complete, fail, take},
    until,
};

/// Tells the ledger that a worker began.
async fn started(world: &World, lease: &TaskLease) {
    let started = TaskProcessingStarted {
        request_id: lease.message.request_id.to_string(),
        job_id: lease.message.job_id.as_ref().map(ToString::to_string),
        effective_until: lease.until.seconds(),
        worker_id: lease.worker_id.clone(),
        process_id: 4711,
    };
    let emitter = world.local.stage.tasks.task_emitter(lease);
    emitter.catalogued(lease.message.request_id.as_str(), started).emit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_submitted_followed_and_shown_with_what_it_put_out() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let task = json!({"name": "scrape", "input": {"store": "s-1"}, "requestId": "req-1", "maxAttempts": 2});
    let (status, answer) = caller.post("/api/tasks", task.clone()).await;
    assert_eq!((status, answer), (202, json!({"requestId": "req-1", "collapsed": false})));
    let (status, shown) = caller.get("/api/tasks/req-1").await;
    assert_eq!((status, &shown["state"]), (200, &json!("pending")), "at once: {shown}");
    assert_eq!(caller.get("/api/tasks/req-1/history").await.0, 200);
    let (status, answer) = caller.post("/api/tasks", task.clone()).await;
    assert_eq!((status, answer), (202, json!({"requestId": "req-1", "collapsed": true})));
    let other = json!({"name": "scrape", "requestId": "req-1"});
    let (status, problem) = caller.post("/api/tasks", other).await;
    assert_eq!(status, 409);
    assert!(detail_of(&problem).contains("a task `req-1` exists and asks for something else"), "{problem}");
    let (_, answer) = caller.post("/api/tasks", json!({"name": "other"})).await;
    assert!(answer["requestId"].as_str().unwrap().starts_with("task_"), "{answer}");

    let mut leases = [take(&world).await, take(&world).await];
    leases.sort_by_key(|lease| lease.message.request_id.clone());
    let [lease, _] = leases;
    assert_eq!((lease.message.request_id.as_str(), lease.message.max_attempts), ("req-1", Some(2)));
    assert_eq!(lease.message.context.origin.as_deref(), Some("producer-api"));
    started(&world, &lease).await;
    let shown = in_state(&caller, "/api/tasks/req-1", "processing").await;
    assert_eq!((&shown["workerId"], &shown["processId"]), (&json!("worker-1"), &json!(4711)));
    assert_eq!(shown.get("output"), None);
    assert_eq!(all(&caller, "/api/tasks?state=processing", "requestId").await, ["req-1"]);

    // Large enough to lie in the bucket.
    let output = json!({"pages": "x".repeat(300_000), "colours": ["red"]});
    complete(&world, &lease, output.clone()).await;
    let shown = in_state(&caller, "/api/tasks/req-1", "completed").await;
    assert_eq!((&shown["output"], &shown["durationMs"]), (&output, &json!(7)));
    assert!(all(&caller, "/api/tasks?state=processing", "requestId").await.is_empty());
    assert_eq!(all(&caller, "/api/tasks?state=completed", "requestId").await, ["req-1"]);

    let history = all(&caller, "/api/tasks/req-1/history?limit=1", "eventType").await;
    assert_eq!(history, ["Task Pending", "Task Processing Started", "Task Completed"], "oldest first");
    let (_, page) = caller.get("/api/tasks/req-1/history").await;
    assert_eq!(page["items"][2]["properties"]["output"], output, "overflow restored");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_listed_page_by_page_and_by_state() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    for n in 0..5 {
        caller.post("/api/tasks", json!({"name": "n", "requestId": format!("r{n}")})).await;
    }
    until("all are listed", || async {
        (all(&caller, "/api/tasks?state=pending", "requestId").await.len() == 5).then_some(())
    })
    .await;
    let failed = take(&world).await;
    fail(&world, &failed).await;
    let failed = failed.message.request_id.to_string();
    in_state(&caller, &format!("/api/tasks/{failed}"), "failed").await;

    let pending = all(&caller, "/api/tasks?state=pending&limit=2", "requestId").await;
    assert_eq!(pending.len(), 4, "{pending:?}");
    assert!(!pending.contains(&failed));
    assert_eq!(all(&caller, "/api/tasks?state=failed&limit=1", "requestId").await, [failed.as_str()]);
    let mut every = all(&caller, "/api/tasks?limit=2", "requestId").await;
    every.sort();
    assert_eq!(every, ["r0", "r1", "r2", "r3", "r4"]);
    let (_, shown) = caller.get(&format!("/api/tasks/{failed}")).await;
    assert_eq!((&shown["error"], &shown["errorCategory"]), (&json!("no key"), &json!("auth")));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_task_is_refused_with_the_path_of_the_wrong_field() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let cases = [
        (json!({}), "missing field `name`"),
        (json!({"name": ""}), "name: has no name"),
        (json!({"name": "n", "colour": 1}), "colour: unknown field `colour`"),
        (json!({"name": "n", "input": []}), "input: invalid type: sequence, expected a map"),
        (json!({"name": "n", "requestId": "a:b"}), "requestId: `a:b` contains ':'"),
        (json!({"name": "n", "requestId": "a#b"}), "requestId: `a#b` contains '#'"),
        (json!({"name": "n", "timeoutMs": 0}), "timeoutMs: is 0; 1 to 43200000"),
        (json!({"name": "n", "maxAttempts": 1000}), "maxAttempts: is 1000; 1 to 100"),
        (json!({"name": "n", "tenantId": "other"}), "(the tenant is that of the key)"),
    ];
    for (body, expected) in cases {
        let (status, problem) = caller.post("/api/tasks", body.clone()).await;
        assert_eq!(status, 400, "{body}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{body}: {problem}");
    }
    let (status, _) =
        caller.post("/api/tasks", json!({"name": "n", "input": {"a": "x".repeat(1 << 20)}})).await;
    assert_eq!(status, 413);
    for (path, status, expected) in [
        ("/api/tasks?state=done", 400, "expected one of `pending`, `processing`, `completed`, `failed`"),
        ("/api/tasks?limit=0", 400, "limit: 0 is not between 1 and 500"),
        ("/api/tasks?cursor=abc", 400, "cursor: is not one that a list gave"),
        ("/api/tasks?colour=red", 400, "unknown field `colour`"),
        ("/api/tasks/nothing", 404, "there is no `nothing`; a task of a job is called JOB:TASK"),
        ("/api/tasks/nothing/history", 404, "there is no `nothing`"),
        ("/api/tasks/nothing/history?cursor=abc", 400, "cursor: is not one that a list gave"),
    ] {
        let (found, problem) = caller.get(path).await;
        assert_eq!(found, status, "{path}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{path}: {problem}");
    }
    assert_eq!(caller.send(Method::DELETE, "/api/tasks/nothing", "").await.0, 405);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_allows_only_what_its_scope_covers() {
    let world = World::start().await;
    let acme = Caller::new(&world, "acme", KeyScope::Write).await;
    let other = Caller::new(&world, "other", KeyScope::Write).await;
    let reader = Caller::new(&world, "acme", KeyScope::Read).await;
    let task = |name: &str| json!({"name": name, "requestId": "same"});
    assert_eq!(reader.post("/api/tasks", task("a")).await.0, 403);
    assert_eq!(acme.post("/api/tasks", task("a")).await.0, 202);
    assert_eq!(other.get("/api/tasks/same").await.0, 404);
    let (status, answer) = other.post("/api/tasks", task("b")).await;
    assert_eq!((status, &answer["collapsed"]), (202, &json!(false)), "another tenant's is another task");

    for (caller, name) in [(&acme, "a"), (&reader, "a"), (&other, "b")] {
        let shown = in_state(caller, "/api/tasks/same", "pending").await;
        assert_eq!(shown["name"], name);
        let listed = until("it is listed", || async {
            let (_, page) = caller.get("/api/tasks").await;
            Some(page["items"].as_array().unwrap().clone()).filter(|items| !items.is_empty())
        })
        .await;
        assert_eq!((listed.len(), &listed[0]["name"]), (1, &json!(name)));
        let (_, history) = caller.get("/api/tasks/same/history").await;
        assert_eq!(history["items"].as_array().unwrap().len(), 1, "{history}");
    }
    world.local.stop().await;
}
