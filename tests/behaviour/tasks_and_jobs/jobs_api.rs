//! Jobs over HTTP.

use ledgerline_store::KeyScope;
use serde_json::{Value, json};

use ledgerline_test_support::{
    World,
    api::{Caller, all, detail_of, in_state},
    diamond,
    local_worker::{complete, fail, take},
    until,
};

fn task(id: &str, parents: &[&str]) -> Value {
    json!({"taskId": id, "name": "n", "dependsOn": parents})
}

/// The states of a job's tasks, by id.
fn states(job: &Value) -> Vec<(&str, &str)> {
    let tasks = job["tasks"].as_array().unwrap();
    tasks
        .iter()
        .map(|task| (task["taskId"].as_str().unwrap(), task["state"].as_str().unwrap_or("waiting")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_submitted_and_shown_with_all_its_tasks_until_it_is_completed() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let job = json!({"jobId": "seed-1", "tasks": diamond()});
    let (status, answer) = caller.post("/api/jobs", job.clone()).await;
    assert_eq!((status, answer), (202, json!({"jobId": "seed-1", "totalTasks": 5, "collapsed": false})));
    let (status, shown) = caller.get("/api/jobs/seed-1").await;
    assert_eq!((status, &shown["totalTasks"]), (200, &json!(5)), "at once: {shown}");
    let (status, answer) = caller.post("/api/jobs", job).await;
    assert_eq!((status, &answer["collapsed"]), (202, &json!(true)));
    let (status, problem) =
        caller.post("/api/jobs", json!({"jobId": "seed-1", "tasks": [task("a", &[])]})).await;
    assert_eq!(status, 409);
    assert!(detail_of(&problem).contains("a job `seed-1` exists and has other tasks"), "{problem}");
    let (_, answer) =
        caller.post("/api/jobs", json!({"tasks": [task("a", &[])], "requestId": "order-7"})).await;
    let other = answer["jobId"].as_str().unwrap().to_owned();
    assert!(other.starts_with("job_"), "{answer}");

    let mut ends = 0;
    while ends < 6 {
        let lease = take(&world).await;
        let task = lease.message.request_id.to_string();
        if task == "seed-1:task-E" {
            let (_, shown) = caller.get("/api/jobs/seed-1").await;
            assert_eq!(shown["state"], "running", "{shown}");
            assert!(shown["completedTasks"].as_u64() >= Some(3) && shown["activeTasks"].as_u64() >= Some(1));
            assert_eq!(states(&shown)[2..4], [("task-C", "completed"), ("task-D", "completed")]);
            let last = until("its event has come through", || async {
                let (_, last) = caller.get("/api/tasks/seed-1%3Atask-E").await;
                (!last["dependsOn"].is_null()).then_some(last)
            })
            .await;
            assert_eq!((&last["jobId"], &last["state"]), (&json!("seed-1"), &json!("pending")));
            assert_eq!(last["dependsOn"], json!(["task-C", "task-D"]));
            let input = lease.message.input.as_ref().unwrap();
            assert_eq!(input["dependencyOutputs"]["task-C"], json!({"of": "seed-1:task-C"}));
        }
        complete(&world, &lease, json!({"of": task})).await;
        ends += 1;
    }
    let shown = in_state(&caller, "/api/jobs/seed-1", "completed").await;
    let done = |id| (id, "completed");
    assert_eq!(states(&shown), ["task-A", "task-B", "task-C", "task-D", "task-E"].map(done));
    assert_eq!(shown["tasks"][4]["summary"]["durationMs"], 7);
    assert!(shown["completedAt"].as_u64() >= shown["createdAt"].as_u64());
    for inner in ["contentHash", "listIn", "listAt", "laidOut", "PK"] {
        assert_eq!(shown.get(inner), None, "{inner} is internal");
    }
    let shown = in_state(&caller, &format!("/api/jobs/{other}"), "completed").await;
    assert_eq!(shown["requestId"], "order-7");
    let mut completed = all(&caller, "/api/jobs?state=completed&limit=1", "jobId").await;
    completed.sort();
    let mut both = [other.as_str(), "seed-1"];
    both.sort();
    assert_eq!(completed, both);
    assert!(all(&caller, "/api/jobs?state=running", "jobId").await.is_empty());

    let (status, problem) = caller.post("/api/jobs/seed-1/tasks", json!({"tasks": [task("x", &[])]})).await;
    assert_eq!((status, detail_of(&problem)), (409, "the job `seed-1` is completed; submit a new one"));
    let (status, problem) = caller.post("/api/jobs/seed-1/resume", json!({})).await;
    assert_eq!(status, 409);
    assert!(detail_of(&problem).contains("nothing failed in it"), "{problem}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_is_resumed_and_takes_more_tasks() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let job = json!({"jobId": "j", "tasks": [task("a", &[]), task("b", &["a"])]});
    caller.post("/api/jobs", job).await;
    let lease = take(&world).await;
    let (status, problem) = caller.post("/api/jobs/j/resume", json!({})).await;
    let expected = "no task of the job `j` has failed: it is running";
    assert_eq!((status, detail_of(&problem)), (409, expected));
    fail(&world, &lease).await;
    let shown = in_state(&caller, "/api/jobs/j", "failed").await;
    assert_eq!(states(&shown), [("a", "failed"), ("b", "waiting")]);
    assert_eq!(shown["tasks"][0]["summary"]["error"], "no key");
    until("it is listed as such", || async {
        (all(&caller, "/api/jobs?state=failed", "jobId").await == ["j"]).then_some(())
    })
    .await;

    let (status, answer) = caller.post("/api/jobs/j/tasks", json!({"tasks": [task("c", &["b"])]})).await;
    assert_eq!((status, answer), (202, json!({"previousTotalTasks": 2, "totalTasksNow": 3})));
    let (status, answer) = caller.post("/api/jobs/j/resume", json!({})).await;
    assert_eq!((status, answer), (202, json!({"resumed": ["a"]})));
    for (id, generation) in [("j:a", 2), ("j:b", 1), ("j:c", 1)] {
        let lease = take(&world).await;
        assert_eq!((lease.message.request_id.as_str(), lease.message.generation), (id, generation));
        complete(&world, &lease, json!({})).await;
    }
    let shown = in_state(&caller, "/api/jobs/j", "completed").await;
    assert_eq!((&shown["generation"], &shown["totalTasks"]), (&json!(2), &json!(3)));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_job_is_refused_with_the_task_that_is_wrong() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let of = |tasks: Value| json!({ "tasks": tasks });
    let many: Vec<Value> = (0..1_001).map(|n| task(&n.to_string(), &[])).collect();
    let cases = [
        (json!({}), "missing field `tasks`"),
        (of(json!([])), "tasks: has 0 tasks; 1 to 1000 are allowed"),
        (of(json!(many)), "tasks: has 1001 tasks; 1 to 1000 are allowed"),
        (of(json!([task("a", &[]), task("a", &[])])), "two tasks have the id `a`"),
        (of(json!([task("a", &["z"])])), "task `a`: depends on `z`, which is not among the tasks"),
        (of(json!([task("a", &["b"]), task("b", &["a"])])), "the tasks wait for each other: a → b → a"),
        (of(json!([task("a:b", &[])])), "the id \"a:b\" of task 1 contains `#` or `:`"),
        (of(json!([{"taskId": "a"}])), "tasks[0]: missing field `name`"),
        (
            of(json!([{"taskId": "a", "name": "n", "dependson": []}])),
            "tasks[0].dependson: unknown field `dependson`",
        ),
        (of(json!([{"taskId": "a", "name": "n", "timeoutMs": 0}])), "task `a`: timeoutMs: is 0"),
        (json!({"jobId": "a:b", "tasks": [task("a", &[])]}), "jobId: `a:b` contains ':'"),
        (json!({"requestId": "a#b", "tasks": [task("a", &[])]}), "requestId: `a#b` contains '#'"),
    ];
    for (body, expected) in cases {
        let (status, problem) = caller.post("/api/jobs", body.clone()).await;
        assert_eq!(status, 400, "{problem}");
        assert!(detail_of(&problem).contains(expected), "{expected}: {problem}");
    }
    let large = of(json!([{"taskId": "a", "name": "n", "input": {"a": "x".repeat(1 << 20)}}]));
    assert_eq!(caller.post("/api/jobs", large).await.0, 413);

    caller.post("/api/jobs", json!({"jobId": "j", "tasks": [task("a", &[])]})).await;
    let too_many: Vec<Value> = (0..91).map(|n| task(&n.to_string(), &[])).collect();
    let cases = [
        (of(json!([])), "tasks: has 0 tasks"),
        (of(json!([task("a", &[])])), "the job already has a task `a`"),
        (of(json!([task("b", &["z"])])), "task `b`: depends on `z`, which is neither in the job nor added"),
        (of(json!([task("b", &["c"]), task("c", &["b"])])), "the tasks wait for each other: b → c → b"),
        (of(json!(too_many)), "tasks: has 91 tasks; at most 90 are added at once"),
        (json!({"tasks": [], "jobId": "j"}), "jobId: unknown field `jobId`"),
    ];
    for (body, expected) in cases {
        let (status, problem) = caller.post("/api/jobs/j/tasks", body).await;
        assert_eq!(status, 400, "{expected}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{expected}: {problem}");
    }
    for (path, status, expected) in [
        ("/api/jobs?state=done", 400, "expected one of `running`, `failing`, `failed`, `completed`"),
        ("/api/jobs?cursor=abc", 400, "cursor: is not one that a list gave"),
        ("/api/jobs/nothing", 404, "jobs: there is no `nothing`"),
    ] {
        let (found, problem) = caller.get(path).await;
        assert_eq!(found, status, "{path}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{path}: {problem}");
    }
    for path in ["/api/jobs/nothing/tasks", "/api/jobs/nothing/resume"] {
        let (status, problem) = caller.post(path, of(json!([task("a", &[])]))).await;
        assert_eq!((status, detail_of(&problem)), (404, "jobs: there is no `nothing`"));
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_with_the_same_job_never_meet() {
    let world = World::start().await;
    let acme = Caller::new(&world, "acme", KeyScope::Write).await;
    let other = Caller::new(&world, "other", KeyScope::Write).await;
    let reader = Caller::new(&world, "acme", KeyScope::Read).await;
    let job = |name: &str| json!({"jobId": "same", "tasks": [{"taskId": "a", "name": name}]});
    assert_eq!(reader.post("/api/jobs", job("ours")).await.0, 403);
    assert_eq!(acme.post("/api/jobs", job("ours")).await.0, 202);
    assert_eq!(other.get("/api/jobs/same").await.0, 404);
    for path in ["/api/jobs/same/tasks", "/api/jobs/same/resume"] {
        assert_eq!(reader.post(path, json!({"tasks": [task("b", &[])]})).await.0, 403);
        assert_eq!(other.post(path, json!({"tasks": [task("b", &[])]})).await.0, 404);
    }
    assert_eq!(other.post("/api/jobs", job("theirs")).await.1["collapsed"], false);
    for _ in 0..2 {
        let lease = take(&world).await;
        match lease.message.tenant_id.as_str() {
            "acme" => complete(&world, &lease, json!({})).await,
            _ => fail(&world, &lease).await,
        }
    }
    let ours = in_state(&reader, "/api/jobs/same", "completed").await;
    let theirs = in_state(&other, "/api/jobs/same", "failed").await;
    assert_eq!((&ours["tasks"][0]["name"], &theirs["tasks"][0]["name"]), (&json!("ours"), &json!("theirs")));
    assert_eq!(all(&acme, "/api/jobs?limit=9", "jobId").await, ["same"]);
    assert_eq!(other.post("/api/jobs/same/resume", json!({})).await.1, json!({"resumed": ["a"]}));
    assert_eq!(in_state(&acme, "/api/jobs/same", "completed").await["generation"], 1);
    world.local.stop().await;
}
