//! What is stored of tasks and jobs, compared with the ledger: what differs is found and named, what is derived can be
//! made again, and what is only on its way is no fault.

mod command;
mod live_ledger;
mod runs;

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::catalogue::TaskState;
use ledgerline_store::keys::{self, ControlKey};
use ledgerline_verify::{Mode, Standing, Verified};
use serde_json::{Value, json};

use ledgerline_test_support::{Item, Ledger, diamond, event, name, scan, text};

/// A diamond that is completed, one whose root failed, a task that runs, and one that waits; settled.
async fn some_work() -> Ledger {
    // Its future is large, and every test here holds one.
    Box::pin(async {
        let ledger = Ledger::start().await;
        ledger.submit_job("t", "done", diamond()).await;
        ledger.work_off("t").await;
        ledger.submit_job("t", "broken", diamond()).await;
        ledger.settle("t").await;
        let roots = ledger.take_all().await;
        ledger.fail(&roots[0]).await;
        ledger.complete(&roots[1], Value::Null).await;
        ledger.submit_task("t", json!({"name": "x", "requestId": "runs"})).await;
        ledger.settle("t").await;
        let running = ledger.take_all().await;
        emit(&ledger, "Task Processing Started", "runs", json!({"requestId": "runs", "workerId": "w-1"}))
            .await;
        assert_eq!(running.len(), 1);
        ledger.submit_task("t", json!({"name": "x", "requestId": "waits"})).await;
        settle_all(&ledger, "t").await;
        ledger
    })
    .await
}

async fn emit(ledger: &Ledger, event_type: &str, task: &str, properties: Value) {
    ledger.advance(1);
    let emitter = ledger.emitter("t").with_scope(|scope| scope.context.generation = Some(1));
    emitter.event(event_type).entity("TASK", task).properties(properties).emit().await.unwrap();
}

/// Drains everything, and lets so much time pass that `verify` counts nothing as recent.
async fn settle_all(ledger: &Ledger, tenant: &str) {
    ledger.settle(tenant).await;
    ledger.advance(120_000);
    ledger.settle(tenant).await;
}

async fn verify(ledger: &Ledger, mode: Mode) -> Verified {
    ledger.stage.verify.verify(&name("t"), mode, &mut |_| {}).await.unwrap()
}

/// The differences in short: the id of the entity, the kind of the difference, and its standing.
fn found(verified: &Verified) -> Vec<(&str, &str, Standing)> {
    let of = verified.differences.iter();
    of.map(|found| (found.entity_id.as_str(), found.difference.as_str(), found.standing)).collect()
}

#[track_caller]
fn agrees(verified: &Verified) {
    assert!(verified.differences.is_empty(), "{:#?}", verified.differences);
}

fn row(task: &str) -> ControlKey {
    keys::task_summary("t", task)
}

async fn set(ledger: &Ledger, key: &ControlKey, attribute: &str, value: AttributeValue) {
    let update = ledger.store.control().update(key).update_expression("SET #attribute = :value");
    let update = update.expression_attribute_names("#attribute", attribute);
    update.expression_attribute_values(":value", value).send().await.unwrap();
}

async fn unset(ledger: &Ledger, key: &ControlKey, attribute: &str) {
    let update = ledger.store.control().update(key).update_expression("REMOVE #attribute");
    update.expression_attribute_names("#attribute", attribute).send().await.unwrap();
}

async fn delete(ledger: &Ledger, key: &ControlKey) {
    ledger.store.control().delete(key).send().await.unwrap();
}

async fn stored(ledger: &Ledger, key: &ControlKey) -> Value {
    ledger.store.control().get(key).await.unwrap().unwrap()
}

fn number(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// The rows of a tenant in the control table, sorted.
async fn control_rows(ledger: &Ledger, tenant: &str) -> Vec<(String, String, Item)> {
    let text = |row: &Item, name: &str| row[name].as_s().unwrap().clone();
    let rows = scan(&ledger.store.clients, &ledger.store.names.control_table).await;
    let mut rows: Vec<_> = rows.into_iter().map(|row| (text(&row, "PK"), text(&row, "SK"), row)).collect();
    rows.retain(|(pk, _, _)| pk.split('#').nth(1) == Some(tenant));
    rows.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    rows
}

#[tokio::test]
async fn everything_agrees_after_jobs_that_completed_failed_and_were_resumed() {
    let ledger = some_work().await;
    let verified = verify(&ledger, Mode::Report).await;
    agrees(&verified);
    assert_eq!((verified.tasks, verified.jobs), (9, 2));
    assert!(verified.events > 20 && verified.agrees());

    ledger.stage.jobs.resume_job(&ledger.emitter("t"), "broken").await.unwrap();
    ledger.settle("t").await;
    agrees(&verify(&ledger, Mode::Report).await);
    ledger.work_off("t").await;
    agrees(&verify(&ledger, Mode::Report).await);
    settle_all(&ledger, "t").await;
    let verified = verify(&ledger, Mode::Rebuild).await;
    agrees(&verified);
    assert_eq!((verified.tasks, verified.jobs), (12, 2));
    let unknown = ledger.stage.verify.verify(&name("u"), Mode::Rebuild, &mut |_| {}).await.unwrap();
    assert_eq!((unknown.tasks, unknown.jobs, unknown.events, unknown.differences.len()), (0, 0, 0, 0));
}

#[tokio::test]
async fn refused_ends_and_events_of_other_systems_are_no_difference() {
    let ledger = some_work().await;
    let emit_job = |job: &'static str, event_type: &'static str, properties: Value| {
        ledger.advance(1);
        ledger.emitter("t").event(event_type).entity("JOB", job).properties(properties).emit()
    };
    let one = |id: &str, parent: &[&str]| json!([{"taskId": id, "name": "x", "dependsOn": parent}]);
    // Refused: a cycle, an id that is taken, tasks for a job that is completed, and tasks for a job that does not exist.
    let created =
        |job: &str, tasks: Value| json!({"jobId": job, "requestId": job, "tasks": tasks, "totalTasks": 1});
    emit_job("cycle", "Job Created", created("cycle", one("a", &["a"]))).await.unwrap();
    emit_job("done", "Job Created", created("done", one("other", &[]))).await.unwrap();
    for job in ["done", "nowhere"] {
        let added =
            json!({"jobId": job, "newTasks": one("more", &[]), "previousTotalTasks": 5, "totalTasksNow": 6});
        emit_job(job, "Job Tasks Added", added).await.unwrap();
    }
    // A job and a task of another system, whose events name no generation.
    emit_job("foreign", "Job Created", created("foreign", one("a", &[]))).await.unwrap();
    ledger.settle("t").await;
    for (event_type, task) in [
        ("Task Processing Started", "foreign:a"),
        ("Task Completed", "foreign:a"),
        ("Task Completed", "stranger"),
    ] {
        ledger.advance(1);
        let properties = json!({"requestId": task, "jobId": task.split_once(':').map(|(job, _)| job)});
        let draft = ledger.emitter("t").event(event_type).entity("TASK", task).properties(properties);
        draft.emit().await.unwrap();
    }
    settle_all(&ledger, "t").await;
    assert_eq!(ledger.job("t", "foreign").await.job.job.done, 1);
    let verified = verify(&ledger, Mode::Report).await;
    agrees(&verified);
    assert_eq!((verified.tasks, verified.jobs), (11, 5));
}

#[tokio::test]
async fn missing_stale_misplaced_and_orphaned_rows_are_found_and_rebuilt() {
    let ledger = some_work().await;
    let whole = control_rows(&ledger, "t").await;
    delete(&ledger, &row("done:task-A")).await;
    let completed = stored(&ledger, &row("done:task-B")).await;
    set(&ledger, &row("waits"), "history", text(completed["history"].as_str().unwrap())).await;
    let told = stored(&ledger, &row("broken:task-A")).await["history"].as_str().unwrap().to_owned();
    set(&ledger, &row("broken:task-A"), "history", text(&told.replace("no key", "no luck"))).await;
    set(&ledger, &row("done:task-C"), "history", text("{")).await;
    set(&ledger, &row("runs"), "listIn", text("TASKS#t#completed")).await;
    set(&ledger, &row("done:task-D"), "listAt", text("1767453739000#done:task-D")).await;
    unset(&ledger, &row("done:task-E"), "listIn").await;
    let mut orphan = scan_row(&ledger, &row("done:task-B")).await;
    orphan.insert("PK".into(), text("TASK#t#nobody"));
    put(&ledger, orphan).await;

    let expected = |standing| {
        [
            ("broken:task-A", "row-different", standing),
            ("done:task-A", "row-missing", standing),
            ("done:task-C", "row-different", standing),
            ("done:task-D", "row-in-wrong-list", standing),
            ("done:task-E", "row-in-wrong-list", standing),
            ("nobody", "row-of-nobody", standing),
            ("runs", "row-in-wrong-list", standing),
            ("waits", "row-different", standing),
        ]
    };
    let verified = verify(&ledger, Mode::Report).await;
    assert_eq!(found(&verified), expected(Standing::Fault));
    assert!(!verified.agrees());
    let detail = |id: &str| {
        let of = verified.differences.iter().find(|difference| difference.entity_id == id).unwrap();
        of.detail.clone()
    };
    assert_eq!(detail("broken:task-A"), "differs from the ledger in the fields: error");
    assert_eq!(detail("waits"), "it says completed, and the ledger says pending");
    assert!(detail("runs").starts_with("is in TASKS#t#completed at "), "{}", detail("runs"));
    assert!(detail("runs").contains("belongs in TASKS#t#processing at "), "{}", detail("runs"));

    let rebuilt = verify(&ledger, Mode::Rebuild).await;
    assert_eq!(found(&rebuilt), expected(Standing::Rebuilt));
    assert!(rebuilt.agrees());
    agrees(&verify(&ledger, Mode::Report).await);
    let without = |rows: Vec<(String, String, Item)>| {
        let versions = |(pk, sk, mut row): (String, String, Item)| {
            row.remove("version");
            (pk, sk, row)
        };
        rows.into_iter().map(versions).collect::<Vec<_>>()
    };
    assert_eq!(without(control_rows(&ledger, "t").await), without(whole));
    let running = ledger.stage.tasks.tasks(&name("t"), Some(TaskState::Processing), 10, None).await.unwrap();
    assert_eq!(running.items.iter().map(|task| task.request_id.as_str()).collect::<Vec<_>>(), ["runs"]);
}

async fn scan_row(ledger: &Ledger, key: &ControlKey) -> Item {
    let rows = control_rows(ledger, "t").await;
    rows.into_iter().find(|(pk, sk, _)| *pk == key.pk && *sk == key.sk).unwrap().2
}

async fn put(ledger: &Ledger, row: Item) {
    let (dynamo, table) = (&ledger.store.clients.dynamo, &ledger.store.names.control_table);
    dynamo.put_item().table_name(table).set_item(Some(row)).send().await.unwrap();
}

#[tokio::test]
async fn another_tenants_rows_are_never_touched() {
    let ledger = some_work().await;
    ledger.submit_job("u", "done", diamond()).await;
    // The worker takes what waits of both tenants.
    ledger.work_off("u").await;
    settle_all(&ledger, "u").await;
    settle_all(&ledger, "t").await;
    // All of it wrong, and some of it in a list of the first tenant.
    delete(&ledger, &keys::task_summary("u", "done:task-A")).await;
    set(&ledger, &keys::task_summary("u", "done:task-B"), "listIn", text("TASKS#t#completed")).await;
    set(&ledger, &keys::task_summary("u", "done:task-C"), "listIn", text("TASKS#u#failed")).await;
    set(&ledger, &keys::job("u", "done"), "listIn", text("JOBS#t#failed")).await;
    let before = control_rows(&ledger, "u").await;
    let verified = verify(&ledger, Mode::Rebuild).await;
    let foreign = [
        ("JOB#u#done", "row-of-another", Standing::Fault),
        ("TASK#u#done:task-B", "row-of-another", Standing::Fault),
    ];
    assert_eq!(found(&verified), foreign);
    assert_eq!(control_rows(&ledger, "u").await, before);
    let own = ledger.stage.verify.verify(&name("u"), Mode::Rebuild, &mut |_| {}).await.unwrap();
    assert_eq!(own.count(Standing::Rebuilt), 4, "{:#?}", own.differences);
    agrees(&verify(&ledger, Mode::Report).await);
}

#[tokio::test]
async fn a_job_in_the_wrong_list_is_found_and_listed_where_it_belongs() {
    let ledger = some_work().await;
    set(&ledger, &keys::job("t", "done"), "listIn", text("JOBS#t#running")).await;
    set(&ledger, &keys::job("t", "broken"), "listAt", text("nowhere")).await;
    let expected =
        |standing| [("broken", "job-in-wrong-list", standing), ("done", "job-in-wrong-list", standing)];
    assert_eq!(found(&verify(&ledger, Mode::Report).await), expected(Standing::Fault));
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), expected(Standing::Rebuilt));
    agrees(&verify(&ledger, Mode::Report).await);
    let running = ledger.stage.jobs.jobs(&name("t"), None, 10, None).await.unwrap();
    let states: Vec<_> =
        running.items.iter().map(|job| (job.job.job_id.as_str(), job.state.as_str())).collect();
    assert_eq!(states, [("broken", "failed"), ("done", "completed")]);
}

#[tokio::test]
async fn differences_in_records_that_decide_about_a_job_are_reported_and_not_rebuilt() {
    let ledger = some_work().await;
    let (done, broken) = (keys::job("t", "done"), keys::job("t", "broken"));
    let end = |job: &str, task: &str| keys::job_end("t", job, task);
    let original = control_rows(&ledger, "t").await;
    type Change = (ControlKey, &'static str, Option<AttributeValue>);
    let cases: Vec<(Change, &str, &[&str])> = vec![
        ((done.clone(), "done", Some(number(4))), "done", &["job-count", "job-completion"]),
        ((done.clone(), "total", Some(number(6))), "done", &["job-count", "job-completion"]),
        ((broken.clone(), "done", Some(number(0))), "broken", &["job-count"]),
        // Also in the wrong list then, by its own counts.
        ((broken.clone(), "failed", Some(number(0))), "broken", &["job-count", "job-in-wrong-list"]),
        ((broken.clone(), "active", Some(number(1))), "broken", &["job-count", "job-in-wrong-list"]),
        ((broken.clone(), "generation", Some(number(2))), "broken", &["resume-not-saved"]),
        ((done.clone(), "completedAt", None), "done", &["job-completion", "job-in-wrong-list"]),
        (
            (end("done", "task-E"), "outcome", Some(text("failed"))),
            "done",
            &["job-outcome", "job-count", "job-count"],
        ),
        (
            (end("done", "task-E"), "counted", Some(AttributeValue::Bool(false))),
            "done",
            &["job-outcome", "job-count", "job-count"],
        ),
        ((end("done", "task-E"), "generation", Some(number(7))), "done", &["job-outcome"]),
        (
            (keys::job_node("t", "done", "task-C"), "dependsOn", Some(AttributeValue::L(vec![]))),
            "done",
            &["job-tasks"],
        ),
        (
            (keys::job_node("t", "broken", "task-C"), "dependsOn", Some(AttributeValue::L(vec![]))),
            "broken",
            &["job-tasks", "job-task-not-started"],
        ),
    ];
    for ((key, attribute, value), job, expected) in cases {
        match value {
            Some(value) => set(&ledger, &key, attribute, value).await,
            None => unset(&ledger, &key, attribute).await,
        }
        let changed = control_rows(&ledger, "t").await;
        let verified = verify(&ledger, Mode::Report).await;
        let expected: Vec<_> = expected.iter().map(|what| (job, *what, Standing::Fault)).collect();
        assert_eq!(found(&verified), expected, "{key:?} {attribute}: {:#?}", verified.differences);
        let rebuilt = verify(&ledger, Mode::Rebuild).await;
        let derived = expected.iter().any(|(_, what, _)| *what == "job-in-wrong-list");
        assert_eq!(rebuilt.count(Standing::Rebuilt), u64::from(derived));
        assert!(!rebuilt.agrees());
        if !derived {
            assert_eq!(control_rows(&ledger, "t").await, changed);
        }
        for (_, _, row) in &original {
            put(&ledger, row.clone()).await;
        }
    }
    for (key, job, expected) in [
        (end("done", "task-E"), "done", &["job-outcome", "job-count", "job-count"][..]),
        (keys::job_node("t", "done", "task-E"), "done", &["job-tasks"]),
        (broken.clone(), "broken", &["job-missing"]),
    ] {
        delete(&ledger, &key).await;
        let verified = verify(&ledger, Mode::Rebuild).await;
        let expected: Vec<_> = expected.iter().map(|what| (job, *what, Standing::Fault)).collect();
        assert_eq!(found(&verified), expected, "{key:?}: {:#?}", verified.differences);
        for (_, _, row) in &original {
            put(&ledger, row.clone()).await;
        }
    }
    // The event of its completion never arrived, and then the record does not know either.
    let events = scan(&ledger.store.clients, &ledger.store.names.events_table).await;
    let completed = events.into_iter().find(|event| event["eventType"].as_s().unwrap() == "Job Completed");
    let (dynamo, table) = (&ledger.store.clients.dynamo, &ledger.store.names.events_table);
    let completed = completed.unwrap();
    let gone = dynamo.delete_item().table_name(table).key("PK", completed["PK"].clone());
    gone.key("SK", completed["SK"].clone()).send().await.unwrap();
    let verified = verify(&ledger, Mode::Rebuild).await;
    assert_eq!(found(&verified), [("done", "job-completion", Standing::Fault)]);
    assert!(verified.differences[0].detail.contains("no `Job Completed` is in the ledger"), "{verified:#?}");
    unset(&ledger, &done, "completedAt").await;
    let verified = verify(&ledger, Mode::Rebuild).await;
    let unfinished = ("done", "job-completion", Standing::Fault);
    assert_eq!(found(&verified), [unfinished, ("done", "job-in-wrong-list", Standing::Rebuilt)]);
    assert!(verified.differences[0].detail.contains("all of its 5 tasks are completed"), "{verified:#?}");
    for (_, _, row) in &original {
        put(&ledger, row.clone()).await;
    }
    dynamo.put_item().table_name(table).set_item(Some(completed)).send().await.unwrap();
    agrees(&verify(&ledger, Mode::Report).await);
    // An orphan: the record of a job that was never created.
    let mut orphan = scan_row(&ledger, &done).await;
    orphan.insert("PK".into(), text("JOB#t#ghost"));
    orphan.insert("jobId".into(), text("ghost"));
    orphan.insert("listAt".into(), text(&orphan["listAt"].as_s().unwrap().replace("done", "ghost")));
    put(&ledger, orphan).await;
    let verified = verify(&ledger, Mode::Rebuild).await;
    assert!(found(&verified).contains(&("ghost", "job-of-nobody", Standing::Fault)), "{verified:#?}");
    assert!(verified.differences.iter().all(|difference| difference.entity_id == "ghost"), "{verified:#?}");
}

#[tokio::test]
async fn a_row_of_the_version_before_that_is_never_due_is_different_and_a_rebuild_makes_it_due() {
    let ledger = some_work().await;
    let before = control_rows(&ledger, "t").await;
    for task in ["runs", "waits"] {
        unset(&ledger, &row(task), "dueAt").await;
        unset(&ledger, &row(task), "dueShard").await;
    }
    let expected = |standing| [("runs", "row-different", standing), ("waits", "row-different", standing)];
    assert_eq!(found(&verify(&ledger, Mode::Report).await), expected(Standing::Fault));
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), expected(Standing::Rebuilt));
    agrees(&verify(&ledger, Mode::Report).await);
    let due = |rows: Vec<(String, String, Item)>| {
        let due = rows.into_iter().map(|(pk, _, row)| (pk, row.get("dueAt").cloned()));
        due.collect::<Vec<_>>()
    };
    assert_eq!(due(control_rows(&ledger, "t").await), due(before));
}

#[tokio::test]
async fn a_record_that_ended_otherwise_than_the_ledger_says_is_reported_and_not_rebuilt() {
    let ledger = some_work().await;
    let record = |task: &str| keys::task_record("t", task, 1);
    // The ledger says that it ended, and its record does not.
    set(&ledger, &record("done:task-A"), "phase", text("running")).await;
    delete(&ledger, &record("done:task-B")).await;
    // The record says that it ended, and the ledger does not.
    set(&ledger, &record("waits"), "phase", text("ended")).await;
    set(&ledger, &record("waits"), "endEvent", text("evnt_lost")).await;
    // A generation that no event tells of.
    let mut next = scan_row(&ledger, &record("broken:task-A")).await;
    next.insert("SK".into(), text("GEN#000002"));
    next.insert("inJob".into(), AttributeValue::Bool(false));
    put(&ledger, next).await;
    // Two ends: the one that came second was the earlier one.
    let mut earlier = event("t", "evnt_earlier", ledger.now().minus(60_000));
    (earlier.entity_type, earlier.entity_id) = (name("TASK"), name("runs"));
    earlier.event_type = name("Task Failed");
    earlier.context.generation = Some(1);
    let mut later = earlier.clone();
    (later.event_id, later.event_type, later.timestamp) =
        (name("evnt_later"), name("Task Completed"), ledger.now());
    ledger.save(later).await;
    settle_all(&ledger, "t").await;
    ledger.save(earlier).await;
    settle_all(&ledger, "t").await;
    settle_all(&ledger, "t").await;
    let expected = [
        ("broken:task-A", "start-not-saved", Standing::Fault),
        ("done:task-A", "record-open", Standing::Fault),
        ("done:task-B", "record-missing", Standing::Fault),
        ("runs", "two-ends", Standing::Fault),
        ("waits", "end-not-saved", Standing::Fault),
    ];
    let changed = control_rows(&ledger, "t").await;
    let verified = verify(&ledger, Mode::Rebuild).await;
    assert_eq!(found(&verified), expected, "{verified:#?}");
    assert_eq!(control_rows(&ledger, "t").await, changed);
    let detail = &verified.differences[3].detail;
    assert_eq!(
        *detail,
        "its record ended as completed with evnt_later, and the ledger's first end says failed"
    );
}

#[tokio::test]
async fn a_claim_that_no_process_finishes_is_reported() {
    let ledger = some_work().await;
    let key = keys::task_record("t", "waits", 1);
    set(&ledger, &key, "state", text("pending")).await;
    set(&ledger, &key, "effects", text("{}")).await;
    set(&ledger, &key, "dueShard", text(&keys::due_shard_of(&key))).await;
    set(&ledger, &key, "dueAt", number(i64::try_from(ledger.now().get()).unwrap())).await;
    // The next sweep is to finish it…
    assert_eq!(
        found(&verify(&ledger, Mode::Report).await),
        [("waits", "claim-overdue", Standing::NotSettled)]
    );
    // …and has not.
    ledger.advance(600_000);
    assert_eq!(found(&verify(&ledger, Mode::Rebuild).await), [("waits", "claim-overdue", Standing::Fault)]);
    ledger.stage.sweep.sweep(None).await.unwrap();
    agrees(&verify(&ledger, Mode::Report).await);
}
