//! The end of a run that has more open than one entry closes: whenever the process dies, the run ends.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use futures::future::join_all;
use ledgerline_embedded::{Interceptor, Moment, Verdict};
use ledgerline_event::RunState;
use ledgerline_workflow::{Ctx, Error, Visited, Workflows};
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, TENANT, another_process, name};

/// More than one entry closes, and more than two do.
const OPEN: usize = 200;
/// The same for a run whose events are appended one by one.
const OPEN_EXTERNAL: usize = 100;

/// Lets so many transactions through, and nothing after that: the process is dead. Below zero it lives.
fn mortal(left: &Arc<AtomicI64>) -> Interceptor {
    let left = left.clone();
    Arc::new(move |call, moment| {
        let dead = match (moment, call.operation.as_str()) {
            (Moment::Before, "TransactWriteItems") if left.load(Ordering::SeqCst) > 0 => {
                left.fetch_sub(1, Ordering::SeqCst);
                false
            }
            (Moment::Before, "GetItem" | "Query") => false,
            (Moment::Before, _) => left.load(Ordering::SeqCst) == 0,
            (Moment::After { .. }, _) => false,
        };
        Box::pin(async move {
            match dead {
                true => Verdict::Fail { status: 500, code: "InternalServerError".into() },
                false => Verdict::Proceed,
            }
        })
    })
}

/// Waits for many events at once; with `ends` it returns all the same.
fn many_waits() -> Workflows {
    Workflows::new().register("many", "1", |ctx: Ctx, ends: bool| async move {
        let waits: Vec<_> =
            (0..OPEN).map(|n| ctx.wait_for_event("never").matching(json!({ "n": n }))).collect();
        let waiting = join_all(waits);
        match ends {
            false => drop(waiting.await),
            true => {
                let waiting = std::pin::pin!(waiting);
                let sleep = std::pin::pin!(ctx.sleep(std::time::Duration::from_secs(1)));
                let _ = futures::future::select(waiting, sleep).await;
            }
        }
        Ok::<_, Error>("x".repeat(60_000))
    })
}

async fn open_waits(ledger: &Ledger, run_id: &str) -> usize {
    let run = ledger.run(run_id).await.view;
    run.waits.iter().filter(|wait| !wait.state.is_terminal()).count()
}

async fn external_run(ledger: &Ledger, run_id: &str) {
    let emitter = ledger.emitter(TENANT);
    let mut events = vec![
        json!({"eventType": "run_created", "eventData": {"workflowName": "w", "input": {}}}),
        json!({"eventType": "run_started"}),
    ];
    events.extend((0..OPEN_EXTERNAL).map(|n| {
        let id = format!("wait_01M7J3H2F8R3VED7N46ETP2{n:03}");
        let data = json!({"eventName": "never", "matchCriteria": {"n": n}});
        json!({"eventType": "wait_created", "correlationId": id, "eventData": data})
    }));
    for event in events {
        let event = serde_json::from_value(event).unwrap();
        ledger.stage.external_runs.append_external(&emitter, run_id, event).await.unwrap();
    }
}

#[tokio::test]
async fn a_cancelled_run_ends_though_the_process_dies_between_two_entries() {
    for external in [false, true] {
        let all = if external { OPEN_EXTERNAL } else { OPEN };
        for entries in if external { 1..=1 } else { 1..=2 } {
            let left = Arc::new(AtomicI64::new(-1));
            let ledger = Ledger::on_one_clock(Some(mortal(&left))).await;
            let runner = ledger.runner(many_waits());
            let run_id = match external {
                true => {
                    external_run(&ledger, "r").await;
                    name("r")
                }
                false => {
                    let run_id = ledger.start_run("many", json!(false)).await;
                    assert_eq!(ledger.run_all(&runner).await, [Visited::Suspended]);
                    run_id
                }
            };
            assert_eq!(open_waits(&ledger, &run_id).await, all);
            left.store(entries, Ordering::SeqCst);
            let cancelled = ledger.stage.runs.cancel_run(&name(TENANT), &run_id, Some("no more")).await;
            assert!(cancelled.is_err(), "{cancelled:?}");
            left.store(-1, Ordering::SeqCst);
            let open = open_waits(&ledger, &run_id).await;
            assert!(open > 0 && open < all, "{open}");
            assert_eq!(ledger.run_state(&run_id).await, RunState::Running);

            // The next process ends it: the sweep with a runner, or for one that is executed elsewhere by itself.
            ledger.advance(61_000);
            another_process(&ledger).await.run_sweep.sweep_runs().await.unwrap();
            ledger.run_all(&runner).await;
            let run = ledger.run(&run_id).await.view.run.into_owned();
            assert_eq!(
                (run.state, run.reason.as_deref()),
                (RunState::Cancelled, Some("no more")),
                "{external}"
            );
            assert_eq!(open_waits(&ledger, &run_id).await, 0);
            ledger.assert_told(&run_id).await;
            let error = ledger.stage.runs.cancel_run(&name(TENANT), &run_id, None).await.unwrap_err();
            assert!(error.to_string().contains("final"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_cancellation_that_is_repeated_finishes_the_first_one() {
    let left = Arc::new(AtomicI64::new(-1));
    let ledger = Ledger::on_one_clock(Some(mortal(&left))).await;
    external_run(&ledger, "r").await;
    left.store(1, Ordering::SeqCst);
    assert!(ledger.stage.runs.cancel_run(&name(TENANT), "r", Some("first")).await.is_err());
    left.store(-1, Ordering::SeqCst);
    let run = ledger.stage.runs.cancel_run(&name(TENANT), "r", Some("second")).await.unwrap();
    assert_eq!(run.state, RunState::Cancelled);
    assert_eq!(ledger.run("r").await.view.run.reason.as_deref(), Some("first"));
}

#[tokio::test]
async fn a_run_that_ends_by_itself_with_much_open_keeps_its_output_though_its_runner_dies() {
    let left = Arc::new(AtomicI64::new(-1));
    let ledger = Ledger::on_one_clock(Some(mortal(&left))).await;
    let runner = ledger.runner(many_waits());
    let run_id = ledger.start_run("many", json!(true)).await;
    assert_eq!(ledger.run_all(&runner).await, [Visited::Suspended]);
    ledger.advance(2_000);
    // The sleep is over in one entry, and the closing of what is open begins in the next.
    left.store(2, Ordering::SeqCst);
    let message = ledger.next_run().unwrap();
    let message = ledgerline_runs::RunMessage::parse(&message.body).unwrap();
    let visited = runner.visit(&message, None).await;
    assert!(visited.is_err(), "{visited:?}");
    left.store(-1, Ordering::SeqCst);
    let open = open_waits(&ledger, &run_id).await;
    assert!(open > 0 && open < OPEN, "{open}");

    // Even a runner without the workflow can finish what was decided.
    ledger.advance(200_000);
    ledger.stage.run_sweep.sweep_runs().await.unwrap();
    let without: Workflows =
        Workflows::new().register("other", "1", |_: Ctx, (): ()| async { Ok::<_, Error>(()) });
    ledger.run_all(&ledger.runner(without)).await;
    let run = ledger.run(&run_id).await.view.run.into_owned();
    assert_eq!((run.state, run.output), (RunState::Completed, Some(Value::from("x".repeat(60_000)))));
    assert_eq!(open_waits(&ledger, &run_id).await, 0);
    ledger.assert_told(&run_id).await;
}
