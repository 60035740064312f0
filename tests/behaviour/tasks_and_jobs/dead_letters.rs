//! Messages on the dead-letter queue of tasks: a task that no worker could run ends, a task that runs goes back to the
//! task queue, and a message that is no task stays.

use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use ledgerline_embedded::Receive;
use ledgerline_event::{
    JobState,
    catalogue::{ErrorCategory, TaskState},
    keys::Scope,
};
use ledgerline_ledger::{Emitter, EventQuery, telemetry::Metrics};
use serde_json::json;
use task_dlq::Handler;

use ledgerline_test_support::{Held, Ledger, World, name, until};

fn handler(ledger: &Ledger) -> Handler {
    Handler { stage: ledger.stage.clone(), metrics: Metrics::silent(), clock: ledger.clock() }
}

/// A batch as Lambda sends it; the message ids are the positions.
fn batch(bodies: &[&str]) -> SqsEvent {
    let records = bodies.iter().enumerate().map(|(position, body)| {
        let mut record = SqsMessage::default();
        record.message_id = Some(position.to_string());
        record.body = Some((*body).to_owned());
        record
    });
    let mut event = SqsEvent::default();
    event.records = records.collect();
    event
}

/// Handles messages; returns the positions of those that go back to the queue.
async fn handle(ledger: &Ledger, bodies: &[&str]) -> Vec<String> {
    let answer = handler(ledger).handle(batch(bodies)).await;
    answer.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect()
}

/// The bodies on the dead-letter queue.
fn dead_letters(ledger: &Ledger) -> Vec<String> {
    let receive = Receive { max: 10, wait: None, visibility_seconds: None };
    let queues = ledger.store.embedded.queues();
    let messages = queues.receive_now(&ledger.store.names.task_dead_letter_queue, &receive).unwrap();
    messages.into_iter().map(|message| message.body).collect()
}

const NO_FAILED_MESSAGES: [String; 0] = [];

#[tokio::test]
async fn a_task_whose_attempts_are_used_up_fails_as_a_dead_letter_and_so_does_its_job() {
    let ledger = Ledger::start().await;
    ledger.submit_job("t", "job-1", json!([{ "taskId": "a", "name": "flaky" }])).await;
    ledger.settle("t").await;
    let mut received = ledger.next_message().unwrap();
    for attempt in 1..=3 {
        let held = ledger.take(received, "worker-1").await.ok().unwrap();
        assert_eq!((held.lease.attempt, held.lease.is_last), (attempt, attempt == 3));
        assert!(ledger.stage.tasks.release(&held.lease, "ETIMEDOUT", ErrorCategory::Network).await.unwrap());
        received = held.received;
    }
    let message = ledgerline_jobs::TaskMessage::parse(&received.body).unwrap();
    ledger.stage.tasks.dead_letter(&message, &received.body).await.unwrap();
    ledger.delete(&received);

    let [body] = &dead_letters(&ledger)[..] else { panic!("one dead letter") };
    assert_eq!(*body, received.body);
    // A message may come twice.
    assert_eq!(handle(&ledger, &[body, body]).await, NO_FAILED_MESSAGES);
    assert_eq!(handle(&ledger, &[body]).await, NO_FAILED_MESSAGES);
    ledger.settle("t").await;
    let [failed] = &ledger.events("t", "Task Failed").await[..] else { panic!("one end") };
    assert_eq!(
        serde_json::to_value(&failed.properties).unwrap(),
        json!({
            "requestId": "job-1:a", "jobId": "job-1", "error": "ETIMEDOUT", "errorCategory": "network",
            "retryCount": 3, "source": "dlq",
        })
    );
    assert_eq!((failed.context.attempt, failed.context.generation), (Some(3), Some(1)));
    assert_eq!(failed.context.origin.as_deref(), Some("task-dlq"));
    assert_eq!(ledger.stage.tasks.task(&name("t"), "job-1:a").await.unwrap().state, TaskState::Failed);
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Failed);
    assert_eq!(ledger.events("t", "Job Failure Detected").await.len(), 1);
}

#[tokio::test]
async fn a_task_that_no_worker_ever_took_fails_too_and_says_so() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({ "name": "nobody-runs-it", "requestId": "req-1" })).await;
    let received = ledger.next_message().unwrap();
    assert_eq!(handle(&ledger, &[&received.body]).await, NO_FAILED_MESSAGES);
    let [failed] = &ledger.events("t", "Task Failed").await[..] else { panic!("one end") };
    assert_eq!((&failed.properties["retryCount"], &failed.properties["source"]), (&json!(0), &json!("dlq")));
    assert_eq!(failed.properties["error"], "delivered again and again, and no worker took it");
    assert_eq!(failed.context.attempt, None);
}

#[tokio::test]
async fn a_dead_letter_of_a_running_task_goes_back_to_the_task_queue_until_its_lease_has_ended() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({ "name": "slow", "requestId": "req-1" })).await;
    let Held { lease, received } = ledger.take_all().await.pop().unwrap();
    assert_eq!(handle(&ledger, &[&received.body]).await, NO_FAILED_MESSAGES);
    let tasks = ledger.store.embedded.queues().counts(&ledger.store.names.task_queue).unwrap();
    assert_eq!((tasks.delayed, tasks.visible), (1, 0));
    assert!(ledger.events("t", "Task Failed").await.is_empty());
    // Its worker ends it as if nothing had been.
    ledger.complete(&Held { lease, received }, json!(1)).await;
    assert_eq!(ledger.events("t", "Task Completed").await.len(), 1);

    // The same, but its worker dies.
    ledger.submit_task("t", json!({ "name": "slow", "requestId": "req-2" })).await;
    let Held { received, .. } = ledger.take_all().await.pop().unwrap();
    ledger.advance(91_000);
    assert_eq!(handle(&ledger, &[&received.body]).await, NO_FAILED_MESSAGES);
    let [failed] = &ledger.events("t", "Task Failed").await[..] else { panic!("one end") };
    assert_eq!(failed.properties["error"], "its worker was gone before it ended, each time");
    assert_eq!(failed.properties["retryCount"], 1);
}

#[tokio::test]
async fn a_dead_letter_of_an_ended_task_is_dropped() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({ "name": "quick", "requestId": "req-1" })).await;
    let held = ledger.take_all().await.pop().unwrap();
    ledger.complete(&held, json!(1)).await;
    assert_eq!(handle(&ledger, &[&held.received.body]).await, NO_FAILED_MESSAGES);
    assert!(ledger.events("t", "Task Failed").await.is_empty());
    assert!(ledger.next_message().is_none());
}

#[tokio::test]
async fn an_unreadable_dead_letter_stays_and_the_rest_of_its_batch_is_settled() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({ "name": "nobody-runs-it", "requestId": "req-1" })).await;
    let received = ledger.next_message().unwrap();
    let nameless = r#"{"tenantId":"t","requestId":"req-9"}"#;
    assert_eq!(handle(&ledger, &["not json", &received.body, nameless, ""]).await, ["0", "2", "3"]);
    assert_eq!(ledger.events("t", "Task Failed").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_mode_settles_dead_letters_by_itself() {
    let world = World::start().await;
    let local = &world.local;
    let emitter = Emitter::new(&local.clients, &local.names, name("local"), name("shop"));
    let task = json!({ "name": "nobody-runs-it", "requestId": "req-1" });
    local.stage.tasks.submit_task(&emitter, serde_json::from_value(task).unwrap()).await.unwrap();
    let queues = local.embedded.queues();
    let receive = Receive { max: 1, wait: None, visibility_seconds: None };
    let received = queues.receive_now(&local.names.task_queue, &receive).unwrap().pop().unwrap();
    let found =
        local.clients.sqs.get_queue_url().queue_name(&local.names.task_dead_letter_queue).send().await;
    let url = found.unwrap().queue_url.unwrap();
    for body in ["no task", &received.body] {
        local.clients.sqs.send_message().queue_url(&url).message_body(body).send().await.unwrap();
    }
    let tenant = name("local");
    let query = EventQuery::new(&tenant, Scope::Type("Task Failed"));
    let failed = until("the task has failed", || async {
        Some(world.reader().all(&query).await.unwrap()).filter(|found| !found.is_empty())
    })
    .await;
    assert_eq!(failed[0].properties["source"], "dlq");
    until("only what is no task is left", || async {
        let left = queues.counts(&local.names.task_dead_letter_queue).unwrap();
        (left.visible + left.in_flight == 1).then_some(())
    })
    .await;
    world.local.stop().await;
}
