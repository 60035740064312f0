//! Savers and drainers together, with everything going wrong that can: whatever is acknowledged is
//! started once per epoch, or parked, for every subscription that wants it.
//!
//! A history has some subscriptions, which may change, events that come late, twice and out of order, drainers and
//! sweeps of several processes with clocks of their own, some of versions before 0.1.0, and rewinds. After some time the trouble ends;
//! then marks, rounds and redeliveries alone must bring everything to rest.

mod invariants;
mod old_drainer;
mod subscription_changes;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use ledgerline_alert::{Answer, Post, Slack};
use ledgerline_drains::{CountEvents, Drainers, NewSubscription, ParkedState, RewindScope};
use ledgerline_event::{Event, Name, ValidEvent, validate};
use ledgerline_ledger::{Outcome, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_simulation::{BEGINNING, Faults, Simulation, Store, histories, wanted};
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::keys;
use ledgerline_subscription::{OnFailure, WorkflowType};
use ledgerline_test_support::{admitted, at, event, name};
use serde_json::json;

use self::{
    invariants::{Ledger, check_rest},
    old_drainer::OldDrainer,
    subscription_changes::{Change, Filter, SubscriptionState},
};

const TENANT: &str = "t";
const DAY_MS: u64 = 24 * 3600 * 1000;
const DRAINERS: [&str; 2] = ["workflow_runner", "timeline"];
/// From this step on all goes well.
const TROUBLE_ENDS: u64 = 240;

/// What a subscription wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Prices,
    EvenNumbers,
    /// Needs a property that some events do not have.
    Picky,
    /// Its workflow type is registered some time into the history, or never.
    Later,
}

#[derive(Clone, Debug)]
struct Subscribed {
    id: Name,
    drainer: &'static str,
    wants: Wants,
    /// Whether the drainer halts on an event that it cannot start.
    halts: bool,
    /// Whether it stays as it is from the beginning to the end.
    steady: bool,
    state: SubscriptionState,
    filter: Filter,
    /// The filters that it has had while it was enabled.
    had: Vec<Filter>,
    /// Whether it was disabled or removed at some time.
    interrupted: bool,
    change: Option<Change>,
}

impl Subscribed {
    /// Whether it wants an event in its present state.
    fn matches(&self, event: &Event) -> bool {
        self.state == SubscriptionState::Enabled && self.wants.takes(self.filter, event)
    }

    fn fails(&self, event: &Event) -> bool {
        self.wants == Wants::Picky && !event.properties.contains_key("x")
    }
}

/// In a `storm` every event is a day late, so that drainers find all of them among the late arrivals.
fn events(random: &mut Rng, storm: bool) -> Vec<ValidEvent> {
    let count = random.usize(3..14);
    (0..count)
        .map(|n| {
            // Many within a few seconds around the beginning, where watermarks and cursors are.
            let time = match random.u8(..4) {
                _ if storm => BEGINNING - DAY_MS + random.u64(..10_000),
                0 => BEGINNING - random.u64(..DAY_MS),
                1 => BEGINNING - random.u64(..50),
                _ => BEGINNING + random.u64(..20_000),
            };
            let mut event = event(TENANT, &format!("e{n:02}"), at(time));
            if random.u8(..5) == 0 {
                event.event_type = name("order.made");
            }
            event.entity_id = name(&format!("item-{}", random.u8(..4)));
            event.properties = json!({ "n": n }).as_object().unwrap().clone();
            if random.u8(..6) != 0 {
                event.properties.insert("x".into(), json!(n));
            }
            admitted(event)
        })
        .collect()
}

/// A Slack that is down for a while: it refuses, or does not answer, and what it took is kept.
#[derive(Clone, Default)]
struct Webhook {
    down: Arc<AtomicU8>,
    taken: Arc<Mutex<Vec<String>>>,
}

impl Webhook {
    fn post(&self) -> Post {
        let webhook = self.clone();
        Arc::new(move |_, text| {
            let webhook = webhook.clone();
            Box::pin(async move {
                match webhook.down.load(Ordering::SeqCst) {
                    0 => {}
                    1 => return Ok(Answer { status: 503, retry_after: None }),
                    _ => tokio::time::sleep(Duration::from_secs(3_600)).await,
                }
                webhook.taken.lock().unwrap().push(text);
                Ok(Answer { status: 200, retry_after: None })
            })
        })
    }
}

fn process(store: &Store, simulation: &Simulation<'_>, skew_ms: i64, webhook: &Webhook) -> Stage {
    let options = StageOptions {
        queues: QueueUrls {
            tasks: "https://sqs.test/000000000000/test-tasks".into(),
            task_dead_letters: "https://sqs.test/000000000000/test-tasks-dlq".into(),
            runs: "https://sqs.test/000000000000/test-runs".into(),
        },
        drainers: Drainers::parse("timeline=2m").unwrap(),
        slack: Some(Slack::with_post(
            store.clients.ssm.clone(),
            store.names.slack_webhook_parameter.clone(),
            webhook.post(),
        )),
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: simulation.clock(skew_ms),
    };
    Stage::new(&store.clients, &store.names, options).unwrap()
}

fn workflow(name: &str) -> WorkflowType {
    serde_json::from_value(json!({"workflowType": name, "kind": "task", "createdAt": BEGINNING})).unwrap()
}

/// Alerts that are claimed and not sent.
async fn pending_alerts(store: &Store) -> usize {
    let mut pending = 0;
    for shard in 0..keys::DUE_SHARDS {
        let until = at(BEGINNING + 365 * DAY_MS);
        pending += store.control().all_due(&keys::alert_due_shard(shard), until).await.unwrap().len();
    }
    pending
}

/// Some subscriptions. If they are `changing`, the first alone is sure to stay as it is.
async fn subscribe(stage: &Stage, random: &mut Rng, changing: bool) -> Vec<Subscribed> {
    let tenant = name(TENANT);
    stage.registry().register(&tenant, &workflow("w")).await.unwrap();
    let mut subscribed = Vec::new();
    for (wants, definition) in [
        (Wants::Prices, json!({"eventTypeGlob": "price.*", "workflowType": "w"})),
        (
            Wants::EvenNumbers,
            json!({"eventTypeGlob": "*", "workflowType": "w", "filterExpr": "event.properties.n % 2 == 0"}),
        ),
        (
            Wants::Picky,
            json!({"eventTypeGlob": "price.changed", "workflowType": "w", "inputMapper": {"x": "$.payload.x"}}),
        ),
        (Wants::Later, json!({"eventTypeGlob": "price.*", "workflowType": "later"})),
    ] {
        if !subscribed.is_empty() && random.u8(..3) == 0 {
            continue;
        }
        let drainer = DRAINERS[usize::from(random.u8(..4) == 0)];
        let mut new: NewSubscription = serde_json::from_value(definition).unwrap();
        new.drainer_id = Some(name(drainer));
        let halts = wants == Wants::Later && random.u8(..4) == 0;
        new.on_failure = halts.then_some(OnFailure::Halt);
        let id = stage.registry().subscribe(&tenant, new).await.unwrap().subscription_id;
        subscribed.push(Subscribed {
            id,
            drainer,
            wants,
            halts,
            steady: subscribed.is_empty() || !changing || random.u8(..4) == 0,
            state: SubscriptionState::Enabled,
            filter: Filter::Own,
            had: vec![Filter::Own],
            interrupted: false,
            change: None,
        });
    }
    subscribed
}

/// What actors tell the test.
#[derive(Debug)]
enum Told {
    Saved(String, Vec<Result<Outcome, ledgerline_ledger::SaveError>>),
    Skipped { drainer: &'static str, promised: BTreeSet<String> },
    Failed { drainer: &'static str },
}

/// One history. Everything is checked in it.
async fn history(store: &Store, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut faults = Faults::random(&mut random);
    if random.u8(..3) == 0 {
        // Histories in which the order of starts can be told: no process outlives its lease.
        let none = Faults::none();
        faults =
            Faults { fail: faults.fail, lose: faults.lose, refuse_entry: 0.3, slow: faults.slow, ..none };
    }
    let mut simulation = Simulation::new(store, seed);
    let webhook = Webhook::default();
    webhook.down.store(random.u8(..3), Ordering::SeqCst);
    let parameter = store.clients.ssm.put_parameter().name(&store.names.slack_webhook_parameter);
    parameter.value("https://slack.test").send().await.unwrap();
    let mut processes: Vec<(Stage, i64)> = Vec::new();
    for _ in 0..2 {
        let skew = random.i64(-30_000..30_000);
        processes.push((process(store, &simulation, skew, &webhook), skew));
    }
    let changing = random.bool();
    let subscribed = subscribe(&processes[0].0, &mut random, changing).await;
    let halts = subscribed.iter().any(|subscribed| subscribed.halts);
    let storm = random.u8(..3) == 0;
    let mut waiting = events(&mut random, storm);
    let known =
        waiting.iter().map(|admitted| (admitted.keys.sk().to_owned(), admitted.event.clone())).collect();
    let mut ledger = Ledger {
        store,
        subscribed,
        events: known,
        sent: BTreeSet::new(),
        acknowledged: BTreeSet::new(),
        records: BTreeMap::new(),
        promised: BTreeMap::new(),
        ordered: faults.linger + faults.late_answer + faults.kill + faults.pause + faults.jump == 0.0
            && faults.throttled.is_none(),
        claims: BTreeSet::new(),
        waited: BTreeMap::new(),
        late: BTreeSet::new(),
        dropped: BTreeSet::new(),
        by_hand: BTreeSet::new(),
        registered: false,
        operators: random.bool(),
        old_drainers: random.u8(..4) == 0,
        marks_fail: faults.fail + faults.linger > 0.0 || faults.throttled.is_some(),
    };
    ledger.ordered &= !ledger.old_drainers;
    // A history in which a drainer is halted for ever does not come to rest.
    let registers = (halts || random.u8(..4) != 0).then(|| random.u64(1..TROUBLE_ENDS + 20));
    if storm {
        // One event that cursors and watermarks pass first, so that all others are late arrivals.
        let mut first = event(TENANT, "first", at(BEGINNING - 60_000));
        first.properties = json!({ "n": 0, "x": 0 }).as_object().unwrap().clone();
        let first = admitted(first);
        store.saver().save(std::slice::from_ref(&first), at(BEGINNING)).await.pop().unwrap().unwrap();
        ledger.events.insert(first.keys.sk().to_owned(), first.event.clone());
        ledger.sent.insert(first.keys.sk().to_owned());
        ledger.acknowledged.insert(first.keys.sk().to_owned());
        for drainer in DRAINERS {
            processes[0].0.drains.drain(&name(TENANT), &name(drainer), None).await.unwrap();
        }
    }
    let told: Rc<RefCell<Vec<Told>>> = Rc::default();
    let mut delivered: BTreeMap<String, Vec<ValidEvent>> = BTreeMap::new();
    let mut messages: BTreeSet<String> = BTreeSet::new();
    let mut started = 0_u64;
    let mut steps = 0;
    let mut idle_rounds = 0;
    let mut watched = 0;
    let mut sweeps: Vec<String> = Vec::new();
    loop {
        let calm = steps >= TROUBLE_ENDS;
        if steps == TROUBLE_ENDS {
            faults = Faults::none();
            webhook.down.store(0, Ordering::SeqCst);
        }
        steps += 1;
        if !calm && random.u8(..40) == 0 {
            // The invocation's time is over, wherever the sweep is.
            if let Some(sweep) = random.choice(&sweeps) {
                simulation.kill(sweep);
            }
        }
        if registers == Some(steps) {
            let stage = processes[0].0.clone();
            stage.registry().register(&name(TENANT), &workflow("later")).await.unwrap();
            ledger.registered = true;
        }
        if changing && !calm && random.u8(..30) == 0 {
            let what = ledger.change_one(&processes[0].0, &mut random, simulation.not_done()).await;
            simulation.note(what);
        }
        ledger.note_claims_before_known(|actor| simulation.is_done(actor)).await;
        // Savers.
        let (savers, largest) = if storm { (7, 1) } else { (4, 4) };
        while !waiting.is_empty() && simulation.live() < savers && (calm || random.u8(..4) == 0) {
            let batch = waiting.split_off(waiting.len() - random.usize(1..=waiting.len().min(largest)));
            let actor = format!("saver-{}", delivered.len());
            delivered.insert(actor.clone(), batch.clone());
            ledger.sent.extend(batch.iter().map(|sent| sent.keys.sk().to_owned()));
            let (saver, told, clock) =
                (store.saver(), told.clone(), simulation.clock(random.i64(-30_000..30_000)));
            simulation.spawn(actor.clone(), async move {
                let answers = saver.save(&batch, clock()).await;
                told.borrow_mut().push(Told::Saved(actor, answers));
            });
        }
        // Drains, sweeps and rewinds.
        let drains = if storm { 9 } else { 5 };
        if !calm && simulation.live() < drains && random.u8(..12) == 0 {
            started += 1;
            let which = random.usize(..processes.len());
            let stage = processes[which].0.clone();
            let actor = format!("process-{which}-{started}");
            let told = told.clone();
            let drainer = DRAINERS[usize::from(random.u8(..4) == 0)];
            match random.u8(..20) {
                0..8 if ledger.old_drainers => {
                    let old = OldDrainer::new(store, stage, simulation.clock(processes[which].1));
                    // What it leaves undone, its mark brings to the others.
                    simulation.spawn(actor, async move { drop(old.drain(drainer).await) });
                }
                0..15 => {
                    let promised: BTreeSet<String> = ledger.acknowledged.clone();
                    simulation.spawn(actor, async move {
                        match stage.drains.drain(&name(TENANT), &name(drainer), None).await {
                            Ok(drained) if drained.skipped_due_to_lock => {
                                told.borrow_mut().push(Told::Skipped { drainer, promised });
                            }
                            Ok(_) => {}
                            Err(_) => told.borrow_mut().push(Told::Failed { drainer }),
                        }
                    });
                }
                15..18 => {
                    sweeps.push(actor.clone());
                    simulation.spawn(actor, async move {
                        if stage.sweep.sweep(None).await.is_err() {
                            let failed = |drainer| told.borrow_mut().push(Told::Failed { drainer });
                            DRAINERS.into_iter().for_each(failed);
                        }
                    });
                }
                _ => {
                    let to = at(BEGINNING + random.u64(..25_000)).minus(if random.bool() {
                        0
                    } else {
                        random.u64(..DAY_MS)
                    });
                    let missing_only = random.bool();
                    simulation.spawn(actor, async move {
                        let tenant = name(TENANT);
                        // Refused if it lies ahead, or if a drain moved the cursor meanwhile.
                        if let Ok(plan) = stage
                            .drains
                            .plan_rewind(
                                &tenant,
                                drainer,
                                &to.to_string(),
                                RewindScope::of(missing_only),
                                CountEvents::No,
                            )
                            .await
                        {
                            let _ = stage.drains.rewind(&tenant, &plan).await;
                        }
                    });
                }
            }
        }
        // Operators: what waits or is parked is retried or dropped.
        if ledger.operators && !calm && random.u8(..30) == 0 {
            let parked: Vec<ledgerline_drains::ParkedStart> =
                store.control().all(&keys::parked(TENANT)).await.unwrap();
            if let Some(start) = random.choice(&parked).cloned() {
                started += 1;
                let which = random.usize(..processes.len());
                let stage = processes[which].0.clone();
                let drops = random.bool();
                let about = (start.subscription_id.to_string(), start.event_place.clone());
                if drops { &mut ledger.dropped } else { &mut ledger.by_hand }.insert(about);
                ledger.ordered &= start.state == ParkedState::Retrying;
                simulation.spawn(format!("process-{which}-{started}"), async move {
                    // Refused if it is settled by then, or fails again.
                    let _ = match drops {
                        true => stage.drains.drop_parked(&name(TENANT), &start.id).await.map(drop),
                        false => stage.drains.retry(&name(TENANT), &start.id).await.map(drop),
                    };
                });
            }
        }
        if !calm && random.u8(..60) == 0 {
            // No lease ends where the order is looked at.
            simulation.advance(random.u64(..if ledger.ordered { 20_000 } else { 200_000 })).await;
        }
        let more = simulation.step(&faults).await;
        for killed in simulation.take_killed() {
            if let Some(batch) = delivered.get(&killed) {
                waiting.extend(batch.iter().cloned());
            } else if let Some(which) = killed.split('-').nth(1).and_then(|which| which.parse::<usize>().ok())
            {
                let skew = processes[which].1;
                processes[which].0 = process(store, &simulation, skew, &webhook);
            }
        }
        for told in told.borrow_mut().drain(..) {
            match told {
                Told::Saved(actor, answers) => {
                    for (sent, answer) in delivered[&actor].iter().zip(answers) {
                        match answer {
                            Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. }) => {
                                if ledger.events.contains_key(sent.keys.sk()) {
                                    ledger.acknowledged.insert(sent.keys.sk().to_owned());
                                }
                                if !calm && random.u8(..5) == 0 {
                                    waiting.push(sent.clone());
                                }
                            }
                            Ok(other) => panic!("{other:?}"),
                            Err(error) => {
                                assert!(error.is_transient(), "{error}");
                                waiting.push(sent.clone());
                            }
                        }
                    }
                }
                Told::Skipped { drainer, promised } => {
                    ledger.promised.entry(drainer).or_default().extend(promised);
                }
                // A drain that failed leaves a mark instead.
                Told::Failed { drainer } => drop(ledger.promised.remove(drainer)),
            }
        }
        if simulation.updates() != watched {
            watched = simulation.updates();
            ledger.watch().await;
        }
        for detail in simulation.take_bus() {
            waiting.push(validate(&detail, simulation.now().plus(60_000)).unwrap());
        }
        messages.extend(simulation.take_sent().into_iter().map(|message| {
            let body: serde_json::Value = serde_json::from_str(&message.body).unwrap();
            body["requestId"].as_str().unwrap().to_owned()
        }));

        // The trouble is over: only what a stage does by itself, every two minutes.
        if calm && !more && waiting.is_empty() {
            idle_rounds += 1;
            assert!(idle_rounds < 100, "it does not come to rest");
            let marks = store.marks().await;
            let alerts = pending_alerts(store).await;
            if idle_rounds > 2 && marks.is_empty() && alerts == 0 {
                break;
            }
            // The first sweep is the one that visits every tenant.
            simulation.advance(if idle_rounds == 1 { 3_600_000 } else { 120_000 }).await;
            let stage = processes[0].0.clone();
            simulation.spawn(format!("sweep-{idle_rounds}"), async move {
                stage.sweep.sweep(None).await.unwrap();
            });
        }
    }
    ledger.check_claims_since_known(None).await;
    check_rest(&ledger, &messages).await;
}

#[test]
fn every_acknowledged_event_is_started_once_per_epoch_or_parked() {
    histories(wanted(300), history);
}
