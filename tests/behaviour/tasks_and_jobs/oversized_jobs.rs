//! What must not wedge the drainer `jobs`: large contexts, large inputs, and one event that cannot be followed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::JobState;
use ledgerline_store::keys;
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, event, name, rows_of};

#[tokio::test]
async fn an_end_with_an_oversized_via_drives_its_job_to_the_end() {
    let ledger = Ledger::start().await;
    let tasks = json!([
        {"taskId": "a", "name": "x"}, {"taskId": "b", "name": "x", "dependsOn": ["a"]}, {"taskId": "c", "name": "x"},
    ]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    let end = |task: &str, kind: &str| {
        let mut end = event("t", &format!("end-{task}"), ledger.now());
        end.entity_type = name("TASK");
        end.entity_id = name(&format!("job-1:{task}"));
        end.event_type = name(kind);
        let properties = json!({
            "requestId": format!("job-1:{task}"), "jobId": "job-1", "output": 1, "durationMs": 1, "exitCode": 0,
            "error": "no", "errorCategory": "auth", "retryCount": 1, "source": "worker",
        });
        end.properties = properties.as_object().unwrap().clone();
        end.context.via = (0..30).map(|n| format!("{n}{}", "v".repeat(10_000))).collect();
        ledger.save(end)
    };
    end("c", "Task Failed").await;
    end("a", "Task Completed").await;
    ledger.settle("t").await;
    assert_eq!(ledger.events("t", "Job Failure Detected").await.len(), 1);
    end("b", "Task Completed").await;
    ledger.settle("t").await;
    ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap();
    ledger.settle("t").await;
    let held = ledger.take_all().await;
    let last = held.iter().find(|held| held.lease.message.generation == 2).unwrap();
    assert_eq!(last.lease.message.request_id.as_str(), "job-1:c");
    ledger.complete(last, Value::Null).await;
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
    assert_eq!(ledger.events("t", "Job Completed").await.len(), 1);
    assert!(ledger.events("t", "workflow.dispatch_failed").await.is_empty());
}

/// Counts queries.
fn counting(queries: &Arc<AtomicUsize>) -> Interceptor {
    let queries = queries.clone();
    Arc::new(move |call: Call, moment| {
        if call.operation == "Query" && moment == Moment::Before {
            queries.fetch_add(1, Ordering::SeqCst);
        }
        Box::pin(async { Verdict::Proceed })
    })
}

#[tokio::test]
async fn failure_and_completion_read_no_inputs() {
    let queries = Arc::new(AtomicUsize::new(0));
    let ledger = Ledger::with(Some(counting(&queries))).await;
    const TASKS: usize = 100;
    let text = "x".repeat(29_000);
    let task = |n: usize| json!({"taskId": format!("t{n:03}"), "name": "x", "input": {"n": n, "text": text}});
    ledger.submit_job("t", "job-1", (0..TASKS).map(task).collect()).await;
    ledger.settle("t").await;
    let nodes = rows_of_job(&ledger, keys::NODES).await;
    assert_eq!(nodes.len(), TASKS);
    assert!(nodes.iter().all(|node| node.to_string().len() < 1_000), "{}", nodes[0]);
    let held = ledger.take_all().await;
    for (n, held) in held.iter().enumerate() {
        assert_eq!(held.lease.message.input.as_ref().unwrap()["n"], n, "each has its own input");
    }
    // All nodes are one page of a query: with their inputs they were three.
    ledger.fail(&held[0]).await;
    queries.store(0, Ordering::SeqCst);
    ledger.settle("t").await;
    let made = queries.load(Ordering::SeqCst);
    assert!(made <= 12, "{made} queries for one failure");
    for held in &held[1..] {
        ledger.complete(held, Value::Null).await;
    }
    ledger.settle("t").await;
    ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap();
    assert_eq!(ledger.work_off("t").await, ["job-1:t000"]);
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
}

async fn rows_of_job(ledger: &Ledger, beginning: &str) -> Vec<Value> {
    let rows = ledgerline_test_support::scan(&ledger.store.clients, &ledger.store.names.control_table).await;
    let rows = rows.into_iter().filter(|row| {
        row["PK"].as_s().unwrap() == &keys::job_partition("t", "job-1")
            && row["SK"].as_s().unwrap().starts_with(beginning)
    });
    rows.map(|row| serde_dynamo::aws_sdk_dynamodb_1::from_item(row).unwrap()).collect()
}

#[tokio::test]
async fn many_tasks_with_large_inputs_are_added_at_once_and_nodes_of_the_version_before_are_read() {
    let ledger = Ledger::start().await;
    let text = "x".repeat(29_000);
    let tasks =
        json!([{"taskId": "gate", "name": "x"}, {"taskId": "old", "name": "x", "dependsOn": ["gate"]}]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    // As versions before 0.1.0 put it: with its input inside.
    let key = keys::job_node("t", "job-1", "old");
    let mut node: Value = ledger.store.control().get(&key).await.unwrap().unwrap();
    node["input"] = json!(json!({"text": text}).to_string());
    node.as_object_mut().unwrap().retain(|name, _| name != "PK" && name != "SK" && name != "inputKey");
    ledger.store.control().put(&key, &node).unwrap().send().await.unwrap();
    // As large as rows of their own get, and one larger still.
    let added = (0..90).map(|n| json!({"taskId": format!("n{n:02}"), "name": "x", "dependsOn": ["gate"], "input": {"text": format!("{n:02}{text}{}", "\"".repeat(400))}}));
    let added = serde_json::from_value(added.collect()).unwrap();
    let with = text.repeat(2);
    let large: Vec<_> = serde_json::from_value(
        json!([{"taskId": "large", "name": "x", "dependsOn": ["gate"], "input": {"text": with}}]),
    )
    .unwrap();
    ledger.stage.jobs.add_tasks(&ledger.emitter("t"), "job-1", added).await.unwrap();
    ledger.stage.jobs.add_tasks(&ledger.emitter("t"), "job-1", large).await.unwrap();
    ledger.settle("t").await;
    let gate = ledger.take_all().await;
    ledger.complete(&gate[0], Value::Null).await;
    ledger.settle("t").await;
    let held = ledger.take_all().await;
    assert_eq!(held.len(), 92);
    for held in held {
        let message = &held.lease.message;
        let input = ledger.stage.tasks.input_of(message).await.unwrap();
        let id = message.task_id.as_deref().unwrap();
        let given = input["text"].as_str().unwrap();
        match id.strip_prefix('n') {
            Some(number) => assert!(given.starts_with(number) && given.len() > 29_000, "{id}"),
            None => assert_eq!(given, if id == "old" { &text } else { &with }, "{id}"),
        }
        ledger.complete(&held, Value::Null).await;
    }
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
}

#[tokio::test]
async fn one_refused_end_in_a_batch_does_not_discard_its_neighbours() {
    let ledger = Ledger::start().await;
    let tasks: Vec<Value> = (0..5).map(|n| json!({"taskId": format!("t{n}"), "name": "x"})).collect();
    ledger.submit_job("t", "job-1", json!(tasks)).await;
    ledger.settle("t").await;
    for held in ledger.take_all().await {
        ledger.complete(&held, Value::Null).await;
    }
    // A record that this version cannot read.
    let key = keys::task_record("t", "job-1:t2", 1);
    ledger.store.control().put(&key, &json!({"phase": "of another version"})).unwrap().send().await.unwrap();
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.job.done, 4);
    let told = ledger.events("t", "workflow.dispatch_failed").await;
    let about: Vec<&str> = told.iter().map(|told| told.properties["entityId"].as_str().unwrap()).collect();
    assert_eq!(about, ["job-1:t2"]);
    assert_eq!(rows_of(&ledger.store.clients, &ledger.store.names.events_table, "t").await.len(), 12);
}
