//! What the function `runner` does with a batch and with a tick, and how a process polls in its stead.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use ledgerline_embedded::{Interceptor, Service, Verdict};
use ledgerline_event::RunState;
use ledgerline_ledger::telemetry::Metrics;
use ledgerline_runner::{Handler, Polling, QueueMessage, RunQueue, poll};
use ledgerline_runs::{EventSubmission, RunAcquisition};
use ledgerline_store::StoreError;
use ledgerline_workflow::{Ctx, Error, Visited, Workflows};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::Instant,
};

use ledgerline_test_support::{Ledger, name, until};

async fn echo(_: Ctx, input: Value) -> Result<Value, Error> {
    Ok(input)
}

fn handler(ledger: &Ledger, workflows: Workflows) -> Handler {
    Handler { runner: ledger.runner(workflows), metrics: Metrics::silent(), clock: ledger.clock() }
}

fn batch(bodies: &[String]) -> SqsEvent {
    let mut batch = SqsEvent::default();
    batch.records = bodies
        .iter()
        .enumerate()
        .map(|(position, body)| {
            let mut record = SqsMessage::default();
            record.message_id = Some(format!("m-{position}"));
            record.body = Some(body.clone());
            record
        })
        .collect();
    batch
}

#[tokio::test]
async fn only_unreadable_messages_of_a_batch_go_back_to_the_queue() {
    let ledger = Ledger::on_one_clock(None).await;
    let handler = handler(&ledger, Workflows::new().register("echo", "1", echo));
    let run_id = ledger.start_run("echo", json!(7)).await;
    let message = |run_id: &str| json!({ "tenantId": "t", "runId": run_id }).to_string();
    let bodies = [
        message(&run_id),
        message(&run_id),
        message("wrun_of_nobody"),
        "no run".to_owned(),
        json!({ "tenantId": "t" }).to_string(),
        String::new(),
    ];

    let answer = handler.handle(batch(&bodies), None).await;
    let failed: Vec<&str> =
        answer.batch_item_failures.iter().map(|failure| failure.item_identifier.as_str()).collect();
    assert_eq!(failed, ["m-3", "m-4", "m-5"]);
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

#[tokio::test]
async fn a_visit_that_a_service_failed_is_repeated_and_the_run_continues() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = down.clone();
    let interceptor: Interceptor = Arc::new(move |call, _| {
        let fails = asked.load(Ordering::SeqCst) && call.service == Service::DynamoDb;
        let code = "InternalServerError".to_owned();
        let verdict = if fails { Verdict::Fail { status: 500, code } } else { Verdict::Proceed };
        Box::pin(std::future::ready(verdict))
    });
    let ledger = Ledger::on_one_clock(Some(interceptor)).await;
    let handler = handler(&ledger, Workflows::new().register("echo", "1", echo));
    let run_id = ledger.start_run("echo", json!(7)).await;
    let bodies = [json!({ "tenantId": "t", "runId": run_id }).to_string()];

    down.store(true, Ordering::SeqCst);
    assert_eq!(handler.handle(batch(&bodies), None).await.batch_item_failures.len(), 1);
    assert!(handler.tick(Instant::now() + Duration::from_secs(30)).await.is_err());
    down.store(false, Ordering::SeqCst);
    assert_eq!(handler.handle(batch(&bodies), None).await.batch_item_failures.len(), 0);
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

#[tokio::test]
async fn a_tick_registers_the_workflows_and_enqueues_runs_whose_message_was_lost() {
    let ledger = Ledger::on_one_clock(None).await;
    let workflows = Workflows::new().register("echo", "1", echo).register("echo", "2", echo);
    let handler = handler(&ledger, workflows);
    let run_id = ledger.start_run("echo", json!(7)).await;
    let lost = ledger.next_run().unwrap();
    ledger.store.embedded.queues().delete(&ledger.store.names.run_queue, &lost.receipt).unwrap();

    handler.tick(Instant::now() + Duration::from_secs(30)).await.unwrap();
    assert_eq!(ledger.stage.runs.registry.runnable_workflows().await.unwrap(), ["echo".to_owned()].into());
    assert!(ledger.next_run().is_none(), "another runner may be about to visit it");
    ledger.advance(61_000);
    assert_eq!(handler.tick(Instant::now() + Duration::from_secs(30)).await.unwrap().sent_again, 1);
    let found = ledger.next_run().unwrap();
    assert!(handler.visit(&found.body, None).await.is_done());
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

#[tokio::test]
async fn a_run_that_is_woken_while_a_dead_runner_holds_it_continues_when_the_lease_ends() {
    async fn patient(ctx: Ctx, _: Value) -> Result<Value, Error> {
        Ok(ctx.wait_for_event("thing.came").await?.data)
    }
    let ledger = Ledger::on_one_clock(None).await;
    let handler = handler(&ledger, Workflows::new().register("patient", "1", patient));
    let run_id = ledger.start_run("patient", json!(null)).await;
    ledger.run_all(&handler.runner).await;
    // The run is old by now.
    ledger.advance(3 * 24 * 60 * 60_000);
    let taken = ledger.stage.runs.leases.acquire_run(&name("t"), &run_id, 60_000).await.unwrap();
    assert!(matches!(taken, RunAcquisition::Acquired(_)), "{taken:?}");

    let came: EventSubmission = serde_json::from_value(json!({ "event": "thing.came", "data": 7 })).unwrap();
    ledger.stage.events.send_event(&ledger.emitter("t"), came, None).await.unwrap();
    assert_eq!(ledger.run_all(&handler.runner).await, [Visited::Held]);
    ledger.advance(10_000);
    handler.tick(Instant::now() + Duration::from_secs(30)).await.unwrap();
    assert_eq!(ledger.run_all(&handler.runner).await, [Visited::Held]);
    ledger.advance(50_001);
    assert_eq!(handler.tick(Instant::now() + Duration::from_secs(30)).await.unwrap().sent_again, 1);
    assert_eq!(ledger.run_all(&handler.runner).await, [Visited::Ended]);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(7)));
}

/// Messages that a test hands out.
#[derive(Clone, Default)]
struct Hands(Arc<HandsInner>);

#[derive(Default)]
struct HandsInner {
    waiting: Mutex<Vec<String>>,
    deleted: Mutex<Vec<String>>,
    news: Notify,
    failures: AtomicUsize,
}

impl RunQueue for Hands {
    async fn receive(&self, max: usize) -> Result<Vec<QueueMessage>, StoreError> {
        if self.0.failures.load(Ordering::SeqCst) > 0 {
            self.0.failures.fetch_sub(1, Ordering::SeqCst);
            return Err(StoreError::unreadable("ReceiveMessage", "not now"));
        }
        loop {
            let letters: Vec<QueueMessage> = {
                let mut waiting = self.0.waiting.lock().unwrap();
                let some = max.min(waiting.len());
                waiting.drain(..some).map(|body| QueueMessage { receipt: body.clone(), body }).collect()
            };
            if !letters.is_empty() {
                return Ok(letters);
            }
            self.0.news.notified().await;
        }
    }

    async fn delete(&self, receipt: &str) -> Result<(), StoreError> {
        self.0.deleted.lock().unwrap().push(receipt.to_owned());
        Ok(())
    }
}

impl Hands {
    fn hand_out(&self, body: String) {
        self.0.waiting.lock().unwrap().push(body);
        self.0.news.notify_one();
    }

    fn deleted(&self) -> usize {
        self.0.deleted.lock().unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_executes_so_many_runs_at_once_and_finishes_them_when_it_is_stopped() {
    let ledger = Ledger::on_one_clock(None).await;
    let (gate, inside) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let gated = {
        let (gate, inside) = (gate.clone(), inside.clone());
        move |ctx: Ctx, _: Value| {
            let (gate, inside) = (gate.clone(), inside.clone());
            async move {
                ctx.step("pass", || async {
                    inside.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await?.forget();
                    Ok::<_, tokio::sync::AcquireError>(())
                })
                .await
            }
        }
    };
    let handler = handler(&ledger, Workflows::new().register("gated", "1", gated));
    let hands = Hands::default();
    // A queue that does not answer is asked again.
    hands.0.failures.store(1, Ordering::SeqCst);
    let mut runs = Vec::new();
    for _ in 0..5 {
        let run_id = ledger.start_run("gated", json!(null)).await;
        hands.hand_out(json!({ "tenantId": "t", "runId": run_id }).to_string());
        runs.push(run_id);
    }
    let (stop, stopped) = watch::channel(false);
    let polling = Polling { concurrency: 3, grace: Duration::from_secs(60) };
    let running = tokio::spawn(poll(handler, hands.clone(), polling, stopped));

    let entered = |count: usize| {
        let inside = inside.clone();
        move || std::future::ready((inside.load(Ordering::SeqCst) == count).then_some(()))
    };
    until("three runs are under way", entered(3)).await;
    gate.add_permits(1);
    until("a fourth took the place of the first", entered(4)).await;
    assert_eq!(hands.deleted(), 1);

    // Three are under way, and one was not begun.
    stop.send_replace(true);
    gate.add_permits(3);
    running.await.unwrap();
    assert_eq!((hands.deleted(), inside.load(Ordering::SeqCst)), (4, 4));
    let mut states = Vec::new();
    for run_id in &runs {
        states.push(ledger.run_state(run_id).await);
    }
    states.sort_by_key(|state| state.is_terminal());
    assert_eq!(states[0], RunState::Pending);
    assert_eq!(states[1..], [RunState::Completed; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stops_does_not_wait_for_ever_for_a_run_that_does_not_end() {
    async fn endless(ctx: Ctx, _: Value) -> Result<(), Error> {
        ctx.step("hang", || async {
            std::future::pending::<()>().await;
            Ok::<_, Error>(())
        })
        .await
    }
    let ledger = Ledger::on_one_clock(None).await;
    let handler = handler(&ledger, Workflows::new().register("endless", "1", endless));
    let hands = Hands::default();
    let run_id = ledger.start_run("endless", json!(null)).await;
    hands.hand_out(json!({ "tenantId": "t", "runId": run_id }).to_string());
    let (stop, stopped) = watch::channel(false);
    let polling = Polling { concurrency: 1, grace: Duration::from_millis(1) };
    let running = tokio::spawn(poll(handler, hands.clone(), polling, stopped));
    until("the message is taken", || {
        let taken = hands.0.waiting.lock().unwrap().is_empty();
        std::future::ready(taken.then_some(()))
    })
    .await;
    stop.send_replace(true);
    running.await.unwrap();
    assert_eq!(hands.deleted(), 0, "it comes again");
}
