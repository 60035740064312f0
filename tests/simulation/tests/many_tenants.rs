//! Many tenants, some of them in trouble: every request about these is slow and throttled. The starts of the others come as
//! soon as they do when every tenant is well, whether the stream wakes the dispatcher or only its sweeps come.
//!
//! `LEDGERLINE_TENANTS=10000` makes it as many, 50 of them in trouble; `--nocapture` prints what was measured.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use ledgerline_drains::Drainers;
use ledgerline_ledger::{Clock, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_simulation::{BEGINNING, Request, Response, Service, Simulation, Store};
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_test_support::{admitted, at, event, name};
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long a request takes, and one about a tenant in trouble.
const REQUEST: Duration = Duration::from_millis(5);
const SLOW_REQUEST: Duration = Duration::from_secs(3);
/// As the template has it: batches of the stream that are handled side by side, and records of one.
const LANES: usize = 4;
const BATCH: usize = 1_000;
/// Batches of a lane at least, so that one waits for another.
const BATCHES: usize = 2;
/// A tenant in trouble is given up after 2.5 s, and is marked then.
const GIVEN_UP_MS: u64 = 2_700;
const SWEEP_EVERY: Duration = Duration::from_secs(120);
/// Sweeps after each wave.
const SWEEPS: u32 = 3;
const WAVES_APART: Duration = Duration::from_secs(2 * 3_600);

/// When each tenant's task was sent, in milliseconds since its event was saved, for each event in turn.
type Starts = BTreeMap<(usize, String), u64>;

fn tenant(number: usize) -> String {
    format!("tenant-{number:05}")
}

/// The tenants that a request names.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("tenant-").filter_map(|(at, _)| text.get(at..at + 12))
}

/// One life of a stage: a wave of events with wake-ups, one more, and one that only sweeps find.
async fn waves(count: usize, batch: usize, troubled: &BTreeSet<String>) -> Starts {
    let store = Store::start().await;
    let _simulation = Simulation::new(&store, 7);
    let began = Instant::now();
    let clock: Clock = Arc::new(move || at(BEGINNING + u64::try_from(began.elapsed().as_millis()).unwrap()));
    let options = StageOptions {
        queues: QueueUrls::find(&store.clients.sqs, &store.names).await.unwrap(),
        drainers: Drainers::parse("").unwrap(),
        slack: None,
        metrics: Metrics::silent(),
        ledger_flag: "--stage test".into(),
        clock: clock.clone(),
    };
    let stage = Stage::new(&store.clients, &store.names, options).unwrap();
    let workflow = json!({"workflowType": "w", "kind": "task", "createdAt": BEGINNING});
    for number in 0..count {
        let tenant = name(&tenant(number));
        stage.registry().register(&tenant, &serde_json::from_value(workflow.clone()).unwrap()).await.unwrap();
        let subscription = json!({"eventTypeGlob": "price.*", "workflowType": "w"});
        stage.registry().subscribe(&tenant, serde_json::from_value(subscription).unwrap()).await.unwrap();
    }
    let starts: Arc<Mutex<Starts>> = Arc::default();
    let wave: Arc<Mutex<(usize, Instant)>> = Arc::new(Mutex::new((0, began)));
    for number in 0..3 {
        // Hours apart, so that a round is due; at the same moments however long the wave before took.
        let tick = began + number * WAVES_APART;
        tokio::time::sleep_until(tick).await;
        // The producers' side has no trouble: what is compared is when the starts come.
        store.set_conditions(Arc::new(|_: &Request| (None, None)));
        for tenant in (0..count).map(tenant) {
            let event = admitted(event(&tenant, &format!("e{number}"), clock()));
            store.saver().save(&[event], clock()).await.pop().unwrap().unwrap();
        }
        *wave.lock().unwrap() = (usize::try_from(number).unwrap(), Instant::now());
        let (troubled, noted, wave) = (troubled.clone(), starts.clone(), wave.clone());
        store.set_conditions(Arc::new(move |request: &Request| {
            // By its keys: a record of the sweep may name tenants too. Marks lie in partitions that are no tenant's.
            if !request.about.contains("DIRTY")
                && named(&request.about).any(|tenant| troubled.contains(tenant))
            {
                let throttled =
                    Response::error(request.service, 400, throttling(request.service), "simulated");
                return (Some(SLOW_REQUEST), Some(throttled));
            }
            if request.operation == "SendMessageBatch" {
                let (wave, began) = *wave.lock().unwrap();
                let ms = u64::try_from(began.elapsed().as_millis()).unwrap();
                for tenant in groups(request.text()) {
                    noted.lock().unwrap().entry((wave, tenant)).or_insert(ms);
                }
            }
            (Some(REQUEST), None)
        }));
        // The last wave's wake-ups are lost.
        if number < 2 {
            let lanes = (0..LANES).map(|lane| {
                let stage = &stage;
                async move {
                    let mine: Vec<String> =
                        (0..count).filter(|number| number % LANES == lane).map(tenant).collect();
                    for batch in mine.chunks(batch) {
                        let tenants = batch.iter().map(|tenant| name(tenant)).collect();
                        let deadline = Instant::now() + Duration::from_secs(30);
                        let woken = stage.sweep.wake(tenants, Some(deadline)).await.unwrap();
                        // Else the stream brings the batch again and again, and nothing behind it.
                        assert!(woken.unmarked.is_empty(), "{:?}", woken.unmarked);
                    }
                }
            });
            join_all(lanes).await;
        }
        // Sweeps as on AWS.
        for sweep in 1..=SWEEPS {
            tokio::time::sleep_until(tick + sweep * SWEEP_EVERY).await;
            stage.sweep.sweep(None).await.unwrap();
        }
    }
    starts.lock().unwrap().clone()
}

/// Tenants of one batch.
fn batch_of(count: usize) -> usize {
    BATCH.min(count.div_ceil(LANES * BATCHES))
}

fn throttling(service: Service) -> &'static str {
    match service {
        Service::Dynamo => "ProvisionedThroughputExceededException",
        Service::Sqs => "RequestThrottled",
        Service::S3 => "SlowDown",
        Service::Events | Service::Ssm => "ThrottlingException",
    }
}

/// The tenants of the tasks that are sent.
fn groups(body: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(body).unwrap();
    let entries = body["Entries"].as_array().unwrap().iter();
    entries.filter_map(|entry| entry["MessageGroupId"].as_str()).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn tenants_in_trouble_make_no_other_tenants_start_later() {
    let count: usize = std::env::var("LEDGERLINE_TENANTS").map_or(40, |count| count.parse().unwrap());
    starts_are_not_later(count, batch_of(count)).await;
}

#[tokio::test(start_paused = true)]
async fn a_tenant_in_trouble_that_is_woken_alone_delays_no_other_tenant() {
    starts_are_not_later(40, 1).await;
}

async fn starts_are_not_later(count: usize, batch: usize) {
    let every = if count >= 1_000 { count / 50 } else { 20 };
    // In every lane.
    let troubled: BTreeSet<String> =
        (0..count).step_by(every).enumerate().map(|(n, number)| tenant(number + n % LANES)).collect();
    let well = waves(count, batch, &BTreeSet::new()).await;
    let some_troubled = waves(count, batch, &troubled).await;
    assert_eq!(well.len(), 3 * count, "everything starts");
    for wave in 0..3 {
        let mut last = 0;
        let mut later = Vec::new();
        // The order of visits is random: the first start of a lane is compared with its first one, and so on.
        let lanes = if wave < 2 { LANES } else { 1 };
        for lane in 0..lanes {
            let of_lane = (0..count).filter(|number| number % lanes == lane).map(tenant);
            let others: Vec<String> = of_lane.filter(|tenant| !troubled.contains(tenant)).collect();
            let in_order = |starts: &Starts| {
                let started = |tenant: &String| {
                    let key = (wave, tenant.clone());
                    *starts.get(&key).unwrap_or_else(|| panic!("{key:?} did not start"))
                };
                let mut started: Vec<u64> = others.iter().map(started).collect();
                started.sort_unstable();
                started
            };
            let (before, after) = (in_order(&well), in_order(&some_troubled));
            last = last.max(before[before.len() - 1]);
            later.extend(before.into_iter().zip(after).map(|(before, after)| after.saturating_sub(before)));
        }
        later.sort_unstable();
        let part = |of: usize| later[(later.len() * of / 100).min(later.len() - 1)];
        println!(
            "wave {wave}: {} tenants, {} in trouble; last start without these after {last} ms; later by p50 {} ms, p99 {} ms, most {} ms",
            count,
            troubled.len(),
            part(50),
            part(99),
            part(100)
        );
        // The batches before wait for those that are given up, and each of these takes a quarter of a second of one of
        // four slots.
        let batches = (count.div_ceil(LANES).div_ceil(batch) - 1).min(troubled.len().div_ceil(LANES));
        let waits = if wave < 2 { GIVEN_UP_MS * u64::try_from(batches).unwrap() } else { 0 };
        let allowed = waits + 500 + 250 * u64::try_from(troubled.len().div_ceil(4)).unwrap();
        assert!(part(100) <= allowed, "a start is {} ms later, by more than {allowed} ms", part(100));
    }
    let starts_in_trouble = some_troubled.keys().filter(|(_, tenant)| troubled.contains(tenant)).count();
    assert_eq!(starts_in_trouble, 0, "the trouble is real");
}
