//! Whose a run is: what a runner may still do when its time is over, and how it lets go.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use ledgerline_embedded::{Moment, Verdict};
use ledgerline_event::{LogDraft, Name, RunEventType, RunState};
use ledgerline_runs::{Appended, ReleasePlan, Released, RunAcquisition, RunLease, RunMessage};
use ledgerline_workflow::{Ctx, Error, Visited, Workflows};
use serde_json::{Map, Value, json};

use ledgerline_test_support::{Ledger, TENANT, name};

const LEASE_MS: u64 = 60_000;

async fn sleeps(ctx: Ctx, _: Value) -> Result<(), Error> {
    ctx.sleep(Duration::from_secs(3_600)).await
}

async fn take(ledger: &Ledger, run_id: &Name) -> RunLease {
    match ledger.stage.runs.leases.acquire_run(&name(TENANT), run_id, LEASE_MS).await.unwrap() {
        RunAcquisition::Acquired(lease) => *lease,
        other => panic!("{other:?}"),
    }
}

fn draft(event_type: RunEventType, id: &Name, data: Value) -> LogDraft {
    let event_data: Map<String, Value> = serde_json::from_value(data).unwrap();
    LogDraft { event_type, correlation_id: id.clone(), event_data }
}

/// A timer may be over by one clock and not by another, whose runner lets the run go until it is. If the runner that had the run
/// before could delete the timer after that, no runner would visit the run again.
#[tokio::test]
async fn a_runner_that_has_lost_its_lease_changes_nothing_but_the_log_of_its_run() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("sleeps", "1", sleeps));
    let run_id = ledger.start_run("sleeps", Value::Null).await;
    assert_eq!(ledger.run_all(&runner).await, [Visited::Suspended]);
    let first = take(&ledger, &run_id).await;
    ledger.advance(LEASE_MS);
    let mut second = take(&ledger, &run_id).await;
    let (log, _) = ledger.stage.runs.logs.read_log(&second.record.clone(), &name(TENANT)).await.unwrap();
    let how = ReleasePlan::UntilWoken { alarm_at: None };
    let released = ledger.stage.runs.leases.release_run(&mut second, log.sequence, how).await.unwrap();
    assert!(matches!(released, Released::Done), "{released:?}");

    let wait_id = log.history.open_waits().next().unwrap().wait_id.clone();
    let elapsed = draft(RunEventType::WaitCompleted, &wait_id, json!({"outcome": "elapsed"}));
    let failed = draft(RunEventType::RunFailed, &run_id, json!({"error": "late"}));
    for drafts in [vec![elapsed], log.history.closings().into_iter().chain([failed]).collect()] {
        let appended = ledger.stage.runs.logs.append(&mut log.clone(), &drafts, Some(&first)).await.unwrap();
        assert!(matches!(appended, Appended::Lost), "{appended:?}");
    }
    assert_eq!(ledger.run_state(&run_id).await, RunState::Running);

    ledger.advance(3_600_000);
    ledger.stage.run_sweep.sweep_runs().await.unwrap();
    assert_eq!(ledger.run_all(&runner).await.last(), Some(&Visited::Ended));
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

/// A message that came before would find the run held, and be thrown away.
#[tokio::test]
async fn a_runner_out_of_time_releases_the_lease_before_it_enqueues_the_run() {
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = calls.clone();
    let ledger = Ledger::on_one_clock(Some(Arc::new(move |call, moment| {
        if moment == Moment::Before {
            seen.lock().unwrap().push(call.operation);
        }
        Box::pin(async { Verdict::Proceed })
    })))
    .await;
    let runner = ledger.runner(Workflows::new().register("sleeps", "1", sleeps));
    let run_id = ledger.start_run("sleeps", Value::Null).await;
    calls.lock().unwrap().clear();
    let message = RunMessage { tenant_id: name(TENANT), run_id: run_id.clone() };
    let visited = runner.visit(&message, Some(Instant::now().into())).await.unwrap();
    assert_eq!(visited, Visited::Suspended);
    let calls = calls.lock().unwrap().clone();
    assert_eq!(calls[calls.len() - 2..], ["UpdateItem", "SendMessageBatch"], "{calls:?}");
    // Were the message lost, the sweep would send it again.
    let record: Value =
        ledger.store.control().get(&ledgerline_store::keys::run(TENANT, &run_id)).await.unwrap().unwrap();
    assert!(record["dueAt"].is_u64() && record["leaseOwner"].is_null(), "{record}");
}

/// A runner may take a run that another has begun for one of elsewhere.
#[tokio::test]
async fn a_run_whose_lease_is_held_stays_due() {
    let ledger = Ledger::on_one_clock(None).await;
    let run_id = ledger.start_run("sleeps", Value::Null).await;
    take(&ledger, &run_id).await;
    ledger.stage.runs.settle_run(&name(TENANT), &run_id).await.unwrap();
    let key = ledgerline_store::keys::run(TENANT, &run_id);
    let record: Value = ledger.store.control().get(&key).await.unwrap().unwrap();
    assert!(record["dueAt"].is_u64(), "no sweep would notice that its holder died: {record}");
}
