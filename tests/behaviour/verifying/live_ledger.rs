//! A ledger that goes on while it is compared, and one that forgets.

use std::sync::atomic::Ordering;

use ledgerline_event::Event;
use ledgerline_ledger::Saver;
use ledgerline_store::keys::{self, ControlKey};
use ledgerline_verify::{Mode, Standing};
use serde_json::json;

use super::{
    agrees, control_rows, delete, emit, found, number, row, set, settle_all, some_work, stored, verify,
};
use ledgerline_test_support::{BEGIN, Ledger, admitted, at, diamond, event, name, scan, text};

#[tokio::test]
async fn events_that_the_drainer_has_not_passed_are_not_settled_and_no_difference() {
    let ledger = some_work().await;
    // Saved, and not drained: a job, the end of a task, a heartbeat.
    ledger.submit_job("t", "new", diamond()).await;
    emit(&ledger, "Task Completed", "waits", json!({"requestId": "waits"})).await;
    emit(&ledger, "Task Heartbeat", "runs", json!({"requestId": "runs", "workerId": "w-1"})).await;
    ledger.deliver().await;
    ledger.advance(600_000);
    let verified = verify(&ledger, Mode::Rebuild).await;
    let expected = [
        ("new", "job-tasks", Standing::NotSettled),
        ("runs", "row-different", Standing::NotSettled),
        ("waits", "row-different", Standing::NotSettled),
        ("waits", "record-open", Standing::NotSettled),
    ];
    let mut kinds = found(&verified);
    kinds.dedup();
    assert_eq!(kinds, expected);
    assert!(verified.agrees());

    // What is settled is not excused by what is not.
    let before = stored(&ledger, &row("runs")).await["history"].as_str().unwrap().to_owned();
    set(&ledger, &row("runs"), "history", text(&before.replace("w-1", "w-2"))).await;
    delete(&ledger, &row("waits")).await;
    let verified = verify(&ledger, Mode::Report).await;
    let faults = verified.differences.iter().filter(|difference| difference.standing == Standing::Fault);
    let faults: Vec<_> = faults.map(|fault| (fault.entity_id.as_str(), fault.difference.as_str())).collect();
    assert_eq!(faults, [("runs", "row-different"), ("waits", "row-missing")]);
    assert_eq!(verify(&ledger, Mode::Rebuild).await.count(Standing::Rebuilt), 2);
    let runs = ledger.stage.tasks.task(&name("t"), "runs").await.unwrap();
    assert_eq!(runs.worker_id.as_deref(), Some("w-1"));
    settle_all(&ledger, "t").await;
    agrees(&verify(&ledger, Mode::Report).await);
}

#[tokio::test]
async fn a_claim_of_a_moment_ago_is_under_way_and_one_that_never_arrives_is_a_difference() {
    let ledger = some_work().await;
    let emitter = ledger.emitter("t");
    let more = json!([{"taskId": "more", "name": "x"}]);
    ledger.stage.jobs.add_tasks(&emitter, "broken", serde_json::from_value(more).unwrap()).await.unwrap();
    ledger.stage.jobs.resume_job(&emitter, "broken").await.unwrap();
    ledger.submit_job("t", "new", diamond()).await;
    let running = keys::task_record("t", "runs", 1);
    set(&ledger, &running, "phase", text("ended")).await;
    set(&ledger, &running, "endEvent", text("evnt_on_its_way")).await;
    set(&ledger, &running, "claimedAt", number(i64::try_from(ledger.now().get()).unwrap())).await;
    let expected = |standing| {
        [
            ("broken", "job-tasks", standing),
            ("broken", "resume-not-saved", standing),
            ("new", "job-of-nobody", standing),
            ("runs", "end-not-saved", standing),
        ]
    };
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), expected(Standing::NotSettled));
    ledger.advance(600_000);
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), expected(Standing::Fault));
    settle_all(&ledger, "t").await;
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), expected(Standing::Fault)[3..]);
}

/// An event that comes when the drainer has long passed its time.
async fn save_late(ledger: &Ledger) {
    let mut late = event("t", "evnt_late", at(BEGIN + 1));
    (late.entity_type, late.entity_id) = (name("TASK"), name("waits"));
    late.event_type = name("Task Processing Started");
    late.context.generation = Some(1);
    ledger.save(late).await;
}

#[tokio::test]
async fn a_late_arrival_is_not_settled_until_it_is_drained() {
    let ledger = some_work().await;
    save_late(&ledger).await;
    let not_settled = [("waits", "row-different", Standing::NotSettled)];
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), not_settled);
    ledger.advance(600_000);
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), not_settled);
    settle_all(&ledger, "t").await;
    agrees(&verify(&ledger, Mode::Report).await);
    delete(&ledger, &row("waits")).await;
    assert_eq!(found(&verify(&ledger, Mode::Report).await), [("waits", "row-missing", Standing::Fault)]);
}

#[tokio::test]
async fn a_late_arrival_without_a_pointer_is_not_settled_until_it_is_old() {
    let ledger = some_work().await;
    save_late(&ledger).await;
    let late =
        control_rows(&ledger, "t").await.into_iter().find(|(pk, _, _)| pk.starts_with("LATE#")).unwrap();
    delete(&ledger, &ControlKey { pk: late.0, sk: late.1 }).await;
    let different = |standing| [("waits", "row-different", standing)];
    assert_eq!(found(&verify(&ledger, Mode::Report).await), different(Standing::NotSettled));
    ledger.advance(600_000);
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), different(Standing::Rebuilt));
    agrees(&verify(&ledger, Mode::Report).await);
}

#[tokio::test]
async fn an_event_that_calls_a_job_completed_may_be_ahead_of_its_record_for_a_moment() {
    let ledger = some_work().await;
    let completed = json!({"jobId": "broken", "totalTasks": 5, "taskStatuses": {}});
    let draft = ledger.emitter("t").event("Job Completed").entity("JOB", "broken").properties(completed);
    draft.emit().await.unwrap();
    ledger.deliver().await;
    let difference = |standing| [("broken", "job-completion", standing)];
    assert_eq!(found(&verify(&ledger, Mode::Report).await), difference(Standing::NotSettled));
    settle_all(&ledger, "t").await;
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), difference(Standing::Fault));
}

#[tokio::test]
async fn work_that_goes_on_while_it_is_compared_is_no_fault_and_nothing_of_it_is_lost() {
    let ledger = some_work().await;
    let working = async {
        for n in 0..5 {
            ledger.submit_job("t", &format!("job-{n}"), diamond()).await;
            ledger.work_off("t").await;
            ledger.advance(60_000);
        }
    };
    let comparing = async {
        let mut times = 0;
        loop {
            let verified = verify(&ledger, Mode::Rebuild).await;
            assert!(verified.agrees(), "{verified:#?}");
            assert_eq!(verified.count(Standing::Rebuilt), 0, "{verified:#?}");
            times += 1;
            if ledger.stage.jobs.job(&name("t"), "job-4").await.is_ok_and(|job| job.job.job.done == 5) {
                return times;
            }
        }
    };
    let ((), times) = tokio::join!(working, comparing);
    assert!(times > 1);
    settle_all(&ledger, "t").await;
    let verified = verify(&ledger, Mode::Report).await;
    agrees(&verified);
    assert_eq!(verified.jobs, 7);
}

#[tokio::test]
async fn expired_records_are_no_difference() {
    let ledger = Ledger::start().await;
    // Far ahead, so that nothing expires while the test runs.
    ledger.time.store(4_000_000_000_000, Ordering::SeqCst);
    const DAY: u64 = 86_400_000;
    let store = &ledger.store;
    let saver = Saver::new(store.clients.dynamo.clone(), &store.names.events_table, store.control(), 1);
    let task_event = |id: &str, task: &str, event_type: &str| {
        let mut event = event("t", id, ledger.now());
        (event.entity_type, event.entity_id) = (name("TASK"), name(task));
        event.event_type = name(event_type);
        event.properties = json!({"requestId": task, "name": "x"}).as_object().unwrap().clone();
        event
    };
    let save = async |event: Event| {
        let saved = saver.save(&[admitted(event)], ledger.now()).await;
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));
    };
    save(task_event("evnt_1", "long", "Task Pending")).await;
    save(task_event("evnt_2", "gone", "Task Completed")).await;
    settle_all(&ledger, "t").await;
    ledger.advance(DAY - 1_000_000);
    save(task_event("evnt_3", "long", "Task Completed")).await;
    settle_all(&ledger, "t").await;
    agrees(&verify(&ledger, Mode::Report).await);
    // The first two expire, and one row with them, later.
    ledger.advance(DAY / 2);
    let events = scan(&store.clients, &store.names.events_table).await;
    for event in events.iter().filter(|event| event["eventId"].as_s().unwrap() != "evnt_3") {
        let delete = store.clients.dynamo.delete_item().table_name(&store.names.events_table);
        delete.key("PK", event["PK"].clone()).key("SK", event["SK"].clone()).send().await.unwrap();
    }
    let before = control_rows(&ledger, "t").await;
    agrees(&verify(&ledger, Mode::Rebuild).await);
    assert_eq!(control_rows(&ledger, "t").await, before);
    // What is still in the ledger must be in the row, and what is made again loses nothing.
    let completed = stored(&ledger, &row("long")).await["history"].as_str().unwrap().to_owned();
    set(&ledger, &row("long"), "history", text(&completed.replace("Task Completed", "Task Failed"))).await;
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), [("long", "row-different", Standing::Rebuilt)]);
    assert_eq!(
        ledger.stage.tasks.task(&name("t"), "long").await.unwrap().pending_at,
        Some(at(4_000_000_000_000))
    );
    agrees(&verify(&ledger, Mode::Report).await);
}
