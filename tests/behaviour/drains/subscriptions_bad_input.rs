//! What the API says to subscriptions, workflow types and rewinds that cannot be.

use reqwest::Method;
use serde_json::{Value, json};

use ledgerline_test_support::{
    World,
    api::{Caller, HOUR, detail_of, now},
};

#[tokio::test(flavor = "multi_thread")]
async fn bad_subscriptions_workflow_types_and_rewinds_are_refused_with_the_wrong_field() {
    let world = World::start().await;
    let admin = Caller::admin(&world);
    let subscription = |field: &str, value: Value| {
        let mut body = json!({"eventTypeGlob": "a", "workflowType": "w"});
        body[field] = value;
        body
    };
    let workflow = |field: &str, value: Value| {
        let mut body = json!({"workflowType": "w", "kind": "task"});
        body[field] = value;
        body
    };
    let kept = admin.created("/api/subscriptions", subscription("enabled", json!(false))).await;
    let kept = format!("/api/subscriptions/{}", kept["subscriptionId"].as_str().unwrap());
    let (subscriptions, workflows, trial) =
        ("/api/subscriptions", "/api/workflows", "/api/subscriptions/test");
    let cyclic = json!({"workflowType": "w", "kind": "job", "tasks": [
        {"taskId": "a", "name": "n", "dependsOn": ["b"]}, {"taskId": "b", "name": "n", "dependsOn": ["a"]},
    ]});
    let misspelt =
        json!({"workflowType": "w", "kind": "job", "tasks": [{"taskId": "a", "name": "n", "dependson": []}]});
    let deep = (0..40).fold(json!({}), |inner, _| json!({"a": inner}));
    let both = json!({"eventId": "x", "type": "y"});
    let cases: Vec<(&str, Value, &str)> = vec![
        (subscriptions, subscription("eventTypeGlob", json!("")), "eventTypeGlob: is empty"),
        (
            subscriptions,
            subscription("eventTypeGlob", json!("a#*")),
            "has a '#', which no event type has, at position 2",
        ),
        (subscriptions, subscription("filterExpr", json!("event. > 3")), "filterExpr: at line 1, column 8"),
        (
            subscriptions,
            subscription("inputMapper", json!({"v": "$.a["})),
            "inputMapper: v: \"$.a[\" is no JSONPath: it ends where a `]` is missing at position 5",
        ),
        (subscriptions, subscription("inputMapper", json!({"v": "a"})), "did you mean `$.a` or `literal:a`?"),
        (
            subscriptions,
            subscription("drainerId", json!("nobody")),
            "drainerId: there is no drainer `nobody`; this stage has `jobs`, `workflow_runner`",
        ),
        (subscriptions, subscription("drainerId", json!("jobs")), "drainerId: `jobs` is built in"),
        (subscriptions, subscription("onFailure", json!("panic")), "onFailure: unknown variant `panic`"),
        (subscriptions, subscription("startAt", json!("soon")), "startAt: `soon` is neither"),
        (
            subscriptions,
            subscription("startAt", json!("2099-01-01T00:00:00Z")),
            "startAt: lies in the future",
        ),
        (subscriptions, subscription("workflowType", json!("a#b")), "workflowType: `a#b` contains '#'"),
        (subscriptions, subscription("tenantId", json!("other")), "(the tenant is that of the key)"),
        (
            subscriptions,
            subscription("inputMapper", json!({"v": format!("literal:{}", "x".repeat(600_000))})),
            "inputMapper: is too long",
        ),
        (
            subscriptions,
            subscription("inputMapper", json!({"": "$.payload.a"})),
            "inputMapper: has a field without a name",
        ),
        (subscriptions, subscription("startAt", json!({})), "startAt: 13 digits or a time"),
        (subscriptions, subscription("colour", json!("red")), "unknown field `colour`"),
        (trial, both, "event: only one of `eventId`, `event` and `type`"),
        (trial, json!({"event": {"eventType": "a", "entityType": "T"}}), "event: missing field `entityId`"),
        (
            trial,
            json!({"subscription": {"eventTypeGlob": "", "workflowType": "w"}, "event": {"eventType": "a", "entityType": "T", "entityId": "1"}}),
            "eventTypeGlob: is empty",
        ),
        (
            trial,
            json!({"event": {"eventType": "a", "entityType": "T", "entityId": "1", "tenantId": "other"}}),
            "event.tenantId: is not `local`",
        ),
        (
            workflows,
            workflow("kind", json!("cron")),
            "kind: `cron` is not a kind; there are `task`, `job`, `run`, `send`",
        ),
        (
            workflows,
            workflow("tasks", json!([])),
            "tasks: the kind `task` does not have it; it has `name`, `timeoutMs`, `maxAttempts`",
        ),
        (workflows, workflow("timeoutMs", json!(0)), "timeoutMs: is 0"),
        (workflows, workflow("maxAttempts", json!(-1)), "maxAttempts: invalid value: integer `-1`"),
        (
            workflows,
            workflow("idempotencyKey", json!("$.a[*]")),
            "idempotencyKey: \"$.a[*]\" may find several values",
        ),
        (workflows, workflow("colour", json!("red")), "unknown field `colour`"),
        (
            workflows,
            json!({"workflowType": "w", "kind": "job", "tasks": [{"taskId": "a", "name": "n", "input": {"x": "x".repeat(600_000)}}]}),
            "tasks: is too long",
        ),
        (
            workflows,
            json!({"workflowType": "w", "kind": "job", "tasks": [{"taskId": "a", "name": "n", "input": {"n": 1.7e308}}]}),
            "tasks: has the number 1.7e+308",
        ),
        (
            workflows,
            json!({"workflowType": "w", "kind": "job", "tasks": [{"taskId": "a", "name": "n", "input": deep}]}),
            "tasks: nested deeper than",
        ),
        (workflows, cyclic, "tasks: the tasks wait for each other: a → b → a"),
        (workflows, misspelt, "tasks[0].dependson: unknown field `dependson`"),
        ("/api/events/drain", json!({"drainerId": "nobody"}), "drainerId: there is no drainer `nobody`"),
        ("/api/events/drain", json!({"drainer": "x"}), "unknown field `drainer`"),
        (
            "/api/drainers/workflow_runner/rewind",
            json!({"to": "2099-01-01T00:00:00Z"}),
            "to: 2099-01-01T00:00:00.000Z lies in the future",
        ),
        ("/api/drainers/workflow_runner/rewind", json!({"to": now() + HOUR}), "lies in the future"),
        ("/api/drainers/workflow_runner/rewind", json!({"to": 17}), "to: 17 has 2 digits"),
        (
            "/api/drainers/workflow_runner/rewind",
            json!({"to": {}}),
            "to: a time (13 digits or RFC 3339) or an event id is expected",
        ),
        ("/api/drainers/workflow_runner/rewind", json!({"to": "evnt_x"}), "to: `evnt_x` is neither a time"),
        ("/api/drainers/workflow_runner/rewind", json!({}), "missing field `to`"),
    ];
    for (path, body, expected) in cases {
        let (status, problem) = admin.post(path, body.clone()).await;
        let shown: String = body.to_string().chars().take(200).collect();
        assert_eq!(status, 400, "{path} {shown}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{path} {shown}: {problem}");
    }
    for (change, expected) in [
        (json!({"eventTypeGlob": "a b "}), "eventTypeGlob: \"a b \" ends with a space"),
        (json!({"filterExpr": "event.x +"}), "filterExpr: at line 1"),
        (json!({"subscriptionId": "sub_x"}), "unknown field `subscriptionId`"),
        (json!({"drainerId": "x"}), "unknown field `drainerId`"),
    ] {
        let (status, problem) = admin.send(Method::PATCH, &kept, change.to_string()).await;
        assert_eq!(status, 400, "{change}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{change}: {problem}");
    }
    for (path, expected) in [
        ("/api/parked?cursor=x", "cursor: is not one that a list gave"),
        ("/api/parked?limit=0", "limit: 0 is not between 1 and 500"),
        ("/api/subscriptions/%FF", "the path: "),
    ] {
        let (status, problem) = admin.get(path).await;
        assert_eq!(status, 400, "{path}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{path}: {problem}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_subscription_type_drainer_or_start_is_answered_with_404() {
    let world = World::start().await;
    let admin = Caller::admin(&world);
    let long = "x".repeat(2_000);
    for (method, path, expected) in [
        (Method::GET, "/api/subscriptions/nothing".to_owned(), "subscription: there is no `nothing`"),
        (Method::GET, format!("/api/subscriptions/{long}"), "subscription: there is no"),
        (Method::DELETE, "/api/workflows/a%23b".into(), "workflow type: there is no `a#b`"),
        (Method::DELETE, format!("/api/workflows/{long}"), "workflow type: there is no"),
        (Method::POST, format!("/api/workflows/{long}/start"), "workflow type: there is no"),
        (Method::GET, "/api/parked/nothing".into(), "parked: there is no `nothing`"),
        (Method::POST, "/api/parked/nothing/retry".into(), "parked: there is no `nothing`"),
        (Method::DELETE, format!("/api/parked/{long}"), "parked: there is no"),
    ] {
        let (status, problem) = admin.send(method, &path, "").await;
        assert_eq!(status, 404, "{path}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{path}: {problem}");
    }
    let (status, problem) =
        admin.post("/api/drainers/workflow_runner/rewind", json!({"to": now() - HOUR})).await;
    assert_eq!(status, 404, "nothing subscribes yet: {problem}");
    let (status, problem) = admin.post("/api/subscriptions/test", json!({"eventId": "nothing"})).await;
    assert_eq!((status, detail_of(&problem)), (404, "event: there is no `nothing`"));
    assert_eq!(admin.get("/api/subscriptions/test").await.0, 405);
    world.local.stop().await;
}
