//! Data for runs from outside over HTTP: hooks, and events that are sent.

use futures::future::join_all;
use ledgerline_store::KeyScope;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use ledgerline_test_support::{
    World,
    api::{Caller, all, detail_of},
    external_runs::{append, appended, begun, id, in_ledger},
    until,
};

/// A caller without a key.
fn stranger(world: &World, token: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
    world.http.post(format!("{}/api/hooks/{token}", world.local.state.api_url)).body(body)
}

/// The payloads that a run has received.
async fn payloads(caller: &Caller<'_>, run: &str) -> Vec<Value> {
    let (_, page) = caller.get(&format!("/api/runs/{run}/events?limit=500")).await;
    let events = page["items"].as_array().unwrap().iter();
    events
        .filter(|event| event["eventType"] == "hook_received")
        .map(|event| event["eventData"]["payload"].clone())
        .collect()
}

/// A hook of a run, and its token.
async fn hook(caller: &Caller<'_>, run: &str, number: u32, data: Value) -> String {
    let answer = appended(caller, run, "hook_created", Some(&id("hook", number)), data).await;
    answer["hook"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_made_here_is_all_that_a_sender_needs() {
    let world = World::start().await;
    let caller = Caller::new(&world, "acme", KeyScope::Write).await;
    begun(&caller, "r").await;
    let token = hook(&caller, "r", 1, json!({"metadata": {"who": "desk"}})).await;
    assert!(token.starts_with("htok_") && token.len() == 37, "128 bits: {token}");
    let (status, answer) = world.answer(stranger(&world, &token, r#"{"approved":true}"#)).await;
    assert_eq!((status, &answer["runId"]), (202, &json!("r")));
    assert!(answer["eventId"].as_str().unwrap().starts_with("evnt_"));
    // The sender may have an `Authorization` for something else.
    let others = [
        stranger(&world, &token, "7").basic_auth("me", Some("x")),
        stranger(&world, &token, "").bearer_auth("x"),
    ];
    for request in others {
        assert_eq!(world.answer(request).await.0, 202);
    }
    assert_eq!(payloads(&caller, "r").await, [json!({"approved": true}), json!(7), Value::Null]);
    let (_, shown) = caller.get("/api/runs/r").await;
    assert_eq!(
        (&shown["hooks"][0]["received"], &shown["hooks"][0]["metadata"]),
        (&json!(3), &json!({"who": "desk"}))
    );

    for (body, expected, status) in [
        ("{".to_owned(), "the body: ", 400),
        ("1 2".to_owned(), "the body: trailing characters", 400),
        (format!("{}1{}", "[".repeat(40), "]".repeat(40)), "payload: ", 400),
        (format!("\"{}\"", "x".repeat(1 << 20)), "the body is over ", 413),
    ] {
        let (found, problem) = world.answer(stranger(&world, &token, body)).await;
        assert_eq!(found, status, "{problem}");
        assert!(detail_of(&problem).contains(expected), "{problem}");
    }
    let large = json!("x".repeat(900_000));
    assert_eq!(world.answer(stranger(&world, &token, large.to_string())).await.0, 202);
    assert_eq!(payloads(&caller, "r").await[3], large);
    assert_eq!(caller.get(&format!("/api/hooks/{token}")).await.0, 405);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_chosen_needs_a_key_of_its_tenant() {
    let world = World::start().await;
    let acme = Caller::new(&world, "acme", KeyScope::Write).await;
    let other = Caller::new(&world, "other", KeyScope::Write).await;
    let reader = Caller::new(&world, "acme", KeyScope::Read).await;
    begun(&acme, "r").await;
    hook(&acme, "r", 1, json!({"token": "approve 17/ä"})).await;
    let path = "/api/hooks/approve%2017%2F%C3%A4";
    assert_eq!(acme.post(path, json!({"ok": 1})).await.0, 202);
    assert_eq!(reader.post(path, json!({})).await.0, 403);
    assert_eq!(other.post(path, json!({})).await.0, 404);
    let (status, problem) =
        world.answer(stranger(&world, "approve%2017%2F%C3%A4", "{}").bearer_auth("x")).await;
    assert_eq!(status, 401, "{problem}");
    // Without a key no caller learns whether there is one.
    let chosen = world.answer(stranger(&world, "approve%2017%2F%C3%A4", "{}")).await;
    let guessed = world.answer(stranger(&world, "approve%2018", "{}")).await;
    assert_eq!((chosen.0, &chosen.1), (404, &guessed.1));

    // The same token of another tenant is another hook.
    begun(&other, "r").await;
    hook(&other, "r", 1, json!({"token": "approve 17/ä"})).await;
    assert_eq!(other.post(path, json!({"ok": 2})).await.0, 202);
    assert_eq!(payloads(&acme, "r").await, [json!({"ok": 1})]);
    assert_eq!(payloads(&other, "r").await, [json!({"ok": 2})]);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_taken_until_its_hook_is_disposed_of() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    begun(&caller, "first").await;
    begun(&caller, "second").await;
    hook(&caller, "first", 1, json!({"token": "approve"})).await;
    let answer =
        appended(&caller, "second", "hook_created", Some(&id("hook", 1)), json!({"token": "approve"})).await;
    assert_eq!(
        (&answer["event"]["eventType"], &answer["hook"]["state"]),
        (&json!("hook_conflict"), &json!("conflicted"))
    );
    assert_eq!(caller.post("/api/hooks/approve", json!(1)).await.1["runId"], "first");
    appended(&caller, "first", "hook_disposed", Some(&id("hook", 1)), json!({})).await;
    let (status, problem) = caller.post("/api/hooks/approve", json!(2)).await;
    assert_eq!(status, 410);
    assert!(detail_of(&problem).contains("disposed of"), "{problem}");
    hook(&caller, "second", 2, json!({"token": "approve"})).await;
    assert_eq!(caller.post("/api/hooks/approve", json!(3)).await.1["runId"], "second");

    let made = hook(&caller, "second", 3, json!({})).await;
    assert_eq!(caller.send(Method::POST, "/api/runs/second/cancel", "").await.0, 200);
    for token in [made.as_str(), "approve"] {
        assert_eq!(caller.post(&format!("/api/hooks/{token}"), json!(4)).await.0, 410, "the run has ended");
    }
    assert_eq!(payloads(&caller, "second").await, [json!(3)]);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_no_hook_can_have_is_unknown_like_any_other() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let tokens = [
        "htok_00000000000000000000000000000000",
        "htok_0",
        "nothing",
        "a%23b",
        "a%0Ab",
        "%FF",
        &"x".repeat(129),
        &"x".repeat(5_000),
    ];
    for token in tokens {
        for (status, problem) in [
            caller.post(&format!("/api/hooks/{token}"), json!({})).await,
            world.answer(stranger(&world, token, "{}")).await,
        ] {
            assert_eq!((status, detail_of(&problem)), (404, "hooks: no hook has this token"), "{token}");
        }
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_that_come_at_once_all_arrive() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    begun(&caller, "r").await;
    let token = hook(&caller, "r", 1, json!({})).await;
    let sent = (0..20).map(|n| world.answer(stranger(&world, &token, n.to_string())));
    assert!(join_all(sent).await.iter().all(|(status, _)| *status == 202));
    let mut numbers: Vec<u64> =
        payloads(&caller, "r").await.iter().map(|payload| payload.as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_reaches_the_waits_that_are_open_and_those_that_open_later() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let other = Caller::new(&world, "other", KeyScope::Write).await;
    begun(&caller, "r").await;
    let wait = async |number: u32, criteria: Value| {
        let data = json!({"eventName": "payment.received", "matchCriteria": criteria});
        appended(&caller, "r", "wait_created", Some(&id("wait", number)), data).await["wait"].clone()
    };
    let send = async |caller: &Caller<'_>, event: Value| {
        let (status, answer) = caller.post("/api/events/send", event).await;
        assert_eq!(status, 202, "{answer}");
        answer["eventId"].clone()
    };
    let shown = async |number: usize| caller.get("/api/runs/r").await.1["waits"][number].clone();

    assert_eq!(wait(0, json!({"orderId": "o-1"})).await["state"], "waiting");
    let event = |order: &str| json!({"event": "payment.received", "match": {"orderId": order, "by": "card"}, "data": {"n": 1}});
    send(&caller, event("o-2")).await;
    send(&other, event("o-1")).await;
    assert_eq!(shown(0).await["state"], "waiting", "neither another's match nor another tenant's event");
    let sent = send(&caller, event("o-1")).await;
    let woken = shown(0).await;
    assert_eq!(
        (&woken["state"], &woken["outcome"], &woken["eventId"]),
        (&json!("completed"), &json!("event"), &sent)
    );
    // A run that waits later finds the earlier event; the run that has had it does not.
    assert_eq!(wait(1, json!({"orderId": "o-1"})).await["state"], "waiting");
    let late = wait(2, json!({"orderId": "o-2"})).await;
    assert_eq!((&late["state"], &late["outcome"]), (&json!("completed"), &json!("event")), "{late}");

    let (_, page) = caller.get("/api/events/sent?event=payment.received").await;
    let items = page["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{page}");
    let newest = &items[0];
    assert_eq!((&newest["eventId"], &newest["eventName"]), (&sent, &json!("payment.received")));
    assert_eq!(
        (&newest["data"], &newest["matchCriteria"]),
        (&json!({"n": 1}), &json!({"orderId": "o-1", "by": "card"}))
    );
    assert_eq!((&newest["sourceType"], &newest["consumedCount"]), (&json!("external"), &json!(1)));
    assert!(newest["timestamp"].is_u64() && newest.get("sourceInstanceId").is_none());
    let told = until("they are in the ledger too", || async {
        let (_, page) = caller.get("/api/events/recent?type=payment.received&entityType=EVENT").await;
        Some(page["items"].as_array().unwrap().clone()).filter(|told| told.len() == 2)
    })
    .await;
    assert_eq!((&told[0]["eventId"], &told[0]["properties"]["data"]), (&sent, &json!({"n": 1})));
    assert_eq!(all(&caller, "/api/events/sent?event=payment.received&limit=1", "eventId").await.len(), 2);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_event_is_refused_with_the_path_of_the_wrong_field() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    let leaves: serde_json::Map<String, Value> = (0..65).map(|n| (n.to_string(), json!(n))).collect();
    let deep = |levels: usize| (1..levels).fold(json!([1]), |inner, _| json!([inner]));
    let cases = [
        (json!({}), "missing field `event`"),
        (json!({"event": ""}), "event: is empty"),
        (json!({"event": "a#b"}), "event: `a#b` contains '#'"),
        (json!({"event": "run_completed"}), "event: `run_completed` cannot be sent"),
        (json!({"event": "e", "match": [1]}), "match: is an array; an object is expected"),
        (json!({"event": "e", "match": "a"}), "match: is a text; an object is expected"),
        (json!({"event": "e", "match": leaves}), "match: has 65 leaves; at most 64 are allowed"),
        (json!({"event": "e", "match": {"a": "x".repeat(9_000)}}), "match: has 9008 bytes; at most 8000"),
        (json!({"event": "e", "data": deep(31)}), "nested deeper than 30 levels"),
        (json!({"event": "e", "data": deep(30)}), "nested deeper than 30 levels"),
        (json!({"event": "e", "data": {"": 1}}), "has a field without a name"),
        (json!({"event": "e", "colour": 1}), "colour: unknown field `colour`"),
        (json!({"event": "e", "tenantId": "other"}), "(the tenant is that of the key)"),
    ];
    for (body, expected) in cases {
        let (status, problem) = caller.post("/api/events/send", body.clone()).await;
        assert_eq!(status, 400, "{body}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{body}: {problem}");
    }
    let large = json!({"event": "e", "data": "x".repeat(1 << 20)});
    assert_eq!(caller.post("/api/events/send", large).await.0, 413);
    for (query, expected) in [
        ("", "missing field `event`"),
        ("?event=", "event: is empty"),
        ("?event=e&cursor=abc", "cursor: is not one that a list gave"),
        ("?event=e&cursor=1767453739640-", "cursor: is not one that a list gave"),
        ("?event=e&limit=0", "limit: 0 is not between 1 and 500"),
        ("?event=e&colour=1", "unknown field `colour`"),
    ] {
        let (status, problem) = caller.get(&format!("/api/events/sent{query}")).await;
        assert_eq!(status, 400, "{query}: {problem}");
        assert!(detail_of(&problem).contains(expected), "{query}: {problem}");
    }
    assert_eq!(caller.get("/api/events/sent?event=e").await.1, json!({"items": [], "cursor": null}));
    let reader = Caller::new(&world, "acme", KeyScope::Read).await;
    assert_eq!(reader.post("/api/events/send", json!({"event": "e"})).await.0, 403);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deepest_and_the_largest_event_that_is_taken_wakes_a_run() {
    let world = World::start().await;
    let caller = Caller::admin(&world);
    begun(&caller, "r").await;
    let deepest = (1..29).fold(json!([1]), |inner, _| json!([inner]));
    for (number, data) in [deepest, json!("x".repeat(900_000))].into_iter().enumerate() {
        let wait = id("wait", u32::try_from(number).unwrap());
        let waits = json!({"eventName": "e", "matchCriteria": {"n": number}});
        appended(&caller, "r", "wait_created", Some(&wait), waits).await;
        let (status, answer) = caller
            .post("/api/events/send", json!({"event": "e", "match": {"n": number}, "data": data}))
            .await;
        assert_eq!(status, 202, "{answer}");
        let (_, shown) = caller.get("/api/runs/r").await;
        assert_eq!(shown["waits"][number]["outcome"], "event", "{shown}");
        let (_, page) = caller.get("/api/runs/r/events?limit=500").await;
        let last = page["items"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["eventData"]["data"], data);
        let told = in_ledger(&caller, "r", page["items"].as_array().unwrap().len()).await;
        assert_eq!(told[last["eventId"].as_str().unwrap()]["properties"]["data"], data);
    }
    let (status, answer) = append(&caller, "r", "run_completed", None, json!({"output": null})).await;
    assert_eq!(status, 201, "{answer}");
    world.local.stop().await;
}
