//! Events that runs wait for: before, after and at the very moment; with a timeout; again and again.

use std::time::Duration;

use futures::FutureExt;
use ledgerline_event::{RunEventType, RunState};
use ledgerline_runs::RunMessage;
use ledgerline_workflow::{Ctx, Error, Runner, Workflows, first};
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, TENANT, name, scan};

const AT_ONCE: usize = 1_000;
const IN_ORDER: usize = 100;
const TIMED_OUT: usize = 300;

async fn payment(ctx: Ctx, invoice: usize) -> Result<Value, Error> {
    let wait = ctx.wait_for_event("payment.received").matching(json!({ "invoice": { "id": invoice } }));
    match wait.timeout(Duration::from_secs(3_600)).await {
        Ok(event) => Ok(event.data),
        Err(error) if error.is_timeout() => Ok(json!("too late")),
        Err(error) => Err(error),
    }
}

async fn send(ledger: &Ledger, event: &str, data: Value, matched: Value) -> String {
    let event = serde_json::from_value(json!({ "event": event, "data": data, "match": matched })).unwrap();
    ledger.stage.events.send_event(&ledger.emitter(TENANT), event, None).await.unwrap().event_id.to_string()
}

async fn pay(ledger: &Ledger, invoice: usize) {
    let matched = json!({ "invoice": { "id": invoice, "currency": "EUR" }, "by": "card" });
    send(ledger, "payment.received", json!({ "paid": invoice }), matched).await;
}

async fn visit_next(ledger: &Ledger, runner: &Runner) {
    let received = ledger.next_run().unwrap();
    runner.visit(&RunMessage::parse(&received.body).unwrap(), None).await.unwrap();
    ledger.store.embedded.queues().delete(&ledger.store.names.run_queue, &received.receipt).unwrap();
}

/// Asserts that the run ended with the payment, and that the payment woke it once.
async fn assert_paid(ledger: &Ledger, run_id: &str, invoice: usize) {
    let run = ledger.run(run_id).await.view;
    assert_eq!(run.run.output, Some(json!({ "paid": invoice })), "{run:?}");
    let log = ledger.log(run_id).await;
    let woken = log.iter().filter(|event| event.event_type == RunEventType::WaitCompleted).count();
    assert_eq!(woken, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_woken_once_whether_event_or_wait_comes_first() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("payment", "1", payment));
    for invoice in 0..IN_ORDER {
        let run_id = ledger.start_run("payment", json!(invoice)).await;
        if invoice % 2 == 0 {
            pay(&ledger, invoice).await;
            ledger.run_all(&runner).await;
        } else {
            ledger.run_all(&runner).await;
            assert_eq!(ledger.run_state(&run_id).await, RunState::Running);
            pay(&ledger, invoice).await;
            ledger.run_all(&runner).await;
        }
        assert_paid(&ledger, &run_id, invoice).await;
    }
    for invoice in IN_ORDER..IN_ORDER + AT_ONCE {
        let run_id = ledger.start_run("payment", json!(invoice)).await;
        tokio::join!(visit_next(&ledger, &runner), pay(&ledger, invoice));
        ledger.run_all(&runner).await;
        assert_paid(&ledger, &run_id, invoice).await;
    }
    let sent = ledger.stage.runs.sent_events(&name(TENANT), "payment.received", 100, None).await.unwrap();
    assert!(sent.items.iter().all(|sent| sent.consumed_count == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_and_an_event_at_once_have_one_outcome() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("payment", "1", payment));
    let (mut paid, mut late, mut last) = (0, 0, None);
    for invoice in 0..TIMED_OUT {
        let run_id = ledger.start_run("payment", json!(invoice)).await;
        ledger.run_all(&runner).await;
        ledger.advance(3_600_000);
        ledger.stage.run_sweep.sweep_runs().await.unwrap();
        tokio::join!(visit_next(&ledger, &runner), pay(&ledger, invoice));
        ledger.run_all(&runner).await;
        let run = ledger.run(&run_id).await.view;
        let log = ledger.log(&run_id).await;
        let outcomes: Vec<_> =
            log.iter().filter(|event| event.event_type == RunEventType::WaitCompleted).collect();
        assert_eq!(outcomes.len(), 1);
        match outcomes[0].event_data["outcome"].as_str() {
            Some("event") => {
                paid += 1;
                assert_eq!(run.run.output, Some(json!({ "paid": invoice })));
            }
            Some("timeout") => {
                late += 1;
                assert_eq!(run.run.output, Some(json!("too late")));
            }
            other => panic!("{other:?}"),
        }
        last = Some(run_id);
    }
    ledger.assert_told(&last.unwrap()).await;
    println!("{paid} by the event, {late} by the timeout");
}

async fn three(ctx: Ctx, _: ()) -> Result<Vec<Value>, Error> {
    let mut had = Vec::new();
    for _ in 0..3 {
        had.push(ctx.wait_for_event("tick").matching(json!({ "clock": "wall" })).await?.data);
    }
    Ok(had)
}

#[tokio::test]
async fn a_loop_of_waits_never_gets_the_same_event_twice() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("three", "1", three));
    let tick = |number: u64| send(&ledger, "tick", json!(number), json!({ "clock": "wall", "n": number }));

    let waiting = ledger.start_run("three", json!(null)).await;
    ledger.run_all(&runner).await;
    for number in 1..=3 {
        assert_eq!(ledger.run_state(&waiting).await, RunState::Running);
        ledger.advance(10);
        tick(number).await;
        ledger.run_all(&runner).await;
    }
    assert_eq!(ledger.run(&waiting).await.view.run.output, Some(json!([1, 2, 3])));

    // One that comes later finds them all, the oldest first.
    let late = ledger.start_run("three", json!(null)).await;
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&late).await.view.run.output, Some(json!([1, 2, 3])));
    let sent = ledger.stage.runs.sent_events(&name(TENANT), "tick", 10, None).await.unwrap();
    assert!(sent.items.iter().all(|sent| sent.consumed_count == 2));
}

async fn race(ctx: Ctx, _: ()) -> Result<usize, Error> {
    let hook = ctx.hook().await?;
    let (winner, _) = first([
        ctx.wait_for_event("never").timeout(Duration::from_secs(500)).map(drop).boxed(),
        ctx.wait_for_event("soon").matching(json!({ "a": [1] })).map(drop).boxed(),
        ctx.sleep(Duration::from_secs(300)).map(drop).boxed(),
        hook.next::<Value>().map(drop).boxed(),
    ])
    .await;
    ctx.sleep(Duration::from_secs(60)).await?;
    Ok(winner)
}

/// The keys of the open waits and timers of all runs.
async fn waiting_rows(ledger: &Ledger) -> Vec<String> {
    let rows = scan(&ledger.store.clients, &ledger.store.names.control_table).await;
    let key = |name: &str, row: &ledgerline_test_support::Item| row[name].as_s().unwrap().clone();
    let keys = rows.iter().map(|row| (key("PK", row), key("SK", row)));
    let open = keys.filter(|(pk, sk)| pk.starts_with("WAITERS#") || sk.starts_with("TIMER#"));
    open.map(|(pk, sk)| format!("{pk} {sk}")).collect()
}

#[tokio::test]
async fn the_losers_of_a_race_leave_no_open_wait() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("race", "1", race));
    let run_id = ledger.start_run("race", json!(null)).await;
    ledger.run_all(&runner).await;
    assert_eq!(waiting_rows(&ledger).await.len(), 3);

    send(&ledger, "soon", json!(1), json!({ "a": [2, 1.0] })).await;
    ledger.run_all(&runner).await;
    let open = waiting_rows(&ledger).await;
    assert_eq!(open.len(), 1, "only the sleep after the race: {open:?}");
    let log = ledger.log(&run_id).await;
    let abandoned = log.iter().filter(|event| event.event_data.get("outcome") == Some(&json!("abandoned")));
    assert_eq!(abandoned.count(), 2);

    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Completed);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(1)));
    assert!(waiting_rows(&ledger).await.is_empty());
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_cancelled_run_ends_and_its_hooks_are_gone() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("race", "1", race));
    let run_id = ledger.start_run("race", json!(null)).await;
    ledger.run_all(&runner).await;
    let token = ledger.run(&run_id).await.view.hooks[0].token.clone();

    ledger.stage.runs.cancel_run(&name(TENANT), &run_id, Some("no longer needed")).await.unwrap();

    ledger.run_all(&runner).await;
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.state, RunState::Cancelled);
    assert_eq!(run.run.reason.as_deref(), Some("no longer needed"));
    assert!(waiting_rows(&ledger).await.is_empty());
    let answer = ledger.stage.hooks.receive_by_hook(None, &token, json!(1)).await.unwrap();
    assert_eq!(answer, ledgerline_runs::HookAnswer::Gone);
    let again = ledger.stage.runs.cancel_run(&name(TENANT), &run_id, None).await.unwrap_err();
    assert!(again.to_string().contains("cancelled"), "{again}");
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn an_event_that_a_run_sends_wakes_another_run_once() {
    async fn ping(ctx: Ctx, to: String) -> Result<Value, Error> {
        ctx.send_event("ping").data(json!({ "from": "ping" })).matching(json!({ "to": to })).await?;
        Ok(ctx.wait_for_event("pong").matching(json!({ "to": "ping" })).await?.data)
    }
    async fn pong(ctx: Ctx, me: String) -> Result<Value, Error> {
        let ping = ctx.wait_for_event("ping").matching(json!({ "to": me })).await?;
        ctx.send_event("pong").data(ping.data.clone()).matching(json!({ "to": "ping" })).await?;
        Ok(ping.data)
    }
    let ledger = Ledger::on_one_clock(None).await;
    let workflows = Workflows::new().register("ping", "1", ping).register("pong", "1", pong);
    let runner = ledger.runner(workflows);
    let (one, two) = (ledger.start_run("pong", json!("x")).await, ledger.start_run("ping", json!("x")).await);
    ledger.run_all(&runner).await;
    for run_id in [&one, &two] {
        assert_eq!(ledger.run(run_id).await.view.run.output, Some(json!({ "from": "ping" })));
        ledger.assert_told(run_id).await;
    }
    let sent = ledger.stage.runs.sent_events(&name(TENANT), "ping", 10, None).await.unwrap();
    assert_eq!(sent.items.len(), 1);
    let sent = &sent.items[0];
    assert_eq!((sent.event.source_type.as_str(), sent.consumed_count), ("workflow", 1));
    assert_eq!(sent.event.source_instance_id.as_ref(), Some(&two));
    assert_eq!(ledger.events(TENANT, "ping").await.len(), 1, "it is an ordinary event, too");
}

#[tokio::test]
async fn an_event_from_before_the_since_of_a_wait_wakes_no_run() {
    let ledger = Ledger::on_one_clock(None).await;
    let opens_at = ledger.now().plus(10_000);
    let bids = move |ctx: Ctx, _: Value| async move {
        Ok::<_, Error>(ctx.wait_for_event("bid").since(opens_at).await?.data)
    };
    let runner = ledger.runner(Workflows::new().register("auction", "1", bids));
    send(&ledger, "bid", json!("before the wait"), json!({})).await;
    let run_id = ledger.start_run("auction", Value::Null).await;
    ledger.run_all(&runner).await;
    send(&ledger, "bid", json!("after the wait, and too early"), json!({})).await;
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run_state(&run_id).await, RunState::Running);
    ledger.advance(10_000);
    send(&ledger, "bid", json!("in time"), json!({})).await;
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!("in time")));
}
