use serde_json::{Value, json};

use ledgerline_test_support::{World, text, until};

/// The published sample, field for field: no `eventId`, no `appName`, a UUID in the sort key.
fn sample() -> Value {
    json!({
        "PK": "TENANT#gbinnovations",
        "SK": "TIMESTAMP#1767453739640#EVENT#ddf71f63-b036-4ac7-ad0f-77a7fdfca352",
        "GSI1PK": "TASK#req-123",
        "GSI1SK": "TASK#TIMESTAMP#1767453739640",
        "GSI2PK": "APP#task-workflow",
        "GSI2SK": "TIMESTAMP#1767453739640",
        "GSI3PK": "APP#task-workflow",
        "GSI3SK": "TASK#req-123#TIMESTAMP#1767453739640",
        "GSI4PK": "EVENT#Task Processing Started",
        "GSI4SK": "TENANT#gbinnovations#TIMESTAMP#1767453739640",
        "GSI5PK": "EVENT#Task Processing Started",
        "GSI5SK": "TENANT#gbinnovations#TASK#req-123#TIMESTAMP#1767453739640",
        "GSI6PK": "EVENT#Task Processing Started",
        "GSI6SK": "TENANT#gbinnovations#APP#task-workflow#TIMESTAMP#1767453739640",
        "GSI7PK": "EVENT#Task Processing Started",
        "GSI7SK": "TENANT#gbinnovations#APP#task-workflow#TASK#req-123#TIMESTAMP#1767453739640",
        "entityId": "req-123",
        "entityType": "TASK",
        "tenantId": "gbinnovations",
        "eventType": "Task Processing Started",
        "timestamp": 1_767_453_739_640_u64,
        "context": {"source": "system", "environment": "prod", "origin": "sqs-worker", "workerId": "worker-abc123"},
        "properties": {"requestId": "req-123", "startedAt": 1_767_453_739_640_u64}
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_event_is_found_through_the_table_and_every_index() {
    let world = World::start().await;
    world.put_events(&[sample()]).await;
    world.rows_at_least(1).await;

    let by_prefix = [
        (None, "PK", "SK", "TENANT#gbinnovations", "TIMESTAMP#"),
        (Some("GSI1-index"), "GSI1PK", "GSI1SK", "TASK#req-123", "TASK#"),
        (Some("GSI2-index"), "GSI2PK", "GSI2SK", "APP#task-workflow", "TIMESTAMP#"),
        (Some("GSI3-index"), "GSI3PK", "GSI3SK", "APP#task-workflow", "TASK#req-123#"),
        (
            Some("GSI4-index"),
            "GSI4PK",
            "GSI4SK",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#TIMESTAMP#",
        ),
        (
            Some("GSI5-index"),
            "GSI5PK",
            "GSI5SK",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#TASK#req-123#",
        ),
        (
            Some("GSI6-index"),
            "GSI6PK",
            "GSI6SK",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#APP#task-workflow#",
        ),
        (
            Some("GSI7-index"),
            "GSI7PK",
            "GSI7SK",
            "EVENT#Task Processing Started",
            "TENANT#gbinnovations#APP#task-workflow#TASK#req-123#",
        ),
    ];
    for (index, pk, sk, partition, prefix) in by_prefix {
        let found = world
            .clients()
            .dynamo
            .query()
            .table_name("events-local")
            .set_index_name(index.map(str::to_owned))
            .key_condition_expression(format!("{pk} = :pk AND begins_with({sk}, :sk)"))
            .expression_attribute_values(":pk", text(partition))
            .expression_attribute_values(":sk", text(prefix))
            .send()
            .await
            .unwrap();
        assert_eq!(found.count(), 1, "{index:?}");
    }

    let row = world.rows().await.remove(0);
    let stored: Value = serde_dynamo::aws_sdk_dynamodb_1::from_item(row).unwrap();
    for (field, value) in sample().as_object().unwrap() {
        assert_eq!(&stored[field], value, "{field}");
    }
    assert_eq!(stored["eventId"], "ddf71f63-b036-4ac7-ad0f-77a7fdfca352");
    assert_eq!(stored["appName"], "task-workflow");
    assert_eq!(stored["receivedAt"].as_u64().unwrap().to_string().len(), 13);
    assert_eq!(stored.get("ttl"), None, "nothing expires unless a retention is set");
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_gives_rows_a_ttl_in_seconds() {
    let world = World::with(|options| options.retention_days = 30).await;
    world.put_events(&[sample()]).await;
    let row = world.rows_at_least(1).await.remove(0);
    let number = |field: &str| row[field].as_n().unwrap().parse::<u64>().unwrap();
    assert_eq!(number("ttl"), number("receivedAt") / 1000 + 30 * 24 * 60 * 60);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_events_are_there_after_a_restart() {
    let world = World::start().await;
    world.put_events(&[sample()]).await;
    world.rows_at_least(1).await;
    let (state, folder) = (world.local.state.clone(), world.folder);
    world.local.stop().await;

    let options = ledgerline_local::LocalOptions::new(folder.path());
    let again = ledgerline_local::Local::start(options).await.unwrap();
    assert_eq!(again.state.api_key, state.api_key, "scripts keep working");
    let rows = ledgerline_test_support::scan(&again.clients, &again.names.events_table).await;
    assert_eq!(rows.len(), 1);
    until("the API answers", || async {
        reqwest::get(format!("{}/api/health", again.state.api_url))
            .await
            .ok()
            .filter(|answer| answer.status() == 200)
    })
    .await;
    again.stop().await;
}
