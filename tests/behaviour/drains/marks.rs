//! Marks lead sweeps to what was left undone, whatever happens while they are put or deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use ledgerline_drains::DrainState;
use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_store::keys;
use serde_json::{Value, json};
use tokio::sync::Notify;

use ledgerline_test_support::{Ledger, another_process, event, name};

/// Whether a call is about a record of this partition.
fn is_about(call: &Call, operation: &str, pk: &str) -> bool {
    let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    call.operation == operation
        && [&body["Key"]["PK"]["S"], &body["Item"]["PK"]["S"]]
            .iter()
            .any(|found| found.as_str().is_some_and(|found| found.starts_with(pk)))
}

async fn owner(ledger: &Ledger, tenant: &str) -> Option<String> {
    let key = keys::drain(tenant, "workflow_runner");
    ledger.store.control().get::<DrainState>(&key).await.unwrap().unwrap().owner
}

#[tokio::test]
async fn a_mark_that_cannot_be_written_fails_its_own_record_alone_and_the_lease_is_released() {
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body);
        let fails =
            moment == Moment::Before && is_about(&call, "UpdateItem", "DIRTY") && body.contains("\"a#");
        let verdict = match fails {
            true => Verdict::Fail { status: 500, code: "InternalServerError".into() },
            false => Verdict::Proceed,
        };
        Box::pin(async move { verdict })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    for tenant in ["a", "b"] {
        ledger.register(tenant, json!({"workflowType": "w", "kind": "task"})).await;
        ledger.subscribe(tenant, json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
        ledger.save(event(tenant, "e1", ledger.now())).await;
    }
    let swept = ledger.stage.sweep.wake(BTreeSet::from([name("a"), name("b")]), None).await.unwrap();
    assert_eq!(swept.unmarked, BTreeSet::from([name("a")]));
    assert_eq!((owner(&ledger, "a").await, owner(&ledger, "b").await), (None, None));
    for tenant in ["a", "b"] {
        assert_eq!(ledger.starts(tenant).await, BTreeMap::from([("e1".into(), 1)]));
    }
}

#[tokio::test]
async fn a_throttled_mark_is_written_after_the_lease_is_released() {
    let throttled = Arc::new(AtomicUsize::new(0));
    let (counted, released) = (throttled.clone(), Arc::new(AtomicUsize::new(usize::MAX)));
    let noted = released.clone();
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let mut verdict = Verdict::Proceed;
        if moment == Moment::Before && is_about(&call, "UpdateItem", "DIRTY") {
            if counted.fetch_add(1, Ordering::SeqCst) < 3 {
                let code = "ProvisionedThroughputExceededException".into();
                verdict = Verdict::Fail { status: 400, code };
            }
        } else if moment == Moment::Before
            && is_about(&call, "UpdateItem", "DRAIN#a")
            && String::from_utf8_lossy(&call.body).contains("REMOVE")
        {
            noted.fetch_min(counted.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        Box::pin(async move { verdict })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("a", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("a", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    ledger.save(event("a", "e1", ledger.now())).await;
    released.store(usize::MAX, Ordering::SeqCst);
    ledger.drain("a").await;
    assert_eq!(throttled.load(Ordering::SeqCst), 4, "three refused attempts and one that works");
    assert_eq!(owner(&ledger, "a").await, None);
    let mark: Option<Value> =
        ledger.store.control().get(&keys::dirty_mark("a", "workflow_runner")).await.unwrap();
    assert!(mark.is_some());
    assert_eq!(released.load(Ordering::SeqCst), 1, "the lease does not wait for the mark");
}

#[tokio::test]
async fn a_mark_of_the_version_before_is_found_and_cleared() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    ledger.stage.sweep.sweep(None).await.unwrap();
    ledger.stage.sweep.sweep(None).await.unwrap();
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(60_000);
    let old = keys::old_dirty_mark("t", "workflow_runner");
    ledger.store.control().put(&old, &json!({"fence": 1, "markedAt": 1})).unwrap().send().await.unwrap();
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await, BTreeMap::from([("e1".into(), 1)]));
    assert_eq!(ledger.store.control().get::<Value>(&old).await.unwrap(), None);
}

#[tokio::test]
async fn a_mark_that_is_written_while_a_sweep_ends_its_visit_is_not_deleted() {
    let (ends, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (held, fails) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (at_end, may_go, is_held, acquire_fails) = (ends.clone(), go_on.clone(), held.clone(), fails.clone());
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body).into_owned();
        let of_state = moment == Moment::Before && is_about(&call, "UpdateItem", "DRAIN#t");
        let of_drainer = of_state && body.contains("workflow_runner");
        let releases = of_drainer && body.contains("REMOVE") && is_held.swap(false, Ordering::SeqCst);
        let fails =
            of_drainer && body.contains("laneHorizon = :lane") && acquire_fails.load(Ordering::SeqCst);
        let (at_end, may_go) = (at_end.clone(), may_go.clone());
        Box::pin(async move {
            if releases {
                at_end.notify_one();
                may_go.notified().await;
            }
            match fails {
                true => Verdict::Fail { status: 400, code: "ValidationException".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    let key = keys::dirty_mark("t", "workflow_runner");
    let mark = json!({"fence": 0, "markedAt": 1});
    ledger.store.control().put(&key, &mark).unwrap().send().await.unwrap();
    held.store(true, Ordering::SeqCst);
    let (sweeping, other) = (ledger.stage.clone(), another_process(&ledger).await);
    let sweep = tokio::spawn(async move { sweeping.sweep.sweep(None).await });
    ends.notified().await;
    // The visit has read everything, and has not released its lease. Now an event comes, and its wake-up fails.
    ledger.save(event("t", "e1", ledger.now())).await;
    fails.store(true, Ordering::SeqCst);
    let woken = other.sweep.wake(BTreeSet::from([name("t")]), None).await.unwrap();
    assert!(woken.trouble > 0 && woken.unmarked.is_empty(), "{woken:?}");
    fails.store(false, Ordering::SeqCst);
    go_on.notify_one();
    sweep.await.unwrap().unwrap();
    assert!(ledger.store.control().get::<Value>(&key).await.unwrap().is_some(), "nothing leads to the event");
    ledger.advance(120_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(ledger.starts("t").await, BTreeMap::from([("e1".into(), 1)]));
    ledger.advance(120_000);
    ledger.stage.sweep.sweep(None).await.unwrap();
    assert_eq!(ledger.store.control().get::<Value>(&key).await.unwrap(), None, "it is cleared in the end");
}

#[tokio::test]
async fn a_mark_whose_partition_takes_no_writes_is_written_to_the_next_one() {
    let own = keys::dirty_mark("t", "workflow_runner");
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let body = String::from_utf8_lossy(&call.body);
        let of_partition = moment == Moment::Before && is_about(&call, "UpdateItem", &own.pk);
        let fails = of_partition
            || (moment == Moment::Before
                && is_about(&call, "UpdateItem", "DRAIN#t")
                && body.contains("laneHorizon = :lane")
                && body.contains("workflow_runner"));
        let verdict = match fails {
            true => Verdict::Fail { status: 400, code: "ValidationException".into() },
            false => Verdict::Proceed,
        };
        Box::pin(async move { verdict })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    let woken = ledger.stage.sweep.wake(BTreeSet::from([name("t")]), None).await.unwrap();
    assert!(woken.trouble > 0 && woken.unmarked.is_empty(), "{woken:?}");
    let spare = keys::fallback_dirty_mark("t", "workflow_runner");
    assert!(ledger.store.control().get::<Value>(&spare).await.unwrap().is_some());
}
