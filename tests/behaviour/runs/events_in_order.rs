//! Events reach the waits of a run in the order in which they were accepted, and none is lost to a wait that the code
//! has dropped.

use std::time::Duration;

use fastrand::Rng;
use futures::{FutureExt, future::join_all};
use ledgerline_event::{RunEventType, RunState};
use ledgerline_ledger::Emitter;
use ledgerline_runs::EventSubmission;
use ledgerline_stage::Stage;
use ledgerline_workflow::{Ctx, Error, Workflows, first};
use serde_json::{Value, json};

use ledgerline_test_support::{
    Ledger, TENANT, another_process, name,
    previous_version::{OldEvent, OldSender},
    seeds,
};

const BASKETS: usize = 40;
const IN_A_ROW: usize = 150;
const HOUR_MS: u64 = 3_600_000;

async fn send(stage: &Stage, emitter: &Emitter, event: &str, data: Value, matched: Value) {
    let event: EventSubmission =
        serde_json::from_value(json!({ "event": event, "data": data, "match": matched })).unwrap();
    stage.events.send_event(emitter, event, None).await.unwrap();
}

async fn basket(ctx: Ctx, number: usize) -> Result<Vec<String>, Error> {
    let mut had = Vec::new();
    while had.len() < 2 {
        let waits = ["basket.added", "basket.checkout"].map(|name| {
            let wait = ctx.wait_for_event(name).matching(json!({ "basket": number }));
            wait.map(|event| event.map(|event| event.event_name)).boxed()
        });
        had.push(first(waits).await.1?);
    }
    Ok(had)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_two_names_in_quick_succession_both_reach_a_loop_that_waits_for_either() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("basket", "1", basket));
    let mut runs = Vec::new();
    for number in 0..BASKETS {
        runs.push(ledger.start_run("basket", json!(number)).await);
    }
    ledger.run_all(&runner).await;
    let emitter = ledger.emitter(TENANT);
    for number in 0..BASKETS {
        let matched = json!({ "basket": number });
        let one = send(&ledger.stage, &emitter, "basket.added", json!(1), matched.clone());
        let two = send(&ledger.stage, &emitter, "basket.checkout", json!(2), matched.clone());
        tokio::join!(one, two);
    }
    ledger.run_all(&runner).await;
    for run_id in runs {
        let run = ledger.run(&run_id).await.view;
        assert_eq!(run.run.state, RunState::Completed, "{run:?}");
        ledger.assert_told(&run_id).await;
    }
}

/// A sender of a version before 0.1.0 completes both waits at once.
#[tokio::test]
async fn an_event_that_an_old_sender_gave_to_a_dropped_wait_is_handed_over() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("basket", "1", basket));
    let run_id = ledger.start_run("basket", json!(7)).await;
    ledger.run_all(&runner).await;
    let store = &ledger.store;
    let queue = store.clients.sqs.get_queue_url().queue_name(&store.names.run_queue).send().await.unwrap();
    let sender = OldSender::new(&store.clients, &store.names, queue.queue_url().unwrap());
    for event_name in ["basket.added", "basket.checkout"] {
        let event = OldEvent {
            tenant: TENANT.into(),
            event_name: event_name.into(),
            event_id: format!("evnt_{event_name}"),
            data: json!(1),
            matching: json!({ "basket": 7 }),
            timestamp: ledger.now(),
        };
        sender.send(&event).await.unwrap();
    }
    ledger.run_all(&runner).await;
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.output, Some(json!(["basket.added", "basket.checkout"])), "{run:?}");
    let handed = run.waits.iter().filter(|wait| wait.handed_over_from.is_some()).count();
    assert_eq!(handed, 1);
    for event in ["basket.added", "basket.checkout"] {
        let sent = ledger.stage.runs.sent_events(&name(TENANT), event, 10, None).await.unwrap();
        assert_eq!(sent.items[0].consumed_count, 1, "a run counts once");
    }
    ledger.assert_told(&run_id).await;
}

async fn ticks(ctx: Ctx, count: usize) -> Result<Vec<Value>, Error> {
    let mut had = Vec::new();
    while had.len() < count {
        had.push(ctx.wait_for_event("tick").matching(json!({ "clock": "wall" })).await?.data);
    }
    Ok(had)
}

/// Two senders whose clocks differ take turns; the run is visited while they send.
async fn in_a_row(skew_ms: i64, settled: bool) {
    let ledger = Ledger::on_one_clock(None).await;
    if settled {
        send(&ledger.stage, &ledger.emitter(TENANT), "first", json!(0), json!({})).await;
        ledger.advance(HOUR_MS);
    }
    let runner = ledger.runner(Workflows::new().register("ticks", "1", ticks));
    let run_id = ledger.start_run("ticks", json!(IN_A_ROW)).await;
    ledger.run_all(&runner).await;
    let (other, clock) = (another_process(&ledger).await, ledger.clock());
    let skewed = std::sync::Arc::new(move || {
        ledgerline_test_support::at(clock().get().saturating_add_signed(skew_ms))
    });
    let store = &ledger.store;
    let slow = Emitter::with_clock(&store.clients, &store.names, name(TENANT), name("shop"), skewed);
    let right = ledger.emitter(TENANT);
    let sends = async {
        for number in 0..IN_A_ROW {
            let matched = json!({ "clock": "wall", "n": number });
            match number % 2 {
                0 => send(&ledger.stage, &right, "tick", json!(number), matched).await,
                _ => send(&other, &slow, "tick", json!(number), matched).await,
            }
            ledger.advance(1);
        }
    };
    let visits = async {
        while ledger.run_state(&run_id).await == RunState::Running {
            ledger.run_all(&runner).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(sends, visits);
    let expected: Vec<usize> = (0..IN_A_ROW).collect();
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(expected)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_of_waits_gets_events_in_the_order_in_which_they_were_accepted() {
    Box::pin(in_a_row(0, false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_does_not_depend_on_the_clocks_of_the_senders() {
    Box::pin(in_a_row(-30_000, true)).await;
}

#[tokio::test]
async fn an_answer_of_a_sender_with_a_slow_clock_is_not_missed() {
    async fn ask(ctx: Ctx, _: Value) -> Result<Value, Error> {
        let asked_at = ctx.now();
        ctx.step("ask", || async { Ok::<_, Error>(()) }).await?;
        ctx.sleep(Duration::from_secs(60)).await?;
        Ok(ctx.wait_for_event("answer").since(asked_at).timeout(Duration::from_secs(60)).await?.data)
    }
    let ledger = Ledger::on_one_clock(None).await;
    let slow_clock = ledger.clock();
    let slow = std::sync::Arc::new(move || slow_clock().minus(600_000));
    let store = &ledger.store;
    let slow = Emitter::with_clock(&store.clients, &store.names, name(TENANT), name("shop"), slow);
    send(&ledger.stage, &ledger.emitter(TENANT), "answer", json!("of yesterday"), json!({})).await;
    ledger.advance(24 * HOUR_MS);
    let runner = ledger.runner(Workflows::new().register("ask", "1", ask));
    let run_id = ledger.start_run("ask", json!(null)).await;
    ledger.run_all(&runner).await;
    // The question is out, and the run does not wait yet.
    send(&ledger.stage, &slow, "answer", json!("yes"), json!({})).await;
    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Completed);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!("yes")));
}

#[tokio::test]
async fn an_event_that_was_accepted_before_the_timeout_is_recorded_is_not_too_late() {
    let ledger = Ledger::on_one_clock(None).await;
    let code = |ctx: Ctx, _: Value| async move {
        let wait = ctx.wait_for_event("late").timeout(Duration::from_secs(60));
        Ok::<_, Error>(wait.await.map_or(json!("too late"), |event| event.data))
    };
    let runner = ledger.runner(Workflows::new().register("late", "1", code));
    let run_id = ledger.start_run("late", json!(null)).await;
    ledger.run_all(&runner).await;
    ledger.advance(61_000);
    send(&ledger.stage, &ledger.emitter(TENANT), "late", json!("just in time"), json!({})).await;
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!("just in time")));
}

/// How many ends of waits, hooks and timers a race has seen.
#[derive(Clone, Copy)]
struct Race {
    waits: usize,
    hooks: usize,
    timers: usize,
}

async fn race(
    ctx: Ctx,
    (waits, hooks, timers, count): (usize, usize, usize, usize),
) -> Result<Vec<Value>, Error> {
    let mut had = Vec::new();
    while had.len() < count {
        let mut branches = Vec::new();
        for n in 0..waits {
            let wait = ctx.wait_for_event(format!("race.{n}"));
            branches.push(wait.map(|event| event.map(|event| Some(event.data))).boxed());
        }
        for n in 0..hooks {
            let ctx = &ctx;
            let payload = async move { ctx.hook().token(format!("race-{n}")).await?.next::<Value>().await };
            branches.push(payload.map(|payload| payload.map(Some)).boxed());
        }
        for n in 1..=timers {
            let ms = 500 * u64::try_from(n).unwrap_or(1);
            branches.push(ctx.sleep(Duration::from_millis(ms)).map(|slept| slept.map(|()| None)).boxed());
        }
        had.extend(first(branches).await.1?);
    }
    Ok(had)
}

/// Two to four waits, hooks and timers at once, and everything that comes for them at random moments, also while the run
/// is visited: nothing is lost, and nothing comes twice.
#[tokio::test]
async fn every_event_that_reaches_a_race_of_waits_is_received_once() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("race", "1", race));
    let wanted: Option<u64> = std::env::var("LEDGERLINE_HISTORIES").ok().and_then(|count| count.parse().ok());
    for (number, seed) in seeds(wanted.unwrap_or(500).div_ceil(5)).into_iter().enumerate() {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let (hooks, timers) = (random.usize(..2), random.usize(..2));
        // Two to four at once, of which one is a wait at least.
        let waits = random.usize(if hooks + timers == 0 { 2 } else { 1 }..=4 - hooks - timers);
        let shape = Race { waits, hooks, timers };
        Box::pin(one_race(&ledger, &runner, &mut random, number, shape)).await;
    }
}

async fn one_race(
    ledger: &Ledger,
    runner: &ledgerline_workflow::Runner,
    random: &mut Rng,
    number: usize,
    Race { waits, hooks, timers }: Race,
) {
    let tenant = format!("tenant-{number}");
    let emitter = ledger.emitter(&tenant);
    let count = random.usize(2..6);
    let run = json!({ "workflow": "race", "input": [waits, hooks, timers, count] });
    let run = ledger.stage.runs.start_run(&emitter, serde_json::from_value(run).unwrap()).await.unwrap();
    let visits = || async {
        for visited in ledger.run_all(runner).await {
            assert!(!matches!(visited, ledgerline_workflow::Visited::RetryScheduled(_)), "{visited:?}");
        }
    };
    let mut sent: Vec<Value> = Vec::new();
    let mut posts = Vec::new();
    for n in 0..count {
        if random.bool() {
            visits().await;
        }
        ledger.advance(random.u64(..700));
        let data = json!(n);
        let target = random.usize(..waits + hooks);
        if target < waits {
            let event = format!("race.{target}");
            let sending = send(&ledger.stage, &emitter, &event, data.clone(), json!({}));
            match random.bool() {
                true => sending.await,
                false => drop(tokio::join!(sending, visits())),
            }
            sent.push(data);
        } else {
            posts.push((format!("race-{}", target - waits), data));
        }
    }
    let tenant = name(&tenant);
    let is_running = || async {
        ledger.stage.runs.logs.known_run(&tenant, &run.run_id).await.unwrap().state == RunState::Running
    };
    for round in 0..200 {
        visits().await;
        if round > 0 && !is_running().await {
            break;
        }
        // A hook takes payloads while it is there.
        let mut left = Vec::new();
        for (token, data) in posts {
            match ledger.stage.hooks.receive_by_hook(Some(&tenant), &token, data.clone()).await.unwrap() {
                ledgerline_runs::HookAnswer::Received { .. } => sent.push(data),
                _ => left.push((token, data)),
            }
        }
        posts = left;
        ledger.advance(random.u64(1..2_000));
        ledger.stage.run_sweep.sweep_runs().await.unwrap();
    }
    let details = ledger.stage.runs.run(&tenant, &run.run_id).await.unwrap();
    let Some(Value::Array(mut had)) = details.view.run.output.clone() else {
        panic!("{waits} waits, {hooks} hooks, {timers} timers, {sent:?} came: {details:#?}")
    };
    had.sort_by_key(Value::as_u64);
    assert_eq!(had, (0..count).map(|n| json!(n)).collect::<Vec<_>>());
    let log = ledger.stage.runs.run_events(&tenant, &run.run_id).await.unwrap();
    assert_eq!(log.iter().filter(|event| event.event_type == RunEventType::RunCompleted).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_are_sent_at_once_have_places_of_their_own() {
    let ledger = Ledger::on_one_clock(None).await;
    let emitter = ledger.emitter(TENANT);
    let sends = (0..20).map(|n| send(&ledger.stage, &emitter, "burst", json!(n), json!({ "n": n })));
    join_all(sends).await;
    let sent = ledger.stage.runs.sent_events(&name(TENANT), "burst", 100, None).await.unwrap();
    let mut numbers: Vec<u64> = sent.items.iter().map(|sent| sent.event.data.as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}
