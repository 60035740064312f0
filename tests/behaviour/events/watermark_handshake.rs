//! The saver's side of the watermark handshake: every drainer sees every event that the saver acknowledges, whatever the
//! drainers do between two requests of the saver.
//!
//! The drainers here are as small as the protocol allows: announce a watermark, then read what lies after the cursor, then
//! move the cursor to the watermark. They do the same for the late arrivals, with a watermark and a cursor of their own.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::BoxFuture;
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::keys::parse_sk;
use ledgerline_ledger::{Clients, Names};
use ledgerline_store::keys;

use ledgerline_test_support::{Store, admitted, at, event, seeds, text};

const TIME: u64 = 1_767_453_739_000;
/// All events, watermarks and stamps fall within this many milliseconds, so that they often pass each other.
const SPAN: u64 = 40;

/// One drainer of one tenant.
struct Drainer {
    id: &'static str,
    tenant: String,
    watermark: Option<String>,
    announced: bool,
    cursor: String,
    late_watermark: u64,
    late_announced: bool,
    late_cursor: String,
    seen: BTreeSet<String>,
}

impl Drainer {
    fn new(id: &'static str, tenant: &str) -> Self {
        Self {
            id,
            tenant: tenant.into(),
            watermark: None,
            announced: false,
            cursor: String::new(),
            late_watermark: 0,
            late_announced: false,
            late_cursor: String::new(),
            seen: BTreeSet::new(),
        }
    }

    /// One request: announces or reads, in the time line or among the late arrivals.
    async fn step(&mut self, random: &mut fastrand::Rng, clients: &Clients, names: &Names) {
        match (random.bool(), self.announced, self.late_announced) {
            (true, false, _) => {
                let watermark = format!("TIMESTAMP#{}", TIME + random.u64(..SPAN));
                if self.watermark.as_ref().is_none_or(|current| *current < watermark) {
                    self.watermark = Some(watermark);
                }
                self.announce(clients, names).await;
                self.announced = true;
            }
            (true, true, _) => self.read(clients, names).await,
            (false, _, false) => {
                // The late watermark always rises, so that it often passes a stamp that the saver has just chosen.
                self.late_watermark = self.late_watermark.max(TIME + SPAN) + random.u64(1..SPAN / 4);
                self.announce(clients, names).await;
                self.late_announced = true;
            }
            (false, _, true) => self.read_late_arrivals(clients, names).await,
        }
    }

    async fn announce(&self, clients: &Clients, names: &Names) {
        let key = keys::drain(&self.tenant, self.id);
        let mut put = clients
            .dynamo
            .put_item()
            .table_name(&names.control_table)
            .item("PK", text(&key.pk))
            .item("SK", text(&key.sk));
        if let Some(watermark) = &self.watermark {
            put = put.item("horizon", text(watermark));
        }
        if self.late_watermark > 0 {
            put = put.item("laneHorizon", AttributeValue::N(self.late_watermark.to_string()));
        }
        put.send().await.unwrap();
    }

    async fn read(&mut self, clients: &Clients, names: &Names) {
        let pk = format!("TENANT#{}", self.tenant);
        self.seen.extend(sort_keys(clients, &names.events_table, &pk, &self.cursor).await);
        self.cursor = self.cursor.clone().max(self.watermark.clone().unwrap_or_default());
        self.announced = false;
    }

    async fn read_late_arrivals(&mut self, clients: &Clients, names: &Names) {
        let pk = keys::late_arrivals(&self.tenant);
        for pointer in sort_keys(clients, &names.control_table, &pk, &self.late_cursor).await {
            let (_, sk) = keys::parse_late_pointer(&pointer).unwrap();
            self.seen.insert(sk.to_owned());
        }
        // The cursor passes everything with a stamp up to the late watermark.
        self.late_cursor = self.late_cursor.clone().max(format!("{}$", self.late_watermark));
        self.late_announced = false;
    }
}

async fn sort_keys(clients: &Clients, table: &str, pk: &str, after: &str) -> Vec<String> {
    let mut query = clients.dynamo.query().table_name(table).consistent_read(true);
    query = match after {
        "" => query.key_condition_expression("PK = :pk"),
        after => query
            .key_condition_expression("PK = :pk AND SK > :after")
            .expression_attribute_values(":after", text(after)),
    };
    let answer = query.expression_attribute_values(":pk", text(pk)).send().await.unwrap();
    answer.items().iter().map(|item| item["SK"].as_s().unwrap().clone()).collect()
}

/// The drainers of one history, and the random numbers that decide what they do.
struct History {
    random: fastrand::Rng,
    drainers: Vec<Drainer>,
    clients: Clients,
    names: Names,
}

/// Lets the drainers act between the requests of the saver.
#[derive(Default)]
struct Interleaver {
    history: tokio::sync::Mutex<Option<History>>,
    /// Set while drainers make requests of their own.
    drainers_act: AtomicBool,
    faults: Mutex<Option<fastrand::Rng>>,
}

impl Interleaver {
    fn interceptor(self: Arc<Self>) -> Interceptor {
        Arc::new(move |call, moment| {
            let interleaver = self.clone();
            Box::pin(async move { interleaver.between(call, moment).await }) as BoxFuture<'static, Verdict>
        })
    }

    /// Before and after each request of the saver the drainers take a few steps.
    async fn between(&self, _call: Call, moment: Moment) -> Verdict {
        if self.drainers_act.load(Ordering::SeqCst) {
            return Verdict::Proceed;
        }
        if let Ok(mut history) = self.history.try_lock()
            && let Some(history) = history.as_mut()
        {
            self.drainers_act.store(true, Ordering::SeqCst);
            for _ in 0..history.random.usize(..7) {
                let which = history.random.usize(..history.drainers.len());
                history.drainers[which].step(&mut history.random, &history.clients, &history.names).await;
            }
            self.drainers_act.store(false, Ordering::SeqCst);
        }
        let fails = self.faults.lock().unwrap().as_mut().is_some_and(|random| random.u8(..12) == 0);
        match (fails, moment) {
            (false, _) => Verdict::Proceed,
            (true, Moment::Before) => Verdict::Fail { status: 400, code: "ThrottlingException".into() },
            (true, Moment::After { .. }) => Verdict::Fail { status: 500, code: "InternalServerError".into() },
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_event_is_seen_by_every_drainer() {
    let interleaver = Arc::new(Interleaver::default());
    let store = Store::start(Some(interleaver.clone().interceptor())).await;
    for seed in seeds(400) {
        let mut random = fastrand::Rng::with_seed(seed);
        let tenant = format!("t-{seed}");
        let drainers = vec![Drainer::new("jobs", &tenant), Drainer::new("workflow_runner", &tenant)];
        *interleaver.history.lock().await = Some(History {
            random: random.fork(),
            drainers,
            clients: store.clients.clone(),
            names: store.names.clone(),
        });
        *interleaver.faults.lock().unwrap() = Some(random.fork());

        let mut acknowledged = BTreeSet::new();
        let saver = store.saver();
        let mut waiting: Vec<_> = (0..random.usize(1..6))
            .map(|n| admitted(event(&tenant, &format!("e-{n}"), at(TIME + random.u64(..SPAN)))))
            .collect();
        while !waiting.is_empty() {
            let batch = waiting.split_off(waiting.len() - random.usize(1..=waiting.len()));
            let now = at(TIME + random.u64(..2 * SPAN));
            for (sent, answer) in batch.iter().zip(saver.save(&batch, now).await) {
                match answer {
                    Ok(_) => {
                        acknowledged.insert(sent.keys.sk().to_owned());
                        if random.u8(..4) == 0 {
                            waiting.push(sent.clone());
                        }
                    }
                    Err(_) => waiting.push(sent.clone()),
                }
            }
        }

        *interleaver.faults.lock().unwrap() = None;
        let History { drainers, clients, names, .. } = interleaver.history.lock().await.take().unwrap();
        for mut drainer in drainers {
            // A drainer may be between its announcement and its read: it reads now.
            drainer.read(&clients, &names).await;
            drainer.read_late_arrivals(&clients, &names).await;
            let missed: Vec<_> = acknowledged.difference(&drainer.seen).collect();
            assert!(missed.is_empty(), "seed {seed}: {} never saw {missed:?}", drainer.id);
            for sk in &drainer.seen {
                assert!(parse_sk(sk).is_ok());
            }
        }
    }
    store.embedded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_below_a_watermark_has_a_pointer_above_every_late_watermark() {
    let store = Store::start(None).await;
    for seed in seeds(150) {
        let mut random = fastrand::Rng::with_seed(seed);
        let tenant = format!("p-{seed}");
        let mut drainers = vec![Drainer::new("jobs", &tenant), Drainer::new("workflow_runner", &tenant)];
        for drainer in &mut drainers {
            if random.bool() {
                drainer.watermark = Some(format!("TIMESTAMP#{}", TIME + random.u64(..SPAN)));
            }
            if random.bool() {
                drainer.late_watermark = TIME + random.u64(..3 * SPAN);
            }
            drainer.announce(&store.clients, &store.names).await;
        }
        let events: Vec<_> = (0..5)
            .map(|n| admitted(event(&tenant, &format!("e-{n}"), at(TIME + random.u64(..SPAN)))))
            .collect();
        let answers = store.saver().save(&events, at(TIME + random.u64(..SPAN))).await;
        assert!(answers.iter().all(Result::is_ok), "seed {seed}: {answers:?}");

        let pointers =
            sort_keys(&store.clients, &store.names.control_table, &keys::late_arrivals(&tenant), "").await;
        let highest_late_watermark = drainers.iter().map(|drainer| drainer.late_watermark).max().unwrap_or(0);
        for sent in &events {
            let below = drainers
                .iter()
                .any(|d| d.watermark.as_deref().is_some_and(|watermark| sent.keys.sk() <= watermark));
            let pointed = pointers.iter().any(|pointer| {
                let (stamp, sk) = keys::parse_late_pointer(pointer).unwrap();
                sk == sent.keys.sk() && stamp.get() > highest_late_watermark
            });
            assert_eq!(below, pointed, "seed {seed}: {}", sent.keys.sk());
        }
    }
    store.embedded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_registered_before_its_first_event() {
    let store = Store::start(None).await;
    let sent = admitted(event("newcomer", "e-1", at(TIME)));
    assert!(store.saver().save(&[sent], at(TIME)).await[0].is_ok());
    let tenants = sort_keys(&store.clients, &store.names.control_table, keys::TENANTS, "").await;
    assert_eq!(tenants, ["newcomer"]);
    store.embedded.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_events_of_one_tenant_cost_eleven_requests() {
    let store = Store::start(None).await;
    let saver = store.saver();
    let batch = |first: usize| -> Vec<_> {
        (first..first + 10).map(|n| admitted(event("t", &format!("e-{n}"), at(TIME)))).collect()
    };
    assert!(saver.save(&batch(0), at(TIME)).await.iter().all(Result::is_ok));
    store.embedded.reset_requests();
    assert!(saver.save(&batch(10), at(TIME)).await.iter().all(Result::is_ok));
    assert_eq!(store.embedded.requests().values().sum::<u64>(), 11);
    store.embedded.stop().await;
}
