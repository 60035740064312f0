use ledgerline_store::KeyScope;
use serde_json::{Value, json};

use ledgerline_test_support::{World, at, detail, event, name};

fn body(field: &str, value: Value) -> String {
    let mut body = json!({"eventType": "price.changed", "entityType": "ITEM", "entityId": "1"});
    body[field] = value;
    body.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_body_gets_an_error_that_names_the_field() {
    let world = World::start().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
    let cases: Vec<(String, u16, &str)> = vec![
        (String::new(), 400, "the body is empty"),
        ("{".into(), 400, "EOF while parsing"),
        ("[]".into(), 400, "the body is not a JSON object"),
        ("{} x".into(), 400, "missing field `eventType`"),
        (json!({"eventType": "x", "entityType": "T"}).to_string(), 400, "missing field `entityId`"),
        (body("colour", json!("red")), 400, "unknown field `colour`"),
        (body("tenantId", json!("other")), 400, "(the tenant is that of the key)"),
        (body("entityId", json!("a#b")), 400, "entityId: `a#b` contains '#'"),
        (body("entityId", json!(5)), 400, "entityId: invalid type: integer"),
        (body("entityType", json!("")), 400, "entityType: is empty"),
        (body("eventType", json!("a\nb")), 400, "eventType: contains the invisible character"),
        (body("app", json!("x".repeat(200))), 400, "app: has 200 bytes"),
        (body("properties", json!([1])), 400, "properties: invalid type: sequence"),
        (body("properties", json!({"_s3Overflow": {}})), 400, "properties: _s3Overflow is reserved"),
        (body("properties", json!({"deep": deep})), 400, "properties: nested deeper than"),
        (body("sequenceNo", json!(-1)), 400, "sequenceNo: invalid value"),
        (body("idempotencyKey", json!("")), 400, "idempotencyKey: is empty"),
        (body("occurredAt", json!(now + 3_600_000)), 400, "occurredAt: is 3"),
        (body("occurredAt", json!(1_767_453_739)), 400, "occurredAt: 1767453739 has 10 digits"),
        (body("occurredAt", json!("soon")), 400, "occurredAt: `soon` is neither"),
        (body("occurredAt", json!({})), 400, "occurredAt: `{}` is neither"),
        (body("properties", json!({"": 1})), 400, "properties: has a field without a name"),
        (body("properties", json!({"n": 1.7e308})), 400, "properties: has the number 1.7e+308"),
        (body("properties", json!({"big": "x".repeat(2_000_000)})), 413, "the body is over 1048576 bytes"),
    ];
    for (sent, status, expected) in cases {
        let (answered, problem) = world.post("/api/events/record", sent.clone()).await;
        let shown = &sent[..sent.len().min(100)];
        assert_eq!(answered, status, "{shown}: {problem}");
        assert_eq!(problem["status"], status);
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{shown}: {problem}");
    }
    world.quiet().await;
    assert!(world.rows().await.is_empty(), "nothing of all this was recorded");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_query_gets_an_error_that_names_the_parameter() {
    let world = World::start().await;
    for (query, expected) in [
        ("limit=0", "limit: 0 is not between 1 and 500"),
        ("limit=x", "limit: invalid digit"),
        ("since=soon", "since: `soon` is neither"),
        ("since=1767453739640&until=1767453739639", "since: is after until"),
        ("entityId=1", "entityId: needs entityType"),
        ("tenantId=other", "unknown field `tenantId`"),
        ("cursor=nonsense", "cursor: is not one that a list gave"),
        // A cursor of the whole time line, outside of the time that is asked for.
        (
            "until=1767453739640&cursor=WzAsMTc2NzQ1Mzc0MDAwMCwiZSIsIlQiLCIxIiwiYSIsIngiXQ",
            "cursor: belongs to a list with other filters",
        ),
        ("type=a%23b", "type: `a#b` contains '#'"),
    ] {
        let (status, problem) = world.get(&format!("/api/events/recent?{query}")).await;
        assert_eq!(status, 400, "{query}");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{query}: {problem}");
    }
    assert_eq!(world.get("/api/nothing").await.0, 404);
    assert_eq!(world.post("/api/events/recent", "").await.0, 405);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_allows_what_its_scope_covers_and_nothing_else() {
    let world = World::start().await;
    let (api_keys, now) = (world.api_keys(), at(1_767_453_739_640));
    let (_, read) = api_keys.create(&name("local"), KeyScope::Read, None, now).await.unwrap();
    let (_, write) = api_keys.create(&name("local"), KeyScope::Write, None, now).await.unwrap();
    let (gone, revoked) = api_keys.create(&name("local"), KeyScope::Admin, None, now).await.unwrap();
    assert_eq!(api_keys.revoke(&gone.key_id, now).await.unwrap(), ledgerline_store::Revocation::Revoked);

    let url = |path: &str| format!("{}{path}", world.local.state.api_url);
    let get = |key: Option<String>| {
        let request = world.http.get(url("/api/events/recent"));
        world.answer(match key {
            Some(key) => request.header("authorization", key),
            None => request,
        })
    };
    let bearer = |key: &str| Some(format!("Bearer {key}"));
    let mut wrong = read.clone();
    wrong.replace_range(wrong.len() - 2.., "xy");
    for (key, status, expected) in [
        (None, 401, "`Bearer <key>` is expected"),
        (Some("Basic abc".to_owned()), 401, "`Bearer <key>` is expected"),
        (bearer("nonsense"), 401, "the key is not valid"),
        (bearer("ll_äääääääää_x"), 401, "expected"),
        (bearer(&wrong), 401, "the key is not valid"),
        (bearer(&revoked), 401, "has been revoked"),
    ] {
        let (answered, problem) = get(key.clone()).await;
        assert_eq!(answered, status, "{key:?}");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{key:?}: {problem}");
    }
    assert_eq!(get(bearer(&read)).await.0, 200);

    for weak in [&read, &write] {
        let request =
            world.http.post(url("/api/events/record")).bearer_auth(weak).body(body("app", json!("a")));
        let (status, problem) = world.answer(request).await;
        assert_eq!(status, 403);
        assert!(problem["detail"].as_str().unwrap().contains("`admin` is needed"), "{problem}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_never_see_each_other() {
    let world = World::start().await;
    let mine = event("local", "e-mine", at(1_767_453_739_640));
    let other = event("other", "e-other", at(1_767_453_739_641));
    world.put_events(&[detail(&mine), detail(&other)]).await;
    world.rows_at_least(2).await;
    for query in [
        "",
        "entityType=ITEM&entityId=10472",
        "app=shop",
        "type=price.changed",
        "type=price.*",
        "app=shop&entityType=ITEM&entityId=10472",
    ] {
        let (status, answer) = world.get(&format!("/api/events/recent?{query}")).await;
        let ids: Vec<_> = answer["items"].as_array().unwrap().iter().map(|event| &event["eventId"]).collect();
        assert_eq!((status, ids), (200, vec![&json!("e-mine")]), "{query}");
    }
    // A tenant that names another's entity in its own event writes its own row only.
    let (status, _) = world.post("/api/events/record", body("entityId", json!("10472"))).await;
    assert_eq!(status, 202);
    world.rows_at_least(3).await;
    let rows = world.rows().await;
    assert_eq!(rows.iter().filter(|row| row["tenantId"].as_s().unwrap() == "other").count(), 1);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_operation_answers_as_aws_does() {
    let world = World::start().await;
    let refused = world.clients().dynamo.list_global_tables().send().await.unwrap_err();
    let code = aws_sdk_dynamodb::error::ProvideErrorMetadata::code(refused.as_service_error().unwrap())
        .unwrap()
        .to_owned();
    assert_eq!(code, "UnknownOperationException");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_no_record_can_have_is_the_callers_mistake() {
    let world = World::start().await;
    let url = &world.local.state.api_url;
    for bytes in [600, 1_030, 2_040, 6_000] {
        let id = "x".repeat(bytes);
        for (method, path) in [
            ("GET", format!("/api/tasks/{id}")),
            ("GET", format!("/api/tasks/{id}/history")),
            ("GET", format!("/api/jobs/{id}")),
            ("POST", format!("/api/jobs/{id}/resume")),
            ("GET", format!("/api/runs/{id}")),
            ("GET", format!("/api/runs/{id}/events")),
            ("POST", format!("/api/runs/{id}/cancel")),
            ("GET", format!("/api/subscriptions/{id}")),
            ("DELETE", format!("/api/workflows/{id}")),
            ("GET", format!("/api/parked/{id}")),
            ("POST", format!("/api/hooks/{id}")),
        ] {
            let request = world.http.request(method.parse().unwrap(), format!("{url}{path}"));
            let (status, problem) = world.answer(request.bearer_auth(&world.local.state.api_key)).await;
            assert_eq!(status, 404, "{method} {path:.30} of {bytes} bytes: {problem}");
        }
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_queues_do_not_carry_is_refused_before_anything_is_made() {
    let world = World::start().await;
    for character in ["\u{fffe}", "\u{ffff}"] {
        let id = format!("r{character}");
        for (path, body) in [
            ("/api/runs", json!({"workflow": "w", "runId": id})),
            ("/api/tasks", json!({"name": "t", "requestId": id})),
            ("/api/jobs", json!({"jobId": id, "tasks": [{"taskId": "a", "name": "t"}]})),
            ("/api/jobs", json!({"tasks": [{"taskId": id, "name": "t"}]})),
            ("/api/events/record", json!({"eventType": "x", "entityType": "T", "entityId": id})),
        ] {
            let (status, problem) = world.post(path, body.to_string()).await;
            assert_eq!(status, 400, "{path} {body}: {problem}");
        }
    }
    // What is no name may have them: it is escaped on its way.
    let task = json!({"name": "t", "requestId": "carried", "input": {"text": "\u{fffe}\u{ffff}"}});
    assert_eq!(world.post("/api/tasks", task.to_string()).await.0, 202);
    let queues = world.local.embedded.queues();
    let how = ledgerline_embedded::Receive { max: 1, wait: None, visibility_seconds: None };
    let message = ledgerline_test_support::until("the task is sent", || async {
        queues.receive_now(&world.local.names.task_queue, &how).unwrap().pop()
    })
    .await;
    let body: Value = serde_json::from_str(&message.body).unwrap();
    assert!(body.to_string().contains('\u{fffe}'), "{body}");
    assert!(world.local.stage.run_sweep.sweep_runs().await.is_ok());
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_megabytes_are_refused_with_an_answer_on_every_route() {
    let world = World::start().await;
    let url = &world.local.state.api_url;
    let body = vec![b'x'; 20_000_000];
    for (path, key, expected) in [
        ("/api/events/record", true, 413),
        ("/api/tasks", true, 413),
        ("/api/hooks/nobody", false, 413),
        ("/api/tasks", false, 401),
        ("/api/nothing", true, 404),
    ] {
        let mut request = world.http.post(format!("{url}{path}")).body(body.clone());
        if key {
            request = request.bearer_auth(&world.local.state.api_key);
        }
        let (status, problem) = world.answer(request).await;
        assert_eq!(status, expected, "{path}: {problem}");
    }
    assert_eq!(world.get("/api/health").await.1["status"], "ok");
    world.local.stop().await;
}
