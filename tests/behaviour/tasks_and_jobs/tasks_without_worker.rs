//! Tasks that no worker takes: their message is enqueued again before SQS drops it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::Name;
use ledgerline_jobs::{Acquisition, TaskMessage, TaskSubmission, Thresholds};
use ledgerline_outbox::ComponentError;
use ledgerline_store::keys;
use ledgerline_verify::Mode;
use serde_json::{Value, json};
use tokio::time::Instant;

use ledgerline_test_support::{EXTENSION, Ledger, event, name, text};

const MINUTE: u64 = 60_000;
const DAY: u64 = 24 * 60 * MINUTE;

/// As many ids as asked for whose rows are due in one shard.
fn ids_of_one_shard(count: usize) -> Vec<String> {
    let shard = |id: &str| keys::task_due_shard_of(&keys::task_summary("t", id));
    let ids = (0..).map(|number| format!("req-{number}"));
    ids.filter(|id| shard(id) == keys::task_due_shard(0)).take(count).collect()
}

/// A task of each kind of origin: submitted small and large, of a job, and started by a subscription.
async fn four_tasks(ledger: &Ledger, kept_days: u64) -> Vec<Name> {
    let large = "x".repeat(20_000);
    ledger.submit_task("t", json!({"name": "x", "requestId": "small"})).await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "large", "input": {"text": large}})).await;
    ledger.submit_job("t", "job-1", json!([{"taskId": "a", "name": "x", "input": {"n": 1}}])).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    let started = ledger.drain("t").await.triggered.remove(0).started;
    ledger.settle_keeping(kept_days).await;
    vec![name("job-1:a"), name("large"), started, name("small")]
}

#[tokio::test]
async fn a_task_that_no_worker_takes_for_ten_days_is_enqueued_again_and_again_after_ten_more() {
    let ledger = Ledger::start().await;
    let mut ids = four_tasks(&ledger, 0).await;
    ids.sort();
    ledger.advance(9 * DAY);
    assert_eq!(ledger.enqueued_again().await, 0, "it is too early");
    let sent: Vec<String> = std::iter::from_fn(|| ledger.next_message()).map(|sent| sent.body).collect();
    assert_eq!(sent.len(), 4);
    for round in 0..3 {
        ledger.messages_are_lost();
        ledger.advance(DAY);
        assert_eq!(ledger.enqueued_again().await, 4, "round {round}");
        assert_eq!(ledger.enqueued_again().await, 0, "not twice");
        ledger.settle("t").await;
        ledger.advance(9 * DAY);
        assert_eq!(ledger.enqueued_again().await, 0, "not within ten days");
    }
    ledger.advance(DAY);
    assert_eq!(ledger.messages_are_lost(), 4, "those of the last round");
    assert_eq!(ledger.enqueued_again().await, 4);
    let held = ledger.take_all().await;
    let mut found: Vec<Name> = held.iter().map(|held| held.lease.message.request_id.clone()).collect();
    found.sort();
    assert_eq!(found, ids);
    for held in &held {
        let before = sent.iter().map(|body| TaskMessage::parse(body).unwrap());
        let before = before.into_iter().find(|sent| sent.request_id == held.lease.message.request_id);
        assert_eq!(before.as_ref(), Some(&held.lease.message), "the very message");
        ledger.complete(held, Value::Null).await;
    }
    ledger.settle("t").await;
    ledger.advance(30 * DAY);
    assert_eq!(ledger.enqueued_again().await, 0, "they have ended");
}

#[tokio::test]
async fn a_task_that_a_worker_took_meanwhile_is_not_enqueued_again() {
    let ledger = Ledger::start().await;
    four_tasks(&ledger, 0).await;
    ledger.advance(10 * DAY);
    // A worker has taken them all, and its events are not in the ledger: the rows still say that they wait.
    let held = ledger.take_all().await;
    assert_eq!(held.len(), 4);
    assert_eq!(ledger.enqueued_again().await, 0);
    assert!(ledger.next_message().is_none());
    for held in &held {
        ledger.complete(held, Value::Null).await;
    }
    ledger.settle("t").await;
    ledger.advance(30 * DAY);
    assert_eq!(ledger.enqueued_again().await, 0);
}

#[tokio::test]
async fn a_check_that_dies_after_its_claim_leaves_the_message_to_the_sweep_and_sends_it_once() {
    let down = Arc::new(AtomicBool::new(false));
    let fails = down.clone();
    let hook: Interceptor = Arc::new(move |call: Call, moment| {
        let fails =
            call.operation == "SendMessageBatch" && moment == Moment::Before && fails.load(Ordering::SeqCst);
        Box::pin(async move {
            match fails {
                true => Verdict::Fail { status: 500, code: "InternalError".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::with(Some(hook)).await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1"})).await;
    ledger.settle("t").await;
    ledger.messages_are_lost();
    ledger.advance(10 * DAY);
    down.store(true, Ordering::SeqCst);
    let checked = ledger.stage.health.check_health(&Thresholds::default()).await.unwrap();
    assert_eq!((checked.enqueued_again, checked.trouble), (0, 1));
    down.store(false, Ordering::SeqCst);
    ledger.advance(120_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(ledger.enqueued_again().await, 0, "the claim says that it was enqueued");
    let received = ledger.next_message().unwrap();
    assert!(ledger.next_message().is_none());
    assert!(!matches!(ledger.take(received, "worker-1").await, Err(Acquisition::Ended)));
}

#[tokio::test]
async fn a_task_whose_attempt_was_abandoned_is_enqueued_again_before_its_message_is_lost() {
    let ledger = Ledger::start().await;
    four_tasks(&ledger, 0).await;
    ledger.advance(9 * DAY);
    let held = ledger.take_all().await;
    assert_eq!(held.len(), 4);
    for held in &held {
        ledger.tell_started(held).await;
    }
    ledger.settle("t").await;
    for held in &held {
        assert!(ledger.stage.tasks.abandon(&held.lease).await.unwrap());
    }
    ledger.advance(2 * DAY);
    assert_eq!(ledger.enqueued_again().await, 0, "it was heard of two days ago");
    ledger.advance(DAY + MINUTE);
    assert_eq!(ledger.enqueued_again().await, 4);
    assert_eq!(ledger.messages_are_lost(), 4);
    ledger.advance(9 * DAY);
    assert_eq!(ledger.enqueued_again().await, 0, "not within ten days");
    ledger.advance(DAY);
    assert_eq!(ledger.enqueued_again().await, 4, "as often as it takes");
    let attempts: Vec<u32> = ledger.take_all().await.iter().map(|held| held.lease.attempt).collect();
    assert_eq!(attempts, [2, 2, 2, 2]);
}

#[tokio::test]
async fn a_task_whose_worker_died_is_enqueued_again_after_the_message_that_was_sent_again_is_lost() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1"})).await;
    ledger.settle("t").await;
    let held = ledger.take_all().await.remove(0);
    ledger.tell_started(&held).await;
    ledger.settle("t").await;
    ledger.advance(5 * MINUTE);
    let checked = ledger.stage.health.check_health(&Thresholds::default()).await.unwrap();
    assert_eq!((checked.given_back, checked.enqueued_again), (1, 0));
    for round in 0..3 {
        assert_eq!(ledger.messages_are_lost(), 1, "round {round}");
        ledger.advance(10 * DAY);
        let checked = ledger.stage.health.check_health(&Thresholds::default()).await.unwrap();
        assert_eq!((checked.given_back, checked.enqueued_again), (0, 1), "round {round}");
    }
    assert_eq!(ledger.take_all().await.remove(0).lease.attempt, 2);
}

#[tokio::test]
async fn a_task_whose_worker_renews_its_lease_for_weeks_without_a_heartbeat_is_not_enqueued_again() {
    let ledger = Ledger::start().await;
    four_tasks(&ledger, 0).await;
    let mut held = ledger.take_all().await;
    for held in &held {
        ledger.tell_started(held).await;
    }
    ledger.settle("t").await;
    for day in 1..=30 {
        ledger.advance(DAY);
        for held in &mut held {
            assert!(ledger.stage.tasks.renew(&mut held.lease, EXTENSION).await.unwrap());
        }
        assert_eq!(ledger.enqueued_again().await, 0, "day {day}");
        assert!(ledger.next_message().is_none(), "day {day}");
    }
}

#[tokio::test]
async fn a_refused_submission_leaves_the_kept_message_of_the_task_alone() {
    let ledger = Ledger::start().await;
    // In a row, and in an object.
    for (id, size) in [("row", 4_000), ("object", 20_000)] {
        let asks_for =
            |text: &str| json!({"name": "x", "requestId": id, "input": {"text": text.repeat(size)}});
        ledger.submit_task("t", asks_for("a")).await;
        ledger.submit_task("t", asks_for("a")).await;
        let other: TaskSubmission = serde_json::from_value(asks_for("b")).unwrap();
        let refused = ledger.stage.tasks.submit_task(&ledger.emitter("t"), other).await;
        assert!(matches!(refused, Err(ComponentError::Refused(_))), "{refused:?}");
    }
    ledger.settle("t").await;
    for round in 0..2 {
        ledger.messages_are_lost();
        ledger.advance(10 * DAY);
        assert_eq!(ledger.enqueued_again().await, 2, "round {round}");
    }
    for held in ledger.take_all().await {
        let input = ledger.stage.tasks.input_of(&held.lease.message).await.unwrap();
        assert!(input["text"].as_str().unwrap().starts_with("aaa"), "{}", held.lease.message.request_id);
    }
}

#[tokio::test]
async fn a_message_that_the_version_before_kept_is_enqueued_again() {
    let ledger = Ledger::start().await;
    ledger
        .submit_task("t", json!({"name": "x", "requestId": "req-1", "input": {"n": "x".repeat(4_000)}}))
        .await;
    ledger.settle("t").await;
    ledger.messages_are_lost();
    // As that version wrote it: under one name for every submission, which no record has.
    let update = ledger.store.control().update(&keys::task_record("t", "req-1", 1));
    update.update_expression("REMOVE messageKey").send().await.unwrap();
    let rows = ledger.rows_of_task("req-1").await;
    let (_, mut kept) = rows.into_iter().find(|(sk, _)| sk.starts_with("MESSAGE#")).unwrap();
    let (dynamo, table) = (&ledger.store.clients.dynamo, &ledger.store.names.control_table);
    let delete = dynamo.delete_item().table_name(table).key("PK", kept["PK"].clone());
    delete.key("SK", kept["SK"].clone()).send().await.unwrap();
    kept.insert("SK".into(), text("MESSAGE#000001"));
    dynamo.put_item().table_name(table).set_item(Some(kept)).send().await.unwrap();
    ledger.advance(10 * DAY);
    assert_eq!(ledger.enqueued_again().await, 1);
    assert_eq!(ledger.take_all().await.len(), 1);
}

#[tokio::test]
async fn a_task_waits_for_longer_than_its_events_are_kept_and_goes_after_its_end() {
    let ledger = Ledger::start().await;
    let ids = four_tasks(&ledger, 7).await;
    for round in 0..5 {
        ledger.messages_are_lost();
        ledger.advance(10 * DAY);
        ledger.rows_expire().await;
        assert_eq!(ledger.enqueued_again().await, 4, "round {round}");
    }
    // Its events are gone, and its row is right all the same.
    let verified = ledger.stage.verify.verify(&name("t"), Mode::Rebuild, &mut |_| {}).await.unwrap();
    let of_tasks = verified.differences.iter().filter(|found| found.entity_type == "TASK").count();
    assert_eq!(of_tasks, 0, "{:#?}", verified.differences);
    let held = ledger.take_all().await;
    assert_eq!(held.len(), 4);
    for held in &held {
        ledger.complete(held, Value::Null).await;
    }
    ledger.settle_keeping(7).await;
    ledger.advance(60 * DAY);
    ledger.rows_expire().await;
    for id in &ids {
        let left: Vec<String> = ledger.rows_of_task(id).await.into_iter().map(|(sk, _)| sk).collect();
        assert!(left.is_empty(), "{id}: {left:?}");
    }
}

#[tokio::test]
async fn a_record_of_the_version_before_does_not_expire_while_its_task_waits_or_runs() {
    let ledger = Ledger::start().await;
    let key = keys::task_record("t", "job-1:a", 1);
    let set_expiry = || async {
        let update = ledger.store.control().update(&key).update_expression("SET #ttl = :soon");
        let update = update.expression_attribute_names("#ttl", "ttl");
        update.expression_attribute_values(":soon", ledgerline_test_support::number(1)).send().await.unwrap();
    };
    let expiry = || async {
        let record: Value = ledger.store.control().get(&key).await.unwrap().unwrap();
        record["ttl"].clone()
    };
    ledger.submit_job("t", "job-1", json!([{"taskId": "a", "name": "x"}])).await;
    ledger.settle("t").await;
    ledger.messages_are_lost();
    set_expiry().await;
    ledger.advance(10 * DAY);
    assert_eq!(ledger.enqueued_again().await, 1);
    assert_eq!(expiry().await, Value::Null, "it waits");
    set_expiry().await;
    assert_eq!(ledger.take_all().await.len(), 1);
    assert_eq!(expiry().await, Value::Null, "it runs");
}

#[tokio::test]
async fn a_row_that_a_fold_has_changed_meanwhile_is_skipped_without_an_error() {
    let hook: Interceptor = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body);
        let notes = call.operation == "UpdateItem" && body.contains("SET dueAt = :again");
        let verdict = match notes && moment == Moment::Before {
            true => Verdict::Fail { status: 400, code: "ConditionalCheckFailedException".into() },
            false => Verdict::Proceed,
        };
        Box::pin(async move { verdict })
    });
    let ledger = Ledger::with(Some(hook)).await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1"})).await;
    ledger.settle("t").await;
    ledger.advance(10 * DAY);
    let checked = ledger.stage.health.check_health(&Thresholds::default()).await.unwrap();
    assert_eq!((checked.enqueued_again, checked.trouble), (1, 0));
}

#[tokio::test]
async fn an_unreadable_row_is_reported_and_looked_at_again_after_an_hour() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1"})).await;
    ledger.settle("t").await;
    let update = ledger.store.control().update(&keys::task_summary("t", "req-1"));
    update.update_expression("REMOVE history").send().await.unwrap();
    ledger.advance(10 * DAY);
    for expected in [1, 0] {
        let checked = ledger.stage.health.check_health(&Thresholds::default()).await.unwrap();
        assert_eq!((checked.enqueued_again, checked.trouble), (0, expected));
    }
}

#[tokio::test]
async fn fifty_tasks_that_fail_for_good_do_not_keep_the_one_behind_them_from_its_turn() {
    let ledger = Ledger::start().await;
    let ids = ids_of_one_shard(51);
    for (number, id) in ids.iter().enumerate() {
        ledger.submit_task("t", json!({"name": "x", "requestId": id})).await;
        ledger.advance(1);
        if number < 50 {
            let update = ledger.store.control().update(&keys::task_record("t", id, 1));
            let update = update.update_expression("SET message = :bad");
            update.expression_attribute_values(":bad", text("no message")).send().await.unwrap();
        }
    }
    ledger.settle("t").await;
    ledger.messages_are_lost();
    ledger.advance(10 * DAY);
    let check = || async {
        let checked = ledger.stage.health.check_health(&Thresholds::default()).await.unwrap();
        (checked.enqueued_again, checked.trouble)
    };
    assert_eq!(check().await, (0, 50));
    ledger.advance(MINUTE);
    assert_eq!(check().await, (1, 0));
    ledger.advance(60 * MINUTE);
    assert_eq!(check().await, (0, 50), "they are tried again after an hour");
}

#[tokio::test]
async fn a_check_whose_time_is_over_enqueues_some_and_the_next_checks_the_rest() {
    let ledger = Ledger::start().await;
    for id in ids_of_one_shard(3) {
        ledger.submit_task("t", json!({"name": "x", "requestId": id})).await;
    }
    ledger.settle("t").await;
    ledger.messages_are_lost();
    ledger.advance(10 * DAY);
    for round in 0..4 {
        let over =
            ledger.stage.health.check_health_until(&Thresholds::default(), Instant::now()).await.unwrap();
        assert_eq!(over.enqueued_again, usize::from(round < 3), "round {round}");
        ledger.advance(MINUTE);
    }
}

#[tokio::test]
async fn a_large_input_is_kept_for_as_long_as_its_task_waits() {
    let ledger = Ledger::start().await;
    let input = json!({"text": "x".repeat(300_000)});
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1", "input": input})).await;
    ledger.settle("t").await;
    let (s3, bucket) = (&ledger.store.clients.s3, &ledger.store.names.payload_bucket);
    for round in 0..3 {
        let objects = s3.list_objects_v2().bucket(bucket).prefix("tasks/").send().await.unwrap();
        ledger.messages_are_lost();
        ledger.advance(10 * DAY);
        assert_eq!(ledger.enqueued_again().await, 1, "round {round}");
        // The bucket deletes objects by their age.
        for old in objects.contents() {
            s3.delete_object().bucket(bucket).key(old.key().unwrap()).send().await.unwrap();
        }
    }
    let held = ledger.take_all().await.remove(0);
    let read = ledger.stage.tasks.input_of(&held.lease.message).await.unwrap();
    assert_eq!(Value::Object(read), input);
}
