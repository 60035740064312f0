//! The simulation itself: its services answer as the SDK expects, and its time, pauses and deaths are what they claim.

mod queues;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use ledgerline_ledger::Emitter;
use ledgerline_simulation::{BEGINNING, Faults, Simulation, Store};
use ledgerline_store::{Fault, Payloads, StoreError};
use ledgerline_test_support::{name, rows_of, text};
use serde_json::{Value, json};

#[tokio::test(start_paused = true)]
async fn bus_and_bucket_take_what_an_emitter_sends() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let clock = simulation.clock(0);
    let emitter = Emitter::with_clock(&store.clients, &store.names, name("t"), name("shop"), clock);
    simulation.spawn("emitter", async move {
        let large = json!({ "output": "x".repeat(300_000), "size": 3 });
        let draft = emitter.event("price.changed").entity("ITEM", "1").properties(large);
        draft.event_id(name("e-1")).emit().await.unwrap();
    });
    simulation.run_until_idle(&Faults { refuse_entry: 0.5, ..Faults::none() }).await;

    let bus = simulation.take_bus();
    let details: Vec<Value> = bus.iter().map(|detail| serde_json::from_str(detail).unwrap()).collect();
    assert_eq!(details.len(), 1);
    let key = details[0]["properties"]["_s3Overflow"]["key"].as_str().unwrap();
    let payloads = Payloads::new(store.clients.s3.clone(), &store.names.payload_bucket);
    assert!(payloads.get(key).await.unwrap().unwrap().len() > 300_000);
    assert!(!payloads.put_once(key, b"other".to_vec()).await.unwrap());
    assert_eq!(payloads.get("missing").await.unwrap(), None);
    assert_eq!(simulation.requests()["s3.PutObject"], 1);
    assert!(simulation.requests()["events.PutEvents"] >= 1);
}

#[tokio::test(start_paused = true)]
async fn timers_and_clocks_show_the_same_time() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let (exact, ahead) = (simulation.clock(0), simulation.clock(90_000));
    simulation.spawn("sleeper", async move {
        assert_eq!(ahead().get(), BEGINNING + 90_000);
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert!((BEGINNING + 15_000..BEGINNING + 15_010).contains(&exact().get()));
    });
    simulation.run_until_idle(&Faults::none()).await;
    simulation.advance(1_000).await;
    assert!(simulation.now().get() >= BEGINNING + 16_000);
}

/// An actor that puts one item and notes the answer that it gets.
fn put_one(
    simulation: &mut Simulation<'_>,
    store: &Store,
    id: &str,
) -> Rc<RefCell<Option<Result<(), Fault>>>> {
    let received = Rc::new(RefCell::new(None));
    let (answer, clients, table) =
        (received.clone(), store.clients.clone(), store.names.events_table.clone());
    let sk = id.to_owned();
    simulation.spawn(id, async move {
        let put =
            clients.dynamo.put_item().table_name(table).item("PK", text("TENANT#t")).item("SK", text(&sk));
        let put = put.condition_expression("attribute_not_exists(PK)").send().await;
        *answer.borrow_mut() = Some(put.map(|_| ()).map_err(|error| StoreError::new("PutItem", error).fault));
    });
    received
}

async fn is_there(store: &Store, id: &str) -> bool {
    let rows = rows_of(&store.clients, &store.names.events_table, "t").await;
    rows.iter().any(|row| row["SK"] == text(id))
}

#[tokio::test(start_paused = true)]
async fn each_fault_is_what_it_says() {
    let store = Store::start().await;
    let none = Faults::none();
    let mut simulation = Simulation::new(&store, 1);

    let received = put_one(&mut simulation, &store, "failed");
    simulation.run_until_idle(&Faults { fail: 1.0, ..none.clone() }).await;
    assert!(matches!(received.take(), Some(Err(Fault::Throttled | Fault::Unavailable))));
    assert!(!is_there(&store, "failed").await);

    let received = put_one(&mut simulation, &store, "lost");
    simulation.run_until_idle(&Faults { lose: 1.0, ..none.clone() }).await;
    assert_eq!(received.take(), Some(Err(Fault::Unavailable)));
    assert!(is_there(&store, "lost").await);

    let received = put_one(&mut simulation, &store, "lost");
    simulation.run_until_idle(&none).await;
    assert_eq!(received.take(), Some(Err(Fault::ConditionFailed)));

    let received = put_one(&mut simulation, &store, "lingering");
    simulation.step(&Faults { linger: 1.0, ..none.clone() }).await;
    assert_eq!(received.take(), Some(Err(Fault::Unavailable)));
    assert!(!is_there(&store, "lingering").await);
    simulation.run_until_idle(&none).await;
    assert!(is_there(&store, "lingering").await);

    let received = put_one(&mut simulation, &store, "late");
    simulation.step(&Faults { late_answer: 1.0, ..none.clone() }).await;
    assert!(is_there(&store, "late").await && received.borrow().is_none());
    simulation.run_until_idle(&none).await;
    assert_eq!(received.take(), Some(Ok(())));

    let received = put_one(&mut simulation, &store, "paused");
    simulation.step(&Faults { pause: 1.0, ..none.clone() }).await;
    assert!(received.borrow().is_none());
    simulation.run_until_idle(&none).await;
    assert_eq!(received.take(), Some(Ok(())));

    let received = put_one(&mut simulation, &store, "killed");
    simulation.run_until_idle(&Faults { kill: 1.0, ..none.clone() }).await;
    assert_eq!(received.take(), None);
    assert_eq!(simulation.take_killed(), ["killed"]);
}

#[tokio::test(start_paused = true)]
async fn a_killed_actor_never_runs_again() {
    let store = Store::start().await;
    let mut simulation = Simulation::new(&store, 1);
    let turns = Rc::new(Cell::new(0));
    let counted = turns.clone();
    simulation.spawn("worker", async move {
        loop {
            counted.set(counted.get() + 1);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    while turns.get() < 5 {
        assert!(simulation.step(&Faults::none()).await);
    }
    simulation.kill("worker");
    assert!(!simulation.is_live("worker") && simulation.live() == 0);
    assert!(!simulation.step(&Faults::none()).await);
    assert_eq!(turns.get(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_paused_actor_sleeps_while_leases_end() {
    let store = Store::start().await;
    // Some pauses outlast a lease, some do not.
    let lengths: Vec<u64> = {
        let mut lengths = Vec::new();
        for seed in 0..20 {
            let mut simulation = Simulation::new(&store, seed);
            let received = put_one(&mut simulation, &store, &format!("paused-{seed}"));
            simulation.step(&Faults { pause: 1.0, ..Faults::none() }).await;
            simulation.run_until_idle(&Faults::none()).await;
            assert_eq!(received.take(), Some(Ok(())));
            lengths.push(simulation.now().get() - BEGINNING);
        }
        lengths
    };
    assert!(lengths.iter().any(|ms| *ms > 60_000) && lengths.iter().any(|ms| *ms < 5_000), "{lengths:?}");
}
