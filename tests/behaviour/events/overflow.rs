use ledgerline_event::{
    Event,
    catalogue::{JobCreated, JobTask, TaskCompleted},
    keys::Scope,
};
use ledgerline_ledger::{Emitter, EventQuery};
use serde::Serialize;
use serde_json::{Value, json};

use ledgerline_test_support::{World, name};

use crate::binary::{ledgerline, out};

const LARGE: usize = 300_000;

fn emitter(world: &World) -> Emitter {
    Emitter::new(world.clients(), &world.local.names, name("local"), name("test"))
}

/// The stored row (with the marker) and the event as readers get it.
async fn travelled(world: &World) -> (Value, Event) {
    let row = world.rows_at_least(1).await.remove(0);
    let tenant = name("local");
    let events = world.reader().all(&EventQuery::new(&tenant, Scope::Tenant)).await.unwrap();
    (serde_dynamo::aws_sdk_dynamodb_1::from_item(row).unwrap(), events.into_iter().next().unwrap())
}

fn plain(properties: &impl Serialize) -> Value {
    serde_json::to_value(properties).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_output_travels_whole() {
    let world = World::start().await;
    let completed = TaskCompleted {
        request_id: "req-1".into(),
        job_id: None,
        output: json!({"text": "ä".repeat(LARGE / 2)}),
        duration_ms: 1,
        exit_code: 0,
        usage: None,
    };
    let id = emitter(&world).catalogued("req-1", completed.clone()).emit().await.unwrap();
    let (row, event) = travelled(&world).await;
    let marker = &row["properties"]["_s3Overflow"];
    assert_eq!(marker["bucket"], "ledgerline-local-payloads");
    assert_eq!(marker["key"], json!(format!("events/req-1/{id}-payload.json")));
    assert_eq!(row["properties"].get("output"), None);
    assert_eq!(row["properties"]["durationMs"], 1, "what fits stays");
    assert_eq!(Value::Object(event.properties), plain(&completed));

    let (status, answer) = world.get("/api/events/recent?entityType=TASK&entityId=req-1").await;
    assert_eq!(status, 200);
    assert_eq!(answer["items"][0]["properties"], plain(&completed));
    assert_eq!(answer["items"][0].get("PK"), None, "answers have no key attributes");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_large_inputs_travels_whole() {
    let world = World::start().await;
    let task = |n: usize| JobTask {
        task_id: format!("task-{n}"),
        name: "scrape".into(),
        depends_on: vec![],
        input: json!({"page": "x".repeat(LARGE / 10)}).as_object().unwrap().clone(),
        timeout_ms: None,
        max_attempts: None,
    };
    let created = JobCreated {
        job_id: "job-1".into(),
        request_id: "req-1".into(),
        tasks: (0..10).map(task).collect(),
        total_tasks: 10,
    };
    emitter(&world).catalogued("job-1", created.clone()).emit().await.unwrap();
    let (row, event) = travelled(&world).await;
    assert!(row["properties"]["_s3Overflow"].is_object());
    assert_eq!(Value::Object(event.properties), plain(&created));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_property_may_overflow_and_odd_entity_ids_do_no_harm() {
    let world = World::start().await;
    let properties = json!({"a": 1, "transcript": "z".repeat(LARGE)});
    let draft = emitter(&world).event("call.ended").entity("CALL", "../..//ü").properties(properties.clone());
    draft.emit().await.unwrap();
    let (_, event) = travelled(&world).await;
    assert_eq!(Value::Object(event.properties), properties);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_of_a_senders_own_opens_nothing() {
    let world = World::start().await;
    world
        .clients()
        .s3
        .put_object()
        .bucket("ledgerline-local-payloads")
        .key("events/victim/e-payload.json")
        .body(br#"{"secret":1}"#.to_vec().into())
        .send()
        .await
        .unwrap();
    let marker = json!({"_s3Overflow": {"bucket": "ledgerline-local-payloads", "key": "events/victim/e-payload.json"}});

    let refused =
        emitter(&world).event("x").entity("T", "1").properties(marker.clone()).emit().await.unwrap_err();
    assert!(refused.to_string().starts_with("properties: _s3Overflow is reserved"), "{refused}");

    let mut forged =
        ledgerline_test_support::event("local", "e-1", ledgerline_test_support::at(1_767_453_739_640));
    forged.properties = marker.as_object().unwrap().clone();
    world.put_events(&[ledgerline_test_support::detail(&forged)]).await;
    let (_, event) = travelled(&world).await;
    let mut left = Value::Object(event.properties);
    let missing = left["_s3Overflow"].as_object_mut().unwrap().remove("missing").unwrap();
    assert_eq!(left, marker, "nothing is read");
    assert_eq!(missing, "the overflow marker points to what is not this event's own");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_once_written_is_never_replaced_and_never_mistaken_for_another() {
    let world = World::start().await;
    let emit = |text: &str| {
        let draft = emitter(&world).event("x").entity("T", "1").event_id(name("e-1"));
        draft
            .at(ledgerline_test_support::at(1_767_453_739_640))
            .properties(json!({"output": text.repeat(LARGE)}))
            .emit()
    };
    emit("a").await.unwrap();
    emit("a").await.unwrap();
    let refused = emit("b").await.unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("eventId: event id e-1 is already used by an event with other content"),
        "{refused}"
    );
    let (_, event) = travelled(&world).await;
    assert_eq!(event.properties["output"].as_str().unwrap().as_bytes()[0], b'a');

    // A writer with access to the bucket replaces it: readers notice.
    let s3 = &world.clients().s3;
    let put = s3.put_object().bucket("ledgerline-local-payloads").key("events/1/e-1-payload.json");
    put.body(br#"{"output":"forged"}"#.to_vec().into()).send().await.unwrap();
    let (_, event) = travelled(&world).await;
    assert!(event.properties.contains_key("_s3Overflow") && !event.properties.contains_key("output"));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_large_events_comes_in_several_pages() {
    let world = World::start().await;
    let emitter = emitter(&world);
    let large = |n: usize| {
        emitter.event("x").entity("T", format!("{n}")).properties(json!({"output": "x".repeat(900_000)}))
    };
    for fate in emitter.emit_all((0..12).map(large).collect()).await {
        fate.unwrap();
    }
    world.rows_at_least(12).await;
    let (mut cursor, mut found, mut pages) = (String::new(), 0, 0);
    loop {
        let (status, answer) = world.get(&format!("/api/events/recent?limit=100{cursor}")).await;
        assert_eq!(status, 200);
        found += answer["items"].as_array().unwrap().len();
        pages += 1;
        match answer["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, 12);
    assert!(pages > 1, "12 events of 900 KB do not fit one answer of a Lambda function");
    world.local.stop().await;
}

/// What another tenant's event with the same ids would have to be shown.
async fn forged(world: &World, properties: Value) -> Value {
    let mut forged =
        ledgerline_test_support::event("thief", "e-1", ledgerline_test_support::at(1_767_453_739_640));
    forged.entity_id = name("1");
    forged.properties = properties.as_object().unwrap().clone();
    world.put_events(&[ledgerline_test_support::detail(&forged)]).await;
    let tenant = name("thief");
    let event = ledgerline_test_support::until("the event is saved", || async {
        world.reader().all(&EventQuery::new(&tenant, Scope::Tenant)).await.unwrap().pop()
    })
    .await;
    Value::Object(event.properties)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_without_a_hash_opens_no_payload_of_another_tenant_with_the_same_ids() {
    let world = World::start().await;
    let secret = json!({"output": "secret ".repeat(LARGE / 7)});
    let draft = emitter(&world).event("x").entity("T", "1").event_id(name("e-1")).properties(secret.clone());
    draft.at(ledgerline_test_support::at(1_767_453_739_640)).emit().await.unwrap();
    let (_, event) = travelled(&world).await;
    assert_eq!(Value::Object(event.properties), secret, "its own tenant reads it");

    let bare = json!({"bucket": "ledgerline-local-payloads", "key": "events/1/e-1-payload.json"});
    let seen = forged(&world, json!({ "_s3Overflow": bare })).await;
    assert!(!seen.to_string().contains("secret"), "{seen}");
    assert!(seen["_s3Overflow"]["missing"].as_str().unwrap().contains("no hash"), "{seen}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_without_a_hash_is_followed_if_the_object_names_the_tenant() {
    let world = World::start().await;
    let bucket = "ledgerline-local-payloads";
    let put = world.clients().s3.put_object().bucket(bucket).key("events/1/e-1-payload.json");
    put.metadata("tenant", "thief").body(br#"{"output":1}"#.to_vec().into()).send().await.unwrap();
    let bare = json!({"bucket": bucket, "key": "events/1/e-1-payload.json"});
    assert_eq!(forged(&world, json!({ "_s3Overflow": bare, "a": 2 })).await, json!({"a": 2, "output": 1}));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_gone_is_shown_as_missing_with_its_key() {
    let world = World::start().await;
    let completed = TaskCompleted {
        request_id: "req-1".into(),
        job_id: None,
        output: json!("x".repeat(LARGE)),
        duration_ms: 1,
        exit_code: 0,
        usage: None,
    };
    let id = emitter(&world).catalogued("req-1", completed).emit().await.unwrap();
    world.rows_at_least(1).await;
    let key = format!("events/req-1/{id}-payload.json");
    let s3 = &world.clients().s3;
    s3.delete_object().bucket("ledgerline-local-payloads").key(&key).send().await.unwrap();
    let path = "/api/events/recent?entityType=TASK&entityId=req-1";
    let (_, answer) = world.get(path).await;
    let marker = &answer["items"][0]["properties"]["_s3Overflow"];
    assert_eq!(
        (&marker["missing"], &marker["key"]),
        (&json!("the overflow payload is not in the bucket"), &json!(key))
    );
    let shown = ledgerline_test_support::until("the task is folded", || async {
        let (status, answer) = world.get("/api/tasks/req-1").await;
        (status == 200).then_some(answer)
    })
    .await;
    assert_eq!(shown["output"]["_s3Overflow"]["key"], json!(key));
    for command in [&["events"][..], &["task", "req-1"], &["task", "req-1", "--history"]] {
        let text = out(&ledgerline(world.folder.path(), command));
        assert!(
            text.contains("missing: the overflow payload is not in the bucket") && text.contains(&key),
            "{text}"
        );
    }
    world.local.stop().await;
}
