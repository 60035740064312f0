//! A runner that dies at any point of a run: before or after any of its requests to the services.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::{RunEventType, RunState};
use ledgerline_runs::RunMessage;
use ledgerline_workflow::{Ctx, Error, Workflows, all};
use serde_json::{Value, json};
use tokio::sync::Notify;

use ledgerline_test_support::{Ledger, TENANT, name};

/// Dies around the request with this number: an even one before it is carried out, an odd one before it is answered.
struct Death {
    at: AtomicUsize,
    seen: AtomicUsize,
    died: Notify,
}

const NEVER: usize = usize::MAX;

impl Death {
    fn interceptor(self: &Arc<Self>) -> Interceptor {
        let death = self.clone();
        Arc::new(move |_: Call, moment: Moment| {
            let death = death.clone();
            Box::pin(async move {
                if death.at.load(Ordering::SeqCst) == NEVER {
                    return Verdict::Proceed;
                }
                let request = death.seen.load(Ordering::SeqCst);
                let point = match moment {
                    Moment::Before => request * 2,
                    Moment::After { .. } => {
                        death.seen.fetch_add(1, Ordering::SeqCst);
                        request * 2 + 1
                    }
                };
                if point == death.at.load(Ordering::SeqCst) {
                    death.died.notify_one();
                    // The process that sent it is gone.
                    std::future::pending::<()>().await;
                }
                Verdict::Proceed
            })
        })
    }
}

/// What was executed, by the name of the step.
type Executed = Arc<Mutex<Vec<String>>>;

/// Steps one after the other and side by side, a retry, a sleep, a hook, an event, a task of another.
fn everything(executed: Executed) -> Workflows {
    let code = move |ctx: Ctx, order: String| {
        let executed = executed.clone();
        async move {
            let run = |step: &str| {
                let (executed, step) = (executed.clone(), step.to_owned());
                move || {
                    executed.lock().unwrap().push(step.clone());
                    let answer = format!("{step} done");
                    async move { Ok::<_, Error>(answer) }
                }
            };
            let reserved: String = ctx.step("reserve", run("reserve")).await?;
            let both = all([ctx.step("left", run("left")), ctx.step("right", run("right"))]).await;
            let hook = ctx.hook().metadata(json!({ "order": order })).await?;
            ctx.send_event("order.placed").matching(json!({ "order": order })).await?;
            let paid = ctx
                .wait_for_event("order.paid")
                .matching(json!({ "order": order }))
                .timeout(Duration::from_secs(3_600))
                .await?;
            let approved: bool = hook.next().await?;
            ctx.sleep(Duration::from_secs(5)).await?;
            let shipped: String = ctx.step("ship", run("ship")).await?;
            Ok::<Value, Error>(json!([reserved, both.is_ok(), paid.data, approved, shipped]))
        }
    };
    Workflows::new().register("everything", "1", code)
}

/// Lets the run go on until it ends; payments and approvals come as soon as it waits for them.
async fn to_the_end(ledger: &Ledger, workflows: &Workflows, run_id: &str) -> RunState {
    let runner = ledger.runner(workflows.clone());
    for _ in 0..30 {
        ledger.run_all(&runner).await;
        let run = ledger.run(run_id).await.view;
        if run.run.state.is_terminal() {
            // The runner that ended it may have died before it emitted the events.
            ledger.advance(61_000);
            ledger.stage.run_sweep.sweep_runs().await.unwrap();
            ledger.run_all(&runner).await;
            return run.run.state;
        }
        if let Some(hook) = run.hooks.first()
            && hook.received == 0
        {
            ledger.stage.hooks.receive_by_hook(None, &hook.token, json!(true)).await.unwrap();
        }
        if !run.waits.is_empty() && run.waits[0].event_id.is_none() {
            pay(ledger).await;
        }
        ledger.advance(61_000);
        ledger.stage.run_sweep.sweep_runs().await.unwrap();
        ledger.stage.sweep.sweep(None).await.unwrap();
    }
    panic!("{run_id} has not ended: {:?}", ledger.run(run_id).await);
}

async fn pay(ledger: &Ledger) {
    let event = serde_json::from_value(json!({
        "event": "order.paid", "data": 7, "match": { "order": "o-1", "by": "card" },
    }));
    ledger.stage.events.send_event(&ledger.emitter(TENANT), event.unwrap(), None).await.unwrap();
}

/// One run whose runner dies at `point` of its visit number `visit`. Returns whether there was such a point.
async fn dies_at(point: usize, visit: usize) -> bool {
    let death =
        Arc::new(Death { at: AtomicUsize::new(NEVER), seen: AtomicUsize::new(0), died: Notify::new() });
    let ledger = Ledger::on_one_clock(Some(death.interceptor())).await;
    let executed = Executed::default();
    let workflows = everything(executed.clone());
    let run_id = ledger.start_run("everything", json!("o-1")).await;
    let mut died = false;
    for number in 0.. {
        let Some(received) = ledger.next_run() else { break };
        let message = RunMessage::parse(&received.body).unwrap();
        if number < visit {
            ledger.runner(workflows.clone()).visit(&message, None).await.unwrap();
            ledger.store.embedded.queues().delete(&ledger.store.names.run_queue, &received.receipt).unwrap();
            // What it waits for comes, so that there is another visit.
            let run = ledger.run(&run_id).await.view;
            if let Some(hook) = run.hooks.first().filter(|_| number == 1) {
                ledger.stage.hooks.receive_by_hook(None, &hook.token, json!(true)).await.unwrap();
            } else if number == 0 {
                pay(&ledger).await;
            } else {
                ledger.advance(6_000);
            }
            continue;
        }
        death.at.store(point, Ordering::SeqCst);
        let runner = ledger.runner(workflows.clone());
        tokio::select! {
            biased;
            () = death.died.notified() => died = true,
            visited = runner.visit(&message, None) => drop(visited.unwrap()),
        }
        death.at.store(NEVER, Ordering::SeqCst);
        break;
    }
    let recorded = completed(&ledger, &run_id).await;
    let before = count(&executed);

    assert_eq!(to_the_end(&ledger, &workflows, &run_id).await, RunState::Completed);

    let after = count(&executed);
    for step in &recorded {
        assert_eq!(
            before.get(step),
            after.get(step),
            "{step} was recorded and ran again (point {point} of visit {visit})"
        );
    }
    for step in ["reserve", "left", "right", "ship"] {
        let times = after.get(step).copied().unwrap_or_default();
        assert!((1..=2).contains(&times), "{step} ran {times} times (point {point} of visit {visit})");
    }
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.output, Some(json!(["reserve done", true, 7, true, "ship done"])));
    ledger.assert_told(&run_id).await;
    let sent = ledger.stage.runs.sent_events(&name(TENANT), "order.placed", 10, None).await.unwrap();
    assert_eq!(sent.items.len(), 1, "the event is sent once (point {point} of visit {visit})");
    died
}

async fn completed(ledger: &Ledger, run_id: &str) -> Vec<String> {
    let log = ledger.log(run_id).await;
    let done = log.iter().filter(|event| event.event_type == RunEventType::StepCompleted);
    let run = ledger.run(run_id).await.view;
    let name_of = |id: &str| run.steps.iter().find(|step| step.step_id.as_str() == id).unwrap().name.clone();
    done.map(|event| name_of(&event.correlation_id)).collect()
}

fn count(executed: &Executed) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for step in executed.lock().unwrap().iter() {
        *count.entry(step.clone()).or_default() += 1;
    }
    count
}

/// Every point of every visit that the run takes: recorded steps never run again, the run completes, and the ledger
/// holds each of its events once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_may_die_at_every_point_of_a_run() {
    let mut points = 0;
    for visit in 0..4 {
        let mut point = 0;
        while Box::pin(dies_at(point, visit)).await {
            point += 1;
        }
        assert!(point > 4, "visit {visit} has only {point} points");
        points += point;
    }
    println!("{points} points");
    assert!(points > 40);
}
