//! Subscriptions on a running local mode: real clients put events on the bus, and what subscribes starts.

use std::collections::BTreeMap;

use aws_sdk_sqs::types::MessageSystemAttributeName;
use ledgerline_event::{Event, keys::Scope};
use ledgerline_ledger::{EventQuery, Outcome, Saver};
use serde_json::{Value, json};

use ledgerline_test_support::{World, admitted, at, detail, event, name, until};

const DAY_MS: u64 = 24 * 3600 * 1000;

fn now() -> u64 {
    ledgerline_ledger::system_clock()().get()
}

async fn register(world: &World, definition: Value) {
    let (status, answer) = world.post("/api/workflows", definition.to_string()).await;
    assert_eq!(status, 201, "{answer}");
}

async fn subscribe(world: &World, definition: Value) -> String {
    let (status, answer) = world.post("/api/subscriptions", definition.to_string()).await;
    assert_eq!(status, 201, "{answer}");
    answer["subscriptionId"].as_str().unwrap().to_owned()
}

/// Every event of a type.
async fn events(world: &World, event_type: &str) -> Vec<Event> {
    let tenant = name("local");
    world.reader().all(&EventQuery::new(&tenant, Scope::Type(event_type))).await.unwrap()
}

/// How often each event was started.
async fn starts(world: &World) -> BTreeMap<String, usize> {
    let mut starts = BTreeMap::new();
    for pending in events(world, "Task Pending").await {
        let cause = pending.caused_by.unwrap();
        *starts.entry(cause.rsplit(':').next().unwrap().to_owned()).or_default() += 1;
    }
    starts
}

/// Waits until the queues are empty and the drainers have passed every event.
async fn at_rest(world: &World) {
    until("the drainers have caught up", || async {
        world.quiet().await;
        let (_, drainers) = world.get("/api/drainers").await;
        let behind = drainers["items"].as_array().unwrap().iter().any(|drainer| drainer["lagMs"] != 0);
        (!behind).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_events_up_to_a_day_late_start_once_each() {
    let world = World::start().await;
    register(&world, json!({"workflowType": "reprice", "kind": "task"})).await;
    subscribe(&world, json!({"eventTypeGlob": "price.*", "workflowType": "reprice"})).await;
    let mut late: Vec<Event> = (0..1_000)
        .map(|n| {
            let mut event = event("local", &format!("e{n:04}"), at(now() - fastrand::u64(..DAY_MS)));
            event.entity_id = name(&format!("item-{}", n % 37));
            event
        })
        .collect();
    let twice: Vec<Event> = late.iter().filter(|_| fastrand::u8(..5) == 0).cloned().collect();
    late.extend(twice);
    fastrand::shuffle(&mut late);
    for batch in late.chunks(100) {
        // A newer one first, so that cursor and horizon are far ahead of what comes.
        world.put_events(&[detail(&event("local", &format!("now-{}", now()), at(now())))]).await;
        world.put_events(&batch.iter().map(detail).collect::<Vec<_>>()).await;
    }
    let started = until("all are started", || async {
        Some(starts(&world).await)
            .filter(|starts| starts.keys().filter(|id| id.starts_with('e')).count() == 1_000)
    })
    .await;
    assert!(started.values().all(|count| *count == 1), "{started:?}");
    at_rest(&world).await;
    let started = starts(&world).await;
    assert!(started.values().all(|count| *count == 1), "{started:?}");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twelve_subscriptions_on_one_event_start_eight_and_park_four() {
    let world = World::start().await;
    register(&world, json!({"workflowType": "reprice", "kind": "task"})).await;
    for _ in 0..12 {
        subscribe(&world, json!({"eventTypeGlob": "price.*", "workflowType": "reprice"})).await;
    }
    world.put_events(&[detail(&event("local", "e1", at(now())))]).await;
    until("four are parked", || async {
        let (_, parked) = world.get("/api/parked").await;
        (parked["items"].as_array().unwrap().len() == 4).then_some(())
    })
    .await;
    at_rest(&world).await;
    assert_eq!(starts(&world).await["e1"], 8);
    assert_eq!(events(&world, "workflow.dispatch_capped").await.len(), 1);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_message_carries_its_tenant_as_group_and_another_tenant_sees_nothing() {
    let world = World::start().await;
    register(&world, json!({"workflowType": "reprice", "kind": "task"})).await;
    let subscription =
        subscribe(&world, json!({"eventTypeGlob": "price.*", "workflowType": "reprice"})).await;
    world
        .put_events(&[
            detail(&event("other", "theirs", at(now()))),
            detail(&event("local", "ours", at(now()))),
        ])
        .await;
    let url = world
        .clients()
        .sqs
        .get_queue_url()
        .queue_name("local-tasks")
        .send()
        .await
        .unwrap()
        .queue_url
        .unwrap();
    let received = until("the task is there", || async {
        let receive = world.clients().sqs.receive_message().queue_url(&url).wait_time_seconds(1);
        let receive = receive.message_system_attribute_names(MessageSystemAttributeName::MessageGroupId);
        receive.send().await.unwrap().messages.unwrap_or_default().pop()
    })
    .await;
    assert_eq!(received.attributes.unwrap()[&MessageSystemAttributeName::MessageGroupId], "local");
    let body: Value = serde_json::from_str(received.body.as_deref().unwrap()).unwrap();
    assert_eq!((body["tenantId"].as_str(), body["generation"].as_u64()), (Some("local"), Some(1)));
    assert_eq!(body["input"]["id"], "ours");

    let (key, text) = world
        .api_keys()
        .create(&name("other"), ledgerline_store::KeyScope::Admin, None, at(now()))
        .await
        .unwrap();
    drop(key);
    for path in ["/api/subscriptions", "/api/workflows", "/api/parked", "/api/tasks", "/api/jobs"] {
        let request = world.http.get(format!("{}{path}", world.local.state.api_url)).bearer_auth(&text);
        let (status, answer) = world.answer(request).await;
        assert_eq!((status, answer["items"].as_array().unwrap().len()), (200, 0), "{path}");
    }
    let request = world.http.get(format!("{}/api/subscriptions/{subscription}", world.local.state.api_url));
    assert_eq!(world.answer(request.bearer_auth(&text)).await.0, 404);
    at_rest(&world).await;
    assert_eq!(starts(&world).await, BTreeMap::from([("ours".into(), 1)]));
    world.local.stop().await;
}

/// What a saver in another process writes while local mode is down is drained when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_saved_before_a_restart_is_started_after_it() {
    let world = World::start().await;
    register(&world, json!({"workflowType": "reprice", "kind": "task"})).await;
    subscribe(&world, json!({"eventTypeGlob": "price.*", "workflowType": "reprice"})).await;
    let World { local, folder, http } = world;
    local.stop().await;
    // The store alone, without a dispatcher.
    let embedded = ledgerline_embedded::Embedded::start(ledgerline_embedded::Options {
        data: Some(folder.path().to_owned()),
        ..Default::default()
    })
    .await
    .unwrap();
    let clients = ledgerline_ledger::Clients::at_endpoint(&embedded.endpoint(), "us-east-1");
    let names = ledgerline_ledger::Names::of_stage("local");
    let control = ledgerline_store::ControlTable::new(clients.dynamo.clone(), &names.control_table);
    let saver = Saver::new(clients.dynamo.clone(), &names.events_table, control, 0);
    let saved = saver.save(&[admitted(event("local", "e1", at(now())))], at(now())).await;
    assert!(matches!(saved[0], Ok(Outcome::Saved { .. })));
    embedded.stop().await;
    let local =
        ledgerline_local::Local::start(ledgerline_local::LocalOptions::new(folder.path())).await.unwrap();
    let world = World { local, folder, http };
    until("it is started", || async { (!starts(&world).await.is_empty()).then_some(()) }).await;
    assert_eq!(starts(&world).await, BTreeMap::from([("e1".into(), 1)]));
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_an_earlier_version_gets_the_index_that_it_lacks() {
    use aws_sdk_dynamodb::types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    };
    let folder = tempfile::tempdir().unwrap();
    let embedded = ledgerline_embedded::Embedded::start(ledgerline_embedded::Options {
        data: Some(folder.path().to_owned()),
        ..Default::default()
    })
    .await
    .unwrap();
    let clients = ledgerline_ledger::Clients::at_endpoint(&embedded.endpoint(), "us-east-1");
    let mut create =
        clients.dynamo.create_table().table_name("control-local").billing_mode(BillingMode::PayPerRequest);
    for (attribute, kind) in [("PK", KeyType::Hash), ("SK", KeyType::Range)] {
        let definition = AttributeDefinition::builder().attribute_name(attribute);
        create = create
            .attribute_definitions(definition.attribute_type(ScalarAttributeType::S).build().unwrap())
            .key_schema(
                KeySchemaElement::builder().attribute_name(attribute).key_type(kind).build().unwrap(),
            );
    }
    create.send().await.unwrap();
    embedded.stop().await;
    for _ in 0..2 {
        let local =
            ledgerline_local::Local::start(ledgerline_local::LocalOptions::new(folder.path())).await.unwrap();
        local.stage.sweep.sweep(None).await.unwrap();
        local.stop().await;
    }
}
