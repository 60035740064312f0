//! Savers alone: whatever happens to them, what they acknowledge is in the table, once.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use aws_sdk_dynamodb::types::AttributeValue;
use fastrand::Rng;
use ledgerline_event::ValidEvent;
use ledgerline_ledger::{Outcome, SaveError};
use ledgerline_simulation::{BEGINNING, Faults, Simulation, Store, histories, wanted};
use ledgerline_store::keys;
use ledgerline_test_support::{admitted, at, event, rows_of, text};

const TENANT: &str = "t";
const DAY_MS: u64 = 24 * 3600 * 1000;
/// From this step on all goes well, so that every history ends.
const TROUBLE_ENDS: u64 = 300;

/// Events up to a day late and out of order; some share an idempotency key.
fn events(random: &mut Rng) -> Vec<ValidEvent> {
    let count = random.usize(3..12);
    (0..count)
        .map(|n| {
            let late = if random.bool() { random.u64(..50) } else { random.u64(..DAY_MS) };
            let mut event = event(TENANT, &format!("e-{n}"), at(BEGINNING - late));
            if random.u8(..3) == 0 {
                event.idempotency_key = Some(format!("key-{}", random.u8(..3)));
            }
            admitted(event)
        })
        .collect()
}

/// What savers have answered: the event's id, and the one it collapsed onto.
type Acknowledged = BTreeMap<String, Option<String>>;

/// One history of deliveries. Returns what was acknowledged and the hash of its trace.
async fn history(store: &Store, seed: u64) -> (Acknowledged, u64) {
    let mut random = Rng::with_seed(seed);
    let mut faults = Faults::random(&mut random);
    let mut simulation = Simulation::new(store, seed);
    let mut waiting = events(&mut random);
    let mut delivered: BTreeMap<String, Vec<ValidEvent>> = BTreeMap::new();
    let answers = Rc::new(RefCell::new(Vec::<(String, Vec<Result<Outcome, SaveError>>)>::new()));
    let mut acknowledged = Acknowledged::new();
    let mut saver = Rc::new(store.saver());
    let mut steps = 0;
    loop {
        while !waiting.is_empty() && simulation.live() < 3 {
            let batch = waiting.split_off(waiting.len() - random.usize(1..=waiting.len().min(4)));
            let name = format!("saver-{}", delivered.len());
            delivered.insert(name.clone(), batch.clone());
            // A process serves several deliveries and remembers what it has registered.
            if random.bool() {
                saver = Rc::new(store.saver());
            }
            let (saver, answers) = (saver.clone(), answers.clone());
            let clock = simulation.clock(random.i64(-90_000..90_000));
            simulation.spawn(name.clone(), async move {
                let answered = saver.save(&batch, clock()).await;
                answers.borrow_mut().push((name, answered));
            });
        }
        steps += 1;
        if steps == TROUBLE_ENDS {
            faults = Faults::none();
        }
        if random.u8(..20) == 0 {
            announce_watermarks(store, &mut random, simulation.now().get()).await;
        }
        let more = simulation.step(&faults).await;
        for name in simulation.take_killed() {
            waiting.extend(delivered[&name].iter().cloned());
        }
        for (name, answered) in answers.borrow_mut().drain(..) {
            for (sent, answer) in delivered[&name].iter().zip(answered) {
                let first = match answer {
                    Ok(Outcome::Saved { .. } | Outcome::Duplicate { .. }) => None,
                    Ok(Outcome::Collapsed { first, .. }) => Some(first.to_string()),
                    Err(error) => {
                        assert!(error.is_transient(), "{error}");
                        waiting.push(sent.clone());
                        continue;
                    }
                };
                acknowledged.insert(sent.event.event_id.to_string(), first);
                if steps < TROUBLE_ENDS && random.u8(..4) == 0 {
                    waiting.push(sent.clone());
                }
            }
        }
        if !more && waiting.is_empty() {
            break;
        }
    }
    assert!(delivered.values().flatten().all(|sent| acknowledged.contains_key(&*sent.event.event_id)));
    (acknowledged, simulation.trace_hash())
}

/// Announces watermarks as a drainer does before it reads.
async fn announce_watermarks(store: &Store, random: &mut Rng, now: u64) {
    let key = keys::drain(TENANT, "jobs");
    let (horizon, lane) = (now - random.u64(..DAY_MS), now - random.u64(..1_000));
    let put = store.clients.dynamo.put_item().table_name(&store.names.control_table);
    let put = put.item("PK", text(&key.pk)).item("SK", text(&key.sk));
    let put = put.item("horizon", text(&format!("TIMESTAMP#{horizon}")));
    put.item("laneHorizon", AttributeValue::N(lane.to_string())).send().await.unwrap();
}

#[test]
fn what_savers_acknowledge_is_in_the_table_once() {
    histories(wanted(300), async |store, seed| {
        let (acknowledged, _) = history(store, seed).await;
        let rows = rows_of(&store.clients, &store.names.events_table, TENANT).await;
        let all = |attribute: &str| -> Vec<String> {
            rows.iter()
                .filter_map(|row| row.get(attribute))
                .map(|value| value.as_s().unwrap().clone())
                .collect()
        };
        let (ids, idempotency_keys) = (all("eventId"), all("idempotencyKey"));
        for values in [&ids, &idempotency_keys] {
            assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), values.len(), "twice there: {values:?}");
        }
        for (id, first) in &acknowledged {
            let there = first.as_ref().unwrap_or(id);
            assert!(ids.contains(there), "{id} was acknowledged, and {there} is not there");
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_history() {
    histories(30, async |store, seed| {
        let (_, first) = history(store, seed).await;
        let (_, second) = history(store, seed).await;
        assert_eq!(first, second);
    });
}
