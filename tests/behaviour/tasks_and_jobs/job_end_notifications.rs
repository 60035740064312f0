//! A rule on the bus, as the docs show it, notifies producers of the ends of their jobs.

use std::{collections::BTreeMap, fs};

use aws_sdk_eventbridge::types::Target;
use aws_sdk_sqs::types::QueueAttributeName;
use ledgerline_ledger::Emitter;
use serde_json::{Value, json};

use ledgerline_test_support::{World, name, until};

const WORKER: &str = r#"
[tasks.fail]
command = "echo 'Invalid API key' >&2; exit 1"
[tasks."*"]
command = ["true"]
"#;

async fn submit(world: &World, tenant: &str, job_id: &str, tasks: Value) {
    let emitter = Emitter::new(world.clients(), &world.local.names, name(tenant), name("shop"));
    let job = serde_json::from_value(json!({ "jobId": job_id, "tasks": tasks })).unwrap();
    world.local.stage.jobs.submit_job(&emitter, job).await.unwrap();
}

/// A queue of the producer's own, and the rule of the docs that leads to it.
async fn subscribe(world: &World, queue: &str) -> String {
    let (sqs, events) = (&world.clients().sqs, &world.clients().events);
    let url = sqs.create_queue().queue_name(queue).send().await.unwrap().queue_url.unwrap();
    let asked =
        sqs.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::QueueArn).send().await;
    let arn = asked.unwrap().attributes.unwrap()[&QueueAttributeName::QueueArn].clone();
    let pattern =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/job-ended.json")).unwrap();
    let bus = &world.local.names.bus;
    events.put_rule().event_bus_name(bus).name(queue).event_pattern(pattern).send().await.unwrap();
    let target = Target::builder().id("queue").arn(arn).build().unwrap();
    let put = events.put_targets().event_bus_name(bus).rule(queue).targets(target).send().await.unwrap();
    assert_eq!(put.failed_entry_count(), 0);
    url
}

/// Receives `count` messages; returns the event type and the job of each.
async fn received(world: &World, url: &str, count: usize) -> BTreeMap<(String, String), Value> {
    let mut received = BTreeMap::new();
    while received.len() < count {
        let receive = world.clients().sqs.receive_message().queue_url(url);
        let answer = receive.max_number_of_messages(10).wait_time_seconds(20).send().await.unwrap();
        let messages = answer.messages.unwrap_or_default();
        assert!(!messages.is_empty(), "only {received:?}");
        for message in messages {
            let event: Value = serde_json::from_str(&message.body.unwrap()).unwrap();
            assert_eq!(event["detail-type"], "log-event");
            let text = |field: &str| event["detail"][field].as_str().unwrap().to_owned();
            let key = (text("eventType"), text("entityId"));
            assert_eq!(received.insert(key, event["detail"].clone()), None, "each once");
        }
    }
    received
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_on_the_event_type_tells_a_producer_how_its_jobs_ended_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker.toml");
    fs::write(&file, WORKER).unwrap();
    let world = World::with(|options| options.worker = Some(file)).await;
    let url = subscribe(&world, "acme-jobs-ended").await;

    let good = json!([{"taskId": "a", "name": "work"}, {"taskId": "b", "name": "work", "dependsOn": ["a"]}]);
    let bad = json!([{"taskId": "a", "name": "fail"}, {"taskId": "b", "name": "work", "dependsOn": ["a"]}]);
    for tenant in ["acme", "another"] {
        submit(&world, tenant, "good", good.clone()).await;
        submit(&world, tenant, "bad", bad.clone()).await;
    }
    for tenant in ["acme", "another"] {
        until("both jobs have ended", || async {
            let good = world.local.stage.jobs.job(&name(tenant), "good").await.unwrap();
            let rows =
                ledgerline_test_support::rows_of(world.clients(), &world.local.names.events_table, tenant)
                    .await;
            let told =
                |row: &&ledgerline_test_support::Item| row["eventType"].as_s().unwrap().starts_with("Job ");
            let told = rows.iter().filter(told).count();
            // Two created, one completed, one failed.
            (good.job.job.completed_at.is_some() && told == 4).then_some(())
        })
        .await;
    }

    let received = received(&world, &url, 2).await;
    let kinds: Vec<_> = received.keys().map(|(kind, job)| (kind.as_str(), job.as_str())).collect();
    assert_eq!(kinds, [("Job Completed", "good"), ("Job Failure Detected", "bad")]);
    assert!(received.values().all(|detail| detail["tenantId"] == "acme"));
    let failed = &received[&("Job Failure Detected".to_owned(), "bad".to_owned())]["properties"];
    assert_eq!(failed["failedTaskId"], "a");
    assert_eq!(failed["taskStatuses"], json!({"a": "failed", "b": null}));
    let counts = world.local.embedded.queues().counts("acme-jobs-ended").unwrap();
    assert_eq!(counts.visible, 0, "and nothing else");
    world.local.stop().await;
}
