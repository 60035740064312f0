//! How the API answers wrong requests about runs: to start, append to, read or cancel one.

use reqwest::Method;
use serde_json::{Value, json};

use ledgerline_test_support::{
    World,
    api::{Caller, detail_of},
    external_runs::{append, appended, begun, id, log},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_follow_in_the_log_is_refused_with_the_state_of_the_run() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let (step, hook, wait) = (id("step", 1), id("hook", 1), id("wait", 1));
    let created = json!({"workflowName": "order", "input": null});
    appended(&caller, "r", "run_created", None, created.clone()).await;
    let refused = async |event_type: &str, id: Option<&str>, data: Value, state: &str, detail: &str| {
        let (status, problem) = append(&caller, "r", event_type, id, data).await;
        assert_eq!((status, &problem["state"]), (409, &json!(state)), "{event_type}: {problem}");
        assert!(detail_of(&problem).contains(detail), "{event_type}: {problem}");
    };
    refused("run_created", None, created, "pending", "run r is there already; it is pending").await;
    refused("run_completed", None, json!({"output": 1}), "pending", "it must be running").await;
    refused("step_created", Some(&step), json!({"stepName": "s"}), "pending", "run r is pending").await;
    appended(&caller, "r", "run_started", None, json!({})).await;
    refused("step_started", Some(&step), json!({"attempt": 1}), "absent", "there is no step").await;
    refused("hook_received", Some(&hook), json!({"payload": 1}), "absent", "there is no hook").await;
    refused("wait_completed", Some(&wait), json!({}), "absent", "there is no wait").await;
    appended(&caller, "r", "step_created", Some(&step), json!({"stepName": "s"})).await;
    refused("step_completed", Some(&step), json!({"result": 1}), "pending", "it must be running").await;
    let sleep = json!({"resumeAt": 1_999_999_999_999_u64});
    appended(&caller, "r", "wait_created", Some(&wait), sleep.clone()).await;
    refused("wait_created", Some(&wait), sleep, "waiting", "is there already").await;
    appended(&caller, "r", "run_failed", None, json!({"error": "no paper"})).await;
    refused("run_cancelled", None, json!({}), "failed", "run r is failed, which is final").await;
    refused("wait_completed", Some(&wait), json!({}), "failed", "").await;
    // What was open is closed by the end itself.
    let types = [
        "run_created",
        "run_started",
        "step_created",
        "wait_created",
        "step_failed",
        "wait_completed",
        "run_failed",
    ];
    assert_eq!(log(&caller, "r").await, types);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_run_is_refused_with_the_path_of_the_wrong_field() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    begun(&caller, "r").await;
    let (step, wait) = (id("step", 1), id("wait", 1));
    let leaves: serde_json::Map<String, Value> = (0..65).map(|n| (n.to_string(), json!(n))).collect();
    let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
    let event = |event_type: &str, id: &str, data: Value| json!({"eventType": event_type, "correlationId": id, "eventData": data});
    let cases = [
        ("/api/runs", json!({}), "missing field `workflow`"),
        ("/api/runs", json!({"workflow": ""}), "workflow: is empty"),
        ("/api/runs", json!({"workflow": "w", "runId": "a#b"}), "runId: `a#b` contains '#'"),
        ("/api/runs", json!({"workflow": "w", "colour": 1}), "colour: unknown field `colour`"),
        ("/api/runs", json!({"workflow": "w", "tenantId": "other"}), "(the tenant is that of the key)"),
        ("/api/runs", json!({"workflow": "w", "input": deep}), "input: "),
        (
            "/api/runs/r/events",
            json!({"eventType": "run_ended"}),
            "eventType: `run_ended` is not one of run_created, ",
        ),
        ("/api/runs/r/events", json!({"eventType": "step_created"}), "correlationId: is missing"),
        (
            "/api/runs/r/events",
            json!({"eventType": "run_started", "eventData": []}),
            "eventData: invalid type",
        ),
        (
            "/api/runs/r/events",
            event("step_created", "s-1", json!({"stepName": "s"})),
            "correlationId: `s-1` is not",
        ),
        (
            "/api/runs/r/events",
            event("step_created", &wait, json!({"stepName": "s"})),
            "is not `step_` and a ULID",
        ),
        ("/api/runs/r/events", event("step_created", &step, json!({})), "eventData.stepName: is missing"),
        (
            "/api/runs/r/events",
            event("step_started", &step, json!({"attempt": 0})),
            "eventData.attempt: is 0",
        ),
        ("/api/runs/r/events", event("run_started", "other", json!({})), "correlationId: is not the run"),
        (
            "/api/runs/r/events",
            event("wait_created", &wait, json!({})),
            "eventData: has none of resumeAt, eventName",
        ),
        (
            "/api/runs/r/events",
            event("wait_created", &wait, json!({"resumeAt": -5})),
            "eventData.resumeAt: -5 is negative",
        ),
        (
            "/api/runs/r/events",
            event("wait_created", &wait, json!({"eventName": "paid", "matchCriteria": {}, "timeoutAt": -1})),
            "eventData.timeoutAt: -1 is negative",
        ),
        (
            "/api/runs/r/events",
            event("step_retrying", &step, json!({"error": "e", "retryAfter": -1})),
            "eventData.retryAfter: -1 is negative",
        ),
        (
            "/api/runs/r/events",
            event("wait_created", &wait, json!({"eventName": "paid", "matchCriteria": [1]})),
            "eventData.matchCriteria: is an array; an object is expected",
        ),
        (
            "/api/runs/r/events",
            event("wait_created", &wait, json!({"eventName": "paid", "matchCriteria": leaves})),
            "eventData.matchCriteria: has 65 leaves; at most 64 are allowed",
        ),
        ("/api/runs/r/cancel", json!({"reason": 7}), "reason: invalid type: integer `7`, expected a string"),
        ("/api/runs/r/cancel", json!({"why": "so"}), "why: unknown field `why`"),
    ];
    for (path, body, expected) in cases {
        let (status, problem) = caller.post(path, body.clone()).await;
        assert_eq!(status, 400, "{path} {body}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{path} {body}: {problem}");
    }
    for path in ["/api/runs", "/api/runs/r/events"] {
        assert_eq!(caller.send(Method::POST, path, "{").await.0, 400);
        assert_eq!(caller.send(Method::POST, path, "").await.0, 400);
        let large = json!({"workflow": "w", "eventType": "x".repeat(1 << 20)});
        assert_eq!(caller.post(path, large).await.0, 413);
    }
    for (path, status, expected) in [
        (
            "/api/runs?state=done",
            400,
            "expected one of `pending`, `running`, `completed`, `failed`, `cancelled`",
        ),
        ("/api/runs?limit=0", 400, "limit: 0 is not between 1 and 500"),
        ("/api/runs?cursor=abc", 400, "cursor: is not one that a list gave"),
        ("/api/runs?colour=red", 400, "unknown field `colour`"),
        ("/api/runs/nothing", 404, "there is no `nothing`"),
        ("/api/runs/nothing/events", 404, "there is no `nothing`"),
        ("/api/runs/r/events?cursor=-1", 400, "cursor: is not one that a list gave"),
        ("/api/runs/r/events?cursor=3", 400, "cursor: is not one that a list gave"),
        ("/api/runs/r/events?cursor=%2B3.0", 400, "cursor: is not one that a list gave"),
        ("/api/runs/r/events?cursor=99999999999999999999999.0", 400, "cursor: is not one that a list gave"),
        ("/api/runs/r/events?limit=501", 400, "limit: 501 is not between 1 and 500"),
    ] {
        let (found, problem) = caller.get(path).await;
        assert_eq!(found, status, "{path}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{path}: {problem}");
    }
    let started = json!({"eventType": "run_started"});
    assert_eq!(caller.post("/api/runs/nothing/events", started).await.0, 404);
    assert_eq!(caller.send(Method::POST, "/api/runs/nothing/cancel", "").await.0, 404);
    assert_eq!(caller.send(Method::DELETE, "/api/runs/r", "").await.0, 405);
    assert_eq!(log(&caller, "r").await, ["run_created", "run_started"], "none of it left anything");
    world.local.stop().await;
}
