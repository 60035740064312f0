//! A sender and a reader of events at the worst moments: requests of one are held while the other goes on.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use ledgerline_embedded::{Interceptor, Moment, Verdict};
use ledgerline_event::{Millis, RunState};
use ledgerline_ledger::Emitter;
use ledgerline_runs::{EventSubmission, SendingRun};
use ledgerline_store::keys;
use ledgerline_workflow::{Ctx, Error, Visited, Workflows, all, first};
use serde_json::{Value, json};
use tokio::sync::Notify;

use ledgerline_test_support::{
    Ledger, TENANT, name,
    previous_version::{OldEvent, OldSender},
};

const HOUR_MS: u64 = 3_600_000;
/// Far longer than any request takes to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Requests, or their answers, that are held until the test lets them go.
#[derive(Clone, Default)]
struct Gates(Arc<Mutex<Vec<Held>>>);

struct Held {
    moment: Moment,
    operation: &'static str,
    words: Vec<&'static str>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    reached: Notify,
    opened: Notify,
}

impl Gates {
    fn interceptor(&self) -> Interceptor {
        let gates = self.clone();
        Arc::new(move |call, moment| {
            let body = String::from_utf8_lossy(&call.body).into_owned();
            let mut gates = gates.0.lock().unwrap();
            let is_it = |held: &Held| {
                moment == held.moment
                    && call.operation == held.operation
                    && held.words.iter().all(|word| body.contains(word))
            };
            let gate = gates.iter().position(is_it).map(|position| gates.remove(position).gate);
            Box::pin(async move {
                if let Some(gate) = gate {
                    gate.reached.notify_one();
                    gate.opened.notified().await;
                }
                Verdict::Proceed
            })
        })
    }

    /// Holds the next request of this kind that has all of the words.
    fn hold(&self, operation: &'static str, words: &[&'static str]) -> Arc<Gate> {
        self.hold_at(Moment::Before, operation, words)
    }

    /// Holds the answer to it.
    fn hold_answer(&self, operation: &'static str, words: &[&'static str]) -> Arc<Gate> {
        self.hold_at(Moment::After { status: 200 }, operation, words)
    }

    fn hold_at(&self, moment: Moment, operation: &'static str, words: &[&'static str]) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        let held = Held { moment, operation, words: words.to_vec(), gate: gate.clone() };
        self.0.lock().unwrap().push(held);
        gate
    }
}

impl Gate {
    async fn reached(&self) {
        let reached = tokio::time::timeout(PATIENCE, self.reached.notified()).await;
        reached.expect("the request never comes");
    }

    fn open(&self) {
        self.opened.notify_one();
    }
}

async fn send_as(ledger: &Ledger, emitter: &Emitter, event_id: &str, event: &str, matched: Value) {
    let event = json!({ "event": event, "data": event_id, "match": matched });
    let event: EventSubmission = serde_json::from_value(event).unwrap();
    let from = name("sender");
    ledger
        .stage
        .events
        .send_event(emitter, event, Some(SendingRun { run_id: &from, event_id: name(event_id) }))
        .await
        .unwrap();
}

/// A ledger in which all senders keep the order, and a look goes on where the last one ended.
async fn settled(interceptor: Interceptor) -> Ledger {
    let ledger = Ledger::on_one_clock(Some(interceptor)).await;
    send_as(&ledger, &ledger.emitter(TENANT), "evnt-0", "tick", json!({ "clock": "other" })).await;
    ledger.advance(HOUR_MS);
    ledger
}

fn two_ticks() -> Workflows {
    Workflows::new().register("ticks", "1", |ctx: Ctx, _: Value| async move {
        let mut had = Vec::new();
        for _ in 0..2 {
            had.push(ctx.wait_for_event("tick").matching(json!({ "clock": "wall" })).await?.data);
        }
        Ok::<_, Error>(had)
    })
}

#[tokio::test]
async fn an_event_whose_rows_come_after_a_later_event_was_taken_is_taken_too() {
    let gates = Gates::default();
    let ledger = settled(gates.interceptor()).await;
    let (emitter, wall) = (ledger.emitter(TENANT), json!({ "clock": "wall" }));
    let runner = ledger.runner(two_ticks());
    let run_id = ledger.start_run("ticks", Value::Null).await;
    ledger.run_all(&runner).await;
    let rows = gates.hold("BatchWriteItem", &["evnt-a"]);
    let slow = send_as(&ledger, &emitter, "evnt-a", "tick", wall.clone());
    let others = async {
        rows.reached().await;
        ledger.advance(1);
        send_as(&ledger, &emitter, "evnt-b", "tick", wall.clone()).await;
        ledger.run_all(&runner).await;
        rows.open();
    };
    tokio::join!(slow, others);
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(["evnt-b", "evnt-a"])));
}

#[tokio::test]
async fn an_event_that_is_taken_before_it_is_accepted_hides_none_that_has_an_earlier_place() {
    let gates = Gates::default();
    let ledger = settled(gates.interceptor()).await;
    let (emitter, wall) = (ledger.emitter(TENANT), json!({ "clock": "wall" }));
    let rows = gates.hold("BatchWriteItem", &["evnt-a"]);
    let publishing = gates.hold("UpdateItem", &["watermark", "evnt-b"]);
    let runner = ledger.runner(two_ticks());
    let first = send_as(&ledger, &emitter, "evnt-a", "tick", wall.clone());
    let second = async {
        rows.reached().await;
        ledger.advance(1);
        send_as(&ledger, &emitter, "evnt-b", "tick", wall.clone()).await;
    };
    let reader = async {
        publishing.reached().await;
        let run_id = ledger.start_run("ticks", Value::Null).await;
        assert_eq!(ledger.run_all(&runner).await, [Visited::Suspended]);
        rows.open();
        run_id
    };
    let visits = async {
        let (run_id, ()) = tokio::join!(reader, first);
        ledger.run_all(&runner).await;
        publishing.open();
        run_id
    };
    let (run_id, ()) = tokio::join!(visits, second);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(["evnt-b", "evnt-a"])));
}

#[tokio::test]
async fn an_event_that_is_accepted_while_a_run_reads_past_events_is_taken() {
    let gates = Gates::default();
    let ledger = settled(gates.interceptor()).await;
    let (emitter, wall) = (ledger.emitter(TENANT), json!({ "clock": "wall" }));
    let runner = ledger.runner(two_ticks());
    let run_id = ledger.start_run("ticks", Value::Null).await;
    let rows = gates.hold_answer("Query", &["SENT#", "#tick#"]);
    let sender = async {
        rows.reached().await;
        send_as(&ledger, &emitter, "evnt-a", "tick", wall.clone()).await;
        rows.open();
    };
    tokio::join!(ledger.run_all(&runner), sender);
    ledger.run_all(&runner).await;
    ledger.advance(1);
    send_as(&ledger, &emitter, "evnt-b", "tick", wall.clone()).await;
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(["evnt-a", "evnt-b"])));
}

/// Ids of waits have no order, so that of several runs some would take the later event first by chance.
#[tokio::test]
async fn of_several_waits_the_one_with_the_older_event_completes_first_and_no_event_is_handed_over() {
    let ledger = settled(Gates::default().interceptor()).await;
    let emitter = ledger.emitter(TENANT);
    for event in ["older", "newer"] {
        send_as(&ledger, &emitter, event, event, json!({})).await;
        ledger.advance(10);
    }
    let runner = ledger.runner(Workflows::new().register("both", "1", |ctx: Ctx, _: Value| async move {
        let mut had = Vec::new();
        for _ in 0..2 {
            let waits = ["newer", "older"].map(|event| ctx.wait_for_event(event).boxed());
            had.push(first(waits).await.1?.data);
        }
        Ok::<_, Error>(had)
    }));
    for _ in 0..10 {
        let run_id = ledger.start_run("both", Value::Null).await;
        ledger.run_all(&runner).await;
        let run = ledger.run(&run_id).await.view;
        assert_eq!(run.run.output, Some(json!(["older", "newer"])));
        assert!(run.waits.iter().all(|wait| wait.handed_over_from.is_none()), "{run:?}");
    }
}

#[tokio::test]
async fn an_event_of_an_old_sender_behind_the_watermark_is_found_during_a_deployment() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("ticks", "1", |ctx: Ctx, _: Value| async move {
        let wall = json!({ "clock": "wall" });
        let first = ctx.wait_for_event("tick").matching(wall.clone()).await?.data;
        ctx.sleep(Duration::from_secs(60)).await?;
        let second = ctx.wait_for_event("tick").matching(wall).timeout(Duration::from_secs(60));
        Ok::<_, Error>([first, second.await?.data])
    }));
    send_as(&ledger, &ledger.emitter(TENANT), "evnt-a", "tick", json!({ "clock": "wall" })).await;
    let run_id = ledger.start_run("ticks", Value::Null).await;
    ledger.run_all(&runner).await;
    // The run sleeps, so the sender finds no wait; its clock is slow, and it knows no watermark.
    let store = &ledger.store;
    let queue = store.clients.sqs.get_queue_url().queue_name(&store.names.run_queue).send().await.unwrap();
    let event = OldEvent {
        tenant: TENANT.into(),
        event_name: "tick".into(),
        event_id: "evnt-old".into(),
        data: json!("evnt-old"),
        matching: json!({ "clock": "wall" }),
        timestamp: ledger.now().minus(10_000),
    };
    OldSender::new(&store.clients, &store.names, queue.queue_url().unwrap()).send(&event).await.unwrap();
    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Completed);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(["evnt-a", "evnt-old"])));
}

#[tokio::test]
async fn an_event_that_is_accepted_while_a_timeout_is_recorded_is_not_too_late() {
    let gates = Gates::default();
    let ledger = settled(gates.interceptor()).await;
    let runner = ledger.runner(Workflows::new().register("late", "1", |ctx: Ctx, _: Value| async move {
        let wait = ctx.wait_for_event("late").timeout(Duration::from_secs(60));
        Ok::<_, Error>(wait.await.map_or(json!("too late"), |event| event.data))
    }));
    let run_id = ledger.start_run("late", Value::Null).await;
    ledger.run_all(&runner).await;
    ledger.advance(61_000);
    let timeout = gates.hold("TransactWriteItems", &["outcome", "timeout"]);
    let sender = async {
        timeout.reached().await;
        send_as(&ledger, &ledger.emitter(TENANT), "evnt-a", "late", json!({})).await;
        timeout.open();
    };
    tokio::join!(ledger.run_all(&runner), sender);
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!("evnt-a")));
}

#[tokio::test]
async fn a_run_that_is_called_while_its_lease_is_released_continues() {
    let gates = Gates::default();
    let ledger = settled(gates.interceptor()).await;
    let runner = ledger.runner(two_ticks());
    let run_id = ledger.start_run("ticks", Value::Null).await;
    let (emitter, wall) = (ledger.emitter(TENANT), json!({ "clock": "wall" }));
    for event_id in ["evnt-a", "evnt-b"] {
        let release = gates.hold("UpdateItem", &["REMOVE leaseOwner"]);
        let sender = async {
            release.reached().await;
            send_as(&ledger, &emitter, event_id, "tick", wall.clone()).await;
            release.open();
        };
        ledger.stage.runs.enqueue_run(&name(TENANT), &run_id, 0).await.unwrap();
        tokio::join!(ledger.run_all(&runner), sender);
    }
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(["evnt-a", "evnt-b"])));
}

#[tokio::test]
async fn a_run_that_is_called_during_a_step_gets_the_event() {
    let gates = Gates::default();
    let ledger = settled(gates.interceptor()).await;
    let (begun, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (has_begun, may_end) = (begun.clone(), end.clone());
    let code = move |ctx: Ctx, _: Value| {
        let (begun, end) = (has_begun.clone(), may_end.clone());
        async move {
            let wait = ctx.wait_for_event("tick").matching(json!({ "clock": "wall" }));
            let step = ctx.step("slow", move || {
                let (begun, end) = (begun.clone(), end.clone());
                async move {
                    begun.notify_one();
                    end.notified().await;
                    Ok::<_, Error>(json!("slow"))
                }
            });
            all([wait.map(|event| event.map(|event| event.data)).boxed(), step.boxed()]).await
        }
    };
    let runner = ledger.runner(Workflows::new().register("both", "1", code));
    let run_id = ledger.start_run("both", Value::Null).await;
    let first_look = gates.hold("Query", &["SENT#", "#tick#"]);
    let others = async {
        begun.notified().await;
        first_look.reached().await;
        first_look.open();
        let renewal = gates.hold("UpdateItem", &["SET leaseUntil"]);
        send_as(&ledger, &ledger.emitter(TENANT), "evnt-a", "tick", json!({ "clock": "wall" })).await;
        assert_eq!(ledger.run_all(&runner).await, [Visited::Held]);
        renewal.reached().await;
        end.notify_one();
        renewal.open();
    };
    tokio::join!(ledger.run_all(&runner), others);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(["evnt-a", "slow"])));
}

#[tokio::test]
async fn no_step_begins_before_senders_know_the_time_that_the_code_has_read() {
    let gates = Gates::default();
    let ledger = settled(gates.interceptor()).await;
    let begun = Arc::new(AtomicBool::new(false));
    let has_begun = begun.clone();
    let code = move |ctx: Ctx, _: Value| {
        let begun = begun.clone();
        async move {
            let now = ctx.now();
            ctx.step("ask", move || {
                begun.store(true, Ordering::SeqCst);
                async { Ok::<_, Error>(()) }
            })
            .await?;
            Ok::<_, Error>(now)
        }
    };
    let runner = ledger.runner(Workflows::new().register("ask", "1", code));
    let run_id = ledger.start_run("ask", Value::Null).await;
    let floor = gates.hold("UpdateItem", &["#floor"]);
    let looker = async {
        floor.reached().await;
        assert!(!has_begun.load(Ordering::SeqCst));
        floor.open();
    };
    tokio::join!(ledger.run_all(&runner), looker);
    assert!(has_begun.load(Ordering::SeqCst));
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

#[tokio::test]
async fn a_wait_since_a_time_of_another_system_gets_events_of_a_sender_with_a_slow_clock() {
    let ledger = settled(Gates::default().interceptor()).await;
    let runner = ledger.runner(Workflows::new().register("since", "1", |ctx: Ctx, at: Millis| async move {
        Ok::<_, Error>(ctx.wait_for_event("answer").since(at).await?.data)
    }));
    let run_id = ledger.start_run("since", json!(ledger.now())).await;
    ledger.run_all(&runner).await;
    let clock = ledger.clock();
    let slow = Arc::new(move || clock().minus(600_000));
    let store = &ledger.store;
    let slow = Emitter::with_clock(&store.clients, &store.names, name(TENANT), name("shop"), slow);
    send_as(&ledger, &slow, "evnt-a", "answer", json!({})).await;
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!("evnt-a")));
}

/// Sent before the run waits, or after: a visit that could not look leaves the wait to the next one.
#[tokio::test]
async fn past_events_that_one_visit_could_not_read_for_a_wait_are_read_by_the_next() {
    for is_called in [false, true] {
        let down = Arc::new(AtomicBool::new(false));
        let is_down = down.clone();
        let interceptor: Interceptor = Arc::new(move |call, moment| {
            let is_look = call.operation == "Query" && String::from_utf8_lossy(&call.body).contains("SENT#");
            let fails = is_down.load(Ordering::SeqCst) && moment == Moment::Before && is_look;
            Box::pin(async move {
                match fails {
                    true => Verdict::Fail { status: 400, code: "ResourceNotFoundException".into() },
                    false => Verdict::Proceed,
                }
            })
        });
        let ledger = settled(interceptor).await;
        let (emitter, wall) = (ledger.emitter(TENANT), json!({ "clock": "wall" }));
        let runner = ledger.runner(two_ticks());
        let run_id = ledger.start_run("ticks", Value::Null).await;
        if is_called {
            ledger.run_all(&runner).await;
        }
        for event_id in ["evnt-a", "evnt-b"] {
            send_as(&ledger, &emitter, event_id, "tick", wall.clone()).await;
            ledger.advance(1);
        }
        down.store(true, Ordering::SeqCst);
        let visited = ledger.run_all(&runner).await;
        assert!(visited.iter().any(|visited| matches!(visited, Visited::RetryScheduled(_))), "{visited:?}");
        down.store(false, Ordering::SeqCst);
        ledger.advance(6_000);
        ledger.run_all(&runner).await;
        assert_eq!(
            ledger.run(&run_id).await.view.run.output,
            Some(json!(["evnt-a", "evnt-b"])),
            "{is_called}"
        );
    }
}

#[tokio::test]
async fn a_sender_has_runners_of_the_version_before_look_for_all_waits_of_the_run() {
    let ledger = settled(Gates::default().interceptor()).await;
    let runner = ledger.runner(two_ticks());
    let run_id = ledger.start_run("ticks", Value::Null).await;
    ledger.run_all(&runner).await;
    let looked_back = async || -> Value {
        let record: Option<Value> = ledger.store.control().get(&keys::run(TENANT, &run_id)).await.unwrap();
        record.unwrap()["lookedBack"].clone()
    };
    assert_ne!(looked_back().await, json!(0));
    send_as(&ledger, &ledger.emitter(TENANT), "evnt-a", "tick", json!({ "clock": "wall" })).await;
    assert_eq!(looked_back().await, json!(0));
    ledger.run_all(&runner).await;
    assert_ne!(looked_back().await, json!(0));
}
