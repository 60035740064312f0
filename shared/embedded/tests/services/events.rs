use aws_sdk_eventbridge::error::ProvideErrorMetadata;
use aws_sdk_eventbridge::primitives::DateTime;
use aws_sdk_eventbridge::types::{DeadLetterConfig, PutEventsRequestEntry, Target};

use crate::world::World;

fn entry(source: &str, detail: &str) -> PutEventsRequestEntry {
    PutEventsRequestEntry::builder()
        .event_bus_name("bus")
        .source(source)
        .detail_type("Saved")
        .detail(detail)
        .time(DateTime::from_secs_f64(1_767_453_739.9))
        .build()
}

async fn bus_to(world: &World, pattern: &str, target: Target) {
    world.events.create_event_bus().name("bus").send().await.unwrap();
    let rule = world.events.put_rule().event_bus_name("bus").name("rule").event_pattern(pattern);
    rule.send().await.unwrap();
    let put = world.events.put_targets().event_bus_name("bus").rule("rule").targets(target).send().await;
    assert_eq!(put.unwrap().failed_entry_count(), 0);
}

fn queue_target(name: &str) -> Target {
    Target::builder().id("queue").arn(format!("arn:aws:sqs:us-east-1:000000000000:{name}")).build().unwrap()
}

#[tokio::test]
async fn an_event_reaches_the_queue_with_its_detail_byte_for_byte() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    bus_to(&world, r#"{"source":[{"prefix":"app."}],"detail":{"z":[1]}}"#, queue_target("q")).await;
    let detail = "{ \"z\": 1.0,\"a\":\"\\u00e9 é\",  \"n\":12345678901234567890.10}";
    let put = world
        .events
        .put_events()
        .entries(entry("app.one", detail))
        .entries(entry("other", detail))
        .entries(entry("app.one", r#"{"z":2}"#))
        .send()
        .await
        .unwrap();
    assert_eq!(put.failed_entry_count(), 0);
    let id = put.entries()[0].event_id().unwrap();
    assert_eq!(
        world.bodies(&queue).await,
        [format!(
            "{{\"version\":\"0\",\"id\":\"{id}\",\"detail-type\":\"Saved\",\"source\":\"app.one\",\
             \"account\":\"000000000000\",\"time\":\"2026-01-03T15:22:19Z\",\"region\":\"us-east-1\",\
             \"resources\":[],\"detail\":{detail}}}"
        )]
    );
}

#[tokio::test]
async fn entries_fail_one_by_one() {
    let world = World::in_memory().await;
    let queue = world.queue("q").await;
    bus_to(&world, r#"{"account":["000000000000"]}"#, queue_target("q")).await;
    let mut unnamed = entry("a", "{}");
    unnamed.source = None;
    let mut lost = entry("a", "{}");
    lost.event_bus_name = Some("none".into());
    let put = world.events.put_events().entries(entry("a", "[1]")).entries(unnamed).entries(entry("a", "{}"));
    let put = put.entries(lost).send().await.unwrap();
    assert_eq!(put.failed_entry_count(), 3);
    let codes: Vec<_> = put.entries().iter().map(|entry| entry.error_code()).collect();
    assert_eq!(
        codes,
        [Some("MalformedDetail"), Some("InvalidArgument"), None, Some("ResourceNotFoundException")]
    );
    assert_eq!(world.receive(&queue).await.len(), 1);
}

#[tokio::test]
async fn too_many_or_too_large_entries_are_refused_as_a_whole() {
    let world = World::in_memory().await;
    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(600_000));
    for entries in [vec![entry("a", "{}"); 11], vec![entry("a", &large); 2]] {
        let error = world.events.put_events().set_entries(Some(entries)).send().await.unwrap_err();
        assert_eq!(error.into_service_error().code(), Some("ValidationException"));
    }
}

#[tokio::test]
async fn an_event_whose_queue_is_gone_goes_to_the_targets_dead_letter_queue() {
    let world = World::in_memory().await;
    let dead = world.queue("dead").await;
    let config = DeadLetterConfig::builder().arn("arn:aws:sqs:us-east-1:000000000000:dead").build();
    let mut target = queue_target("gone");
    target.dead_letter_config = Some(config);
    bus_to(&world, r#"{"source":["a"]}"#, target).await;
    world.events.put_events().entries(entry("a", "{}")).send().await.unwrap();
    let message = world.receive(&dead).await.remove(0);
    let attributes = message.message_attributes().unwrap();
    assert_eq!(attributes["ERROR_CODE"].string_value(), Some("NO_RESOURCE"));
    assert_eq!(
        attributes["RULE_ARN"].string_value(),
        Some("arn:aws:events:us-east-1:000000000000:rule/bus/rule")
    );
}

#[tokio::test]
async fn buses_rules_and_targets_are_described_and_taken_away() {
    let world = World::in_memory().await;
    bus_to(&world, r#"{"source":["a"]}"#, queue_target("q")).await;
    let again = world.events.create_event_bus().name("bus").send().await.unwrap_err().into_service_error();
    assert!(again.is_resource_already_exists_exception());
    let buses = world.events.list_event_buses().send().await.unwrap();
    assert_eq!(buses.event_buses().len(), 2);
    let bus = world.events.describe_event_bus().name("bus").send().await.unwrap();
    assert_eq!(bus.arn(), Some("arn:aws:events:us-east-1:000000000000:event-bus/bus"));
    let rules = world.events.list_rules().event_bus_name("bus").send().await.unwrap();
    assert_eq!(rules.rules()[0].event_pattern(), Some(r#"{"source":["a"]}"#));
    let bad = world.events.put_rule().name("bad").event_pattern("{}").send().await.unwrap_err();
    assert!(bad.into_service_error().is_invalid_event_pattern_exception());

    let list = || world.events.list_targets_by_rule().event_bus_name("bus").rule("rule").send();
    assert_eq!(list().await.unwrap().targets(), [queue_target("q")]);
    let remove = world.events.remove_targets().event_bus_name("bus").rule("rule").ids("queue");
    remove.send().await.unwrap();
    assert!(list().await.unwrap().targets().is_empty());
    world.events.delete_rule().event_bus_name("bus").name("rule").send().await.unwrap();
    assert!(list().await.unwrap_err().into_service_error().is_resource_not_found_exception());
}
