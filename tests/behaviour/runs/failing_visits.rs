//! Runs whose visits fail: what is large is written all the same, what cannot be written ends the run, and messages for a run
//! do not multiply.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures::future::join_all;
use ledgerline_embedded::{Interceptor, Moment, Verdict};
use ledgerline_event::RunState;
use ledgerline_runs::RunRecord;
use ledgerline_store::{Item, keys};
use ledgerline_workflow::{Ctx, Error, Visited, Workflows};
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, TENANT, scan};

/// How often each step was executed.
type Executed = Arc<Mutex<BTreeMap<String, usize>>>;

/// A workflow whose steps, side by side, each give `result`.
fn side_by_side(steps: usize, result: Value, executed: &Executed) -> Workflows {
    let executed = executed.clone();
    Workflows::new().register("side_by_side", "1", move |ctx: Ctx, _: Value| {
        let (result, executed) = (result.clone(), executed.clone());
        async move {
            let steps = (0..steps).map(|n| {
                let (name, result, executed) = (format!("step {n}"), result.clone(), executed.clone());
                ctx.step(name.clone(), move || {
                    let (name, result, executed) = (name.clone(), result.clone(), executed.clone());
                    async move {
                        *executed.lock().unwrap().entry(name).or_default() += 1;
                        Ok::<_, Error>(result)
                    }
                })
            });
            let results = join_all(steps.collect::<Vec<_>>()).await;
            Ok::<_, Error>(results.into_iter().filter(Result::is_ok).count())
        }
    })
}

/// As JSON each quote is two bytes, and a control character six.
#[tokio::test]
async fn steps_with_large_results_are_executed_once_whatever_characters_they_have() {
    for (steps, result) in [
        (8, json!("\"".repeat(48_000))),
        (12, json!("\u{1}".repeat(8_000))),
        (12, json!({ "rows": vec!["\\\"\n"; 4_000] })),
        (2, json!("ä".repeat(200_000))),
    ] {
        let ledger = Ledger::on_one_clock(None).await;
        let executed = Executed::default();
        let runner = ledger.runner(side_by_side(steps, result.clone(), &executed));
        let run_id = ledger.start_run("side_by_side", Value::Null).await;
        assert_eq!(ledger.run_all(&runner).await, [Visited::Ended], "{steps}");
        let run = ledger.run(&run_id).await.view;
        assert_eq!((run.run.state, run.run.output.clone()), (RunState::Completed, Some(json!(steps))));
        assert!(run.steps.iter().all(|step| step.result.as_ref() == Some(&result)));
        let executed = executed.lock().unwrap();
        assert!(executed.len() == steps && executed.values().all(|times| *times == 1), "{executed:?}");
    }
}

/// Rejects every entry that has `word`, as a table does that cannot hold it.
fn rejecting(word: &'static str, rejected: &Arc<AtomicUsize>) -> Interceptor {
    let rejected = rejected.clone();
    Arc::new(move |call, moment| {
        let writes = matches!(call.operation.as_str(), "PutItem" | "TransactWriteItems");
        let has_word = String::from_utf8_lossy(&call.body).contains(word);
        let refused = moment == Moment::Before && writes && has_word;
        rejected.fetch_add(usize::from(refused), Ordering::SeqCst);
        Box::pin(async move {
            match refused {
                true => Verdict::Fail { status: 400, code: "ValidationException".into() },
                false => Verdict::Proceed,
            }
        })
    })
}

#[tokio::test]
async fn a_run_that_cannot_be_written_fails_with_the_reason_and_its_messages_do_not_multiply() {
    let rejected = Arc::new(AtomicUsize::new(0));
    let ledger = Ledger::on_one_clock(Some(rejecting("unholdable", &rejected))).await;
    let executed = Executed::default();
    let runner = ledger.runner(side_by_side(1, json!("unholdable"), &executed));
    let run_id = ledger.start_run("side_by_side", Value::Null).await;
    let record = async || -> RunRecord {
        let found = ledger.store.control().get(&keys::run(TENANT, &run_id)).await.unwrap();
        found.unwrap()
    };
    let (mut visits, mut pauses) = (0, Vec::new());
    while !ledger.run_state(&run_id).await.is_terminal() {
        let visited = ledger.run_all(&runner).await;
        assert!(visited.len() <= 1, "one message each time: {visited:?}");
        visits += visited.len();
        if let Some(Visited::RetryScheduled(reason)) = visited.first() {
            assert!(reason.contains("ValidationException"), "{reason}");
            pauses.push(record().await.alarm_at().unwrap().get() - ledger.now().get());
        }
        // The sweep comes often, also just before the next visit, and finds that a message is on its way.
        ledger.advance(5_000);
        ledger.stage.run_sweep.sweep_runs().await.unwrap();
        assert!(
            ledger.now().get() < ledgerline_test_support::BEGIN + 3_600_000,
            "it goes on and on: {:?}",
            record().await
        );
    }
    assert_eq!(pauses, [5_000, 10_000, 20_000, 40_000, 80_000]);
    assert_eq!(visits, 6);
    assert_eq!(executed.lock().unwrap()["step 0"], 5);
    let run = ledger.run(&run_id).await.view.run.into_owned();
    assert_eq!((run.state, run.error_code.as_deref()), (RunState::Failed, Some("rejected")));
    assert!(run.error.unwrap().contains("ValidationException"));
    ledger.assert_told(&run_id).await;
    assert!(ledger.run_all(&runner).await.is_empty(), "nothing is left in the queue");
}

#[tokio::test]
async fn an_outage_of_the_bus_ends_no_run_however_long_it_lasts() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let interceptor: Interceptor = Arc::new(move |call, moment| {
        let is_told = moment == Moment::Before && call.operation == "PutEvents";
        let fails = is_down.load(Ordering::SeqCst) && is_told;
        Box::pin(async move {
            match fails {
                true => Verdict::Fail { status: 503, code: "ServiceUnavailable".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::on_one_clock(Some(interceptor)).await;
    let code = |ctx: Ctx, _: Value| async move { Ok::<_, Error>(ctx.wait_for_event("go").await?.data) };
    let runner = ledger.runner(Workflows::new().register("waits", "1", code));
    let run_id = ledger.start_run("waits", Value::Null).await;
    down.store(true, Ordering::SeqCst);
    for _ in 0..12 {
        let visited = ledger.run_all(&runner).await;
        assert!(matches!(visited[..], [Visited::RetryScheduled(_)]), "{visited:?}");
        ledger.advance(300_000);
    }
    down.store(false, Ordering::SeqCst);
    ledger.run_all(&runner).await;
    let event = serde_json::from_value(json!({ "event": "go", "data": 1 })).unwrap();
    ledger.stage.events.send_event(&ledger.emitter(TENANT), event, None).await.unwrap();
    assert_eq!(ledger.run_all(&runner).await, [Visited::Ended]);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(1)));
}

#[tokio::test]
async fn a_failed_visit_enqueues_no_message_while_one_for_a_timer_is_under_way() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let interceptor: Interceptor = Arc::new(move |call, moment| {
        let is_told = moment == Moment::Before && call.operation == "PutEvents";
        let is_of_run = String::from_utf8_lossy(&call.body).contains("wait_completed");
        let fails = is_down.load(Ordering::SeqCst) && is_told && is_of_run;
        Box::pin(async move {
            match fails {
                true => Verdict::Fail { status: 503, code: "ServiceUnavailable".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::on_one_clock(Some(interceptor)).await;
    let code = |ctx: Ctx, _: Value| async move {
        let event = ctx.wait_for_event("go");
        let (event, slept) = futures::join!(event, ctx.sleep(std::time::Duration::from_secs(4)));
        event.and(slept)
    };
    let runner = ledger.runner(Workflows::new().register("both", "1", code));
    let run_id = ledger.start_run("both", Value::Null).await;
    assert_eq!(ledger.run_all(&runner).await, [Visited::Suspended]);
    down.store(true, Ordering::SeqCst);
    let event = serde_json::from_value(json!({ "event": "go" })).unwrap();
    ledger.stage.events.send_event(&ledger.emitter(TENANT), event, None).await.unwrap();
    let visited = ledger.run_all(&runner).await;
    assert!(matches!(visited[..], [Visited::RetryScheduled(_)]), "{visited:?}");
    down.store(false, Ordering::SeqCst);
    ledger.advance(10_000);
    assert_eq!(ledger.run_all(&runner).await, [Visited::Ended], "one message, that of the timer");
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

#[tokio::test]
async fn a_visit_that_fails_for_a_while_is_repeated_by_one_message_and_then_goes_on() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let interceptor: Interceptor = Arc::new(move |call, moment| {
        let fails =
            is_down.load(Ordering::SeqCst) && moment == Moment::Before && call.operation == "PutEvents";
        Box::pin(async move {
            match fails {
                true => Verdict::Fail { status: 503, code: "ServiceUnavailable".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::on_one_clock(Some(interceptor)).await;
    let executed = Executed::default();
    let runner = ledger.runner(side_by_side(3, json!(1), &executed));
    let run_id = ledger.start_run("side_by_side", Value::Null).await;
    down.store(true, Ordering::SeqCst);
    for _ in 0..200 {
        let visited = ledger.run_all(&runner).await;
        assert!(
            visited.len() <= 1 && visited.iter().all(|visited| matches!(visited, Visited::RetryScheduled(_)))
        );
        ledger.stage.run_sweep.sweep_runs().await.unwrap();
        ledger.advance(10_000);
    }
    let record: RunRecord = ledger.store.control().get(&keys::run(TENANT, &run_id)).await.unwrap().unwrap();
    assert!((9..=14).contains(&record.failed_visits()), "at most every five minutes: {record:?}");
    down.store(false, Ordering::SeqCst);
    ledger.advance(300_000);
    assert_eq!(ledger.run_all(&runner).await, [Visited::Ended]);
    assert!(executed.lock().unwrap().values().all(|times| *times == 1), "the log has the steps");
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_refused_run_backs_off_to_five_minutes_and_is_woken_by_a_runner_that_has_its_version() {
    let ledger = Ledger::on_one_clock(None).await;
    let executed = Executed::default();
    let old = |ctx: Ctx, _: Value| async move { ctx.sleep(std::time::Duration::from_secs(1)).await };
    let first = ledger.runner(Workflows::new().register("side_by_side", "0", old));
    let run_id = ledger.start_run("side_by_side", Value::Null).await;
    assert_eq!(ledger.run_all(&first).await, [Visited::Suspended]);
    let other = ledger.runner(side_by_side(1, json!(1), &executed));
    other.publish().await.unwrap();
    let mut refusals = Vec::new();
    for _ in 0..400 {
        ledger.advance(5_000);
        ledger.stage.run_sweep.sweep_runs().await.unwrap();
        let visited = ledger.run_all(&other).await;
        if let Some(Visited::Refused(reason)) = visited.first() {
            assert!(reason.contains("began with version 0"), "{reason}");
            refusals.push(ledger.now().get());
        }
    }
    let pauses: Vec<u64> = refusals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.iter().all(|pause| *pause <= 305_000), "{pauses:?}");
    assert!(pauses.iter().filter(|pause| **pause >= 300_000).count() >= 3, "{pauses:?}");
    assert!(ledger.run_all(&other).await.is_empty());
    // One that does not have the version either wakes nothing; one that has it does, at once.
    other.publish().await.unwrap();
    assert!(ledger.next_run().is_none());
    first.publish().await.unwrap();
    assert_eq!(ledger.run_all(&first).await, [Visited::Ended]);
    first.publish().await.unwrap();
    assert!(ledger.next_run().is_none(), "it is woken once");
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

#[tokio::test]
async fn sweeps_that_never_have_time_for_all_runs_reach_each_of_them_in_turn() {
    const RUNS: usize = 260;
    let ledger = Ledger::on_one_clock(None).await;
    for _ in 0..RUNS {
        ledger.start_run("nobodys", Value::Null).await;
    }
    while ledger.next_run().is_some() {}
    ledger.advance(61_000);
    // A run that was swept has been told to the ledger.
    let unswept = async || {
        let rows = scan(&ledger.store.clients, &ledger.store.names.control_table).await;
        let is_run = |row: &&Item| row["SK"].as_s().is_ok_and(|sk| sk == keys::RUN);
        rows.iter()
            .filter(is_run)
            .filter(|row| row["emitted"].as_n().is_ok_and(|emitted| emitted == "0"))
            .count()
    };
    let (mut left, mut sweeps) = (unswept().await, 0);
    assert_eq!(left, RUNS);
    while left > 0 {
        // The deadline is over before it begins.
        let swept = ledger.stage.run_sweep.sweep_runs_until(tokio::time::Instant::now()).await.unwrap();
        assert!(swept.sent_again <= 130, "it stops in time: {swept:?}");
        sweeps += 1;
        assert!(sweeps < 30, "{left} are never swept");
        left = unswept().await;
    }
    assert!(sweeps >= 4, "{sweeps}");
}
