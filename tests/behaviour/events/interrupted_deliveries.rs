//! However deliveries are duplicated, reordered and interrupted, the saved set is the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use ledgerline_embedded::{Interceptor, Moment, Service, Verdict};
use ledgerline_event::Event;
use ledgerline_ledger::Outcome;
use serde_json::json;

use ledgerline_test_support::{Item, Store, admitted, at, event, rows_of, seeds};

const TIME: u64 = 1_767_453_739_000;

/// While on, some requests fail before they are carried out, and some afterwards.
struct Faults {
    random: fastrand::Rng,
    on: bool,
}

fn interceptor(faults: Arc<Mutex<Faults>>) -> Interceptor {
    Arc::new(move |call, moment| {
        let mut faults = faults.lock().unwrap();
        let Faults { random, on } = &mut *faults;
        let writes = ["PutItem", "TransactWriteItems", "Query"].contains(&call.operation.as_str());
        let fails = *on && call.service == Service::DynamoDb && writes && random.u8(..10) == 0;
        let lost = matches!(moment, Moment::After { .. });
        Box::pin(async move {
            match (fails, lost) {
                (false, _) => Verdict::Proceed,
                (true, false) => Verdict::Fail { status: 400, code: "ThrottlingException".into() },
                (true, true) => Verdict::Fail { status: 500, code: "InternalServerError".into() },
            }
        })
    })
}

fn tenant(which: u8, seed: u64) -> String {
    format!("t{which}-{seed}")
}

async fn rows(store: &Store, seed: u64) -> Vec<Item> {
    let mut rows = rows_of(&store.clients, &store.names.events_table, &tenant(0, seed)).await;
    rows.extend(rows_of(&store.clients, &store.names.events_table, &tenant(1, seed)).await);
    rows
}

fn sent(seed: u64, random: &mut fastrand::Rng) -> Vec<Event> {
    (0..random.usize(1..20))
        .map(|n| {
            let tenant = tenant(random.u8(..2), seed);
            let mut event = event(&tenant, &format!("e-{n}"), at(TIME + random.u64(..50)));
            if random.u8(..3) == 0 {
                event.idempotency_key = Some(format!("key-{}", random.u8(..3)));
                event.properties = json!({"said": random.u8(..2)}).as_object().unwrap().clone();
            }
            event
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicated_reordered_and_interrupted_deliveries_never_change_the_saved_set() {
    let faults = Arc::new(Mutex::new(Faults { random: fastrand::Rng::new(), on: false }));
    let store = Store::start(Some(interceptor(faults.clone()))).await;
    for seed in seeds(60) {
        let mut random = fastrand::Rng::with_seed(seed);
        *faults.lock().unwrap() = Faults { random: random.fork(), on: true };
        let events = sent(seed, &mut random);
        // Each event comes one to four times; what was not acknowledged comes again, as SQS does it.
        let mut waiting: Vec<usize> =
            (0..events.len()).flat_map(|n| std::iter::repeat_n(n, random.usize(1..5))).collect();
        let mut first_receipts: BTreeMap<String, String> = BTreeMap::new();
        let mut collapsed_onto: BTreeMap<usize, String> = BTreeMap::new();
        let mut round = 0;
        while !waiting.is_empty() {
            round += 1;
            // A saver of its own now and then: a process that has just started knows nothing.
            let saver = store.saver();
            random.shuffle(&mut waiting);
            let chosen = waiting.split_off(waiting.len() - random.usize(1..=waiting.len().min(10)));
            let batch: Vec<_> = chosen.iter().map(|n| admitted(events[*n].clone())).collect();
            let answers = saver.save(&batch, at(TIME + 1_000 + round)).await;
            for (n, answer) in chosen.into_iter().zip(answers) {
                match answer {
                    Ok(Outcome::Collapsed { first, .. }) => {
                        let earlier = collapsed_onto.insert(n, first.to_string());
                        assert!(
                            earlier.is_none_or(|earlier| *earlier == *first),
                            "seed {seed}: one first per key"
                        );
                    }
                    Ok(_) => {}
                    Err(error) => {
                        assert!(error.is_transient(), "seed {seed}: {error}");
                        waiting.push(n);
                    }
                }
            }
            faults.lock().unwrap().on = false;
            for row in rows(&store, seed).await {
                let id = format!("{:?}{:?}", row["PK"], row["SK"]);
                let receipt = format!("{:?}", row["receivedAt"]);
                let first = first_receipts.entry(id).or_insert_with(|| receipt.clone());
                assert_eq!(*first, receipt, "seed {seed}: the first receipt stays");
            }
            faults.lock().unwrap().on = true;
        }
        faults.lock().unwrap().on = false;

        let rows = rows(&store, seed).await;
        let saved: Vec<Event> = rows
            .into_iter()
            .map(|row| serde_dynamo::aws_sdk_dynamodb_1::from_item::<Event>(row).unwrap())
            .collect();
        let mut keys_seen = BTreeSet::new();
        let mut saved_ids = BTreeSet::new();
        for row in &saved {
            let original = events.iter().find(|sent| sent.event_id == row.event_id).unwrap();
            assert_eq!(
                &Event { received_at: None, ..row.clone() },
                original,
                "seed {seed}: saved as it was sent"
            );
            if let Some(key) = &row.idempotency_key {
                assert!(
                    keys_seen.insert((row.tenant_id.clone(), key.clone())),
                    "seed {seed}: one row per key"
                );
            }
            saved_ids.insert(row.event_id.to_string());
        }
        for (n, sent) in events.iter().enumerate() {
            match collapsed_onto.get(&n) {
                None => assert!(
                    saved_ids.contains(&*sent.event_id),
                    "seed {seed}: {} was acknowledged",
                    sent.event_id
                ),
                Some(first) => {
                    assert!(saved_ids.contains(first), "seed {seed}: the first of a key is in the table");
                    assert!(!saved_ids.contains(&*sent.event_id), "seed {seed}: collapsed means not saved");
                }
            }
        }
    }
    store.embedded.stop().await;
}
