//! Tasks that no worker takes: their message is enqueued again before SQS drops it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ledgerline_dispatch::{Taken, TaskMessage, Thresholds};
use ledgerline_embedded::{Call, Hook, Moment, Verdict};
use ledgerline_event::Name;
use serde_json::{Value, json};

use crate::{
    ledger::Ledger,
    world::{event, name},
};

const DAY: u64 = 24 * 60 * 60 * 1_000;

impl Ledger {
    async fn enqueued_again(&self) -> usize {
        self.dispatch.check_health(&Thresholds::default()).await.unwrap().enqueued_again
    }

    /// What SQS does after 14 days.
    fn messages_are_lost(&self) -> usize {
        let mut lost = 0;
        while let Some(received) = self.next_message() {
            self.delete(&received);
            lost += 1;
        }
        lost
    }
}

/// A task of each kind of origin: submitted small and large, of a job, and started by a subscription.
async fn four_tasks(ledger: &Ledger) -> Vec<Name> {
    let large = "x".repeat(20_000);
    ledger.submit_task("t", json!({"name": "x", "requestId": "small"})).await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "large", "input": {"text": large}})).await;
    ledger.submit_job("t", "job-1", json!([{"taskId": "a", "name": "x", "input": {"n": 1}}])).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    let started = ledger.drain("t").await.triggered.remove(0).started;
    ledger.settle("t").await;
    vec![name("job-1:a"), name("large"), started, name("small")]
}

#[tokio::test]
async fn a_task_that_no_worker_takes_for_ten_days_is_enqueued_again_and_again_after_ten_more() {
    let ledger = Ledger::start().await;
    let mut ids = four_tasks(&ledger).await;
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
async fn a_task_that_was_taken_meanwhile_is_not_disturbed() {
    let ledger = Ledger::start().await;
    four_tasks(&ledger).await;
    ledger.advance(10 * DAY);
    // A worker has taken them all, and the ledger has not heard of it: the row still says that they wait.
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
    let hook: Hook = Arc::new(move |call: Call, moment| {
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
    let checked = ledger.dispatch.check_health(&Thresholds::default()).await.unwrap();
    assert_eq!((checked.enqueued_again, checked.trouble), (0, 1));
    down.store(false, Ordering::SeqCst);
    ledger.advance(120_000);
    ledger.dispatch.sweep(None).await.unwrap();
    assert_eq!(ledger.enqueued_again().await, 0, "the claim says that it was enqueued");
    let received = ledger.next_message().unwrap();
    assert!(ledger.next_message().is_none());
    assert!(!matches!(ledger.take(received, "worker-1").await, Err(Taken::Ended)));
}
