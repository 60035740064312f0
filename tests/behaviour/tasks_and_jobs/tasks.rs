//! Tasks, step by step: who may run them, how they end, and how they are listed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use ledgerline_embedded::{Call, Interceptor, Moment, Verdict};
use ledgerline_event::catalogue::{ErrorCategory, FailureSource, Signal, TaskState};
use ledgerline_jobs::{Acquisition, DeadLetterEnd, EndAnswer, TaskEnd, TaskMessage};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use ledgerline_test_support::{EXTENSION, Ledger, another_process, event, name};

#[tokio::test]
async fn a_message_that_comes_again_while_its_task_runs_does_not_run_it_twice() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1"})).await;
    let received = ledger.next_message().unwrap();
    let held = ledger.take(received.clone(), "worker-1").await.ok().unwrap();
    assert!(matches!(ledger.take(received.clone(), "worker-2").await, Err(Acquisition::Held { .. })));
    // Renewed, it is held for longer.
    let mut lease = held.lease.clone();
    ledger.advance(80_000);
    assert!(ledger.stage.tasks.renew(&mut lease, EXTENSION).await.unwrap());
    ledger.advance(80_000);
    assert!(matches!(ledger.take(received.clone(), "worker-2").await, Err(Acquisition::Held { .. })));
    // Over: another takes it, and what the first one says late is refused, and visible.
    ledger.advance(20_000);
    let second = ledger.take(received.clone(), "worker-2").await.ok().unwrap();
    assert_eq!((held.lease.attempt, second.lease.attempt), (1, 2));
    assert!(!ledger.stage.tasks.renew(&mut lease, EXTENSION).await.unwrap());
    let end = |output: &str| TaskEnd::Completed {
        output: json!(output),
        duration_ms: 1,
        exit_code: 0,
        usage: None,
    };
    assert_eq!(ledger.stage.tasks.end(&lease, end("stale")).await.unwrap(), EndAnswer::Refused);
    assert!(!ledger.stage.tasks.release(&lease, "late", ErrorCategory::Network).await.unwrap());
    assert!(!ledger.stage.tasks.abandon(&lease).await.unwrap());
    assert_eq!(ledger.stage.tasks.end(&second.lease, end("good")).await.unwrap(), EndAnswer::Done);
    assert!(matches!(ledger.take(received, "worker-3").await, Err(Acquisition::Ended)));
    ledger.settle("t").await;
    let completed = ledger.events("t", "Task Completed").await;
    assert_eq!(completed.len(), 1);
    assert_eq!((&completed[0].properties["output"], completed[0].context.attempt), (&json!("good"), Some(2)));
    let refused = ledger.events("t", "Task End Refused").await;
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].properties["endedBy"], Value::Null);
    assert_eq!(refused[0].properties["takenOverBy"], "worker-2");
}

#[tokio::test]
async fn a_start_that_is_finished_late_does_not_finish_the_end_that_came_in_between() {
    // The first request that marks a claim as done waits until the test lets it go, and an end finds the bus down.
    let (finish, bus_is_down) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicBool::new(false)));
    let (held, down, first) = (finish.clone(), bus_is_down.clone(), Arc::new(AtomicBool::new(true)));
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let (held, down, first) = (held.clone(), down.clone(), first.clone());
        Box::pin(async move {
            let finishes =
                call.operation == "UpdateItem" && String::from_utf8_lossy(&call.body).contains(":done");
            if finishes && moment == Moment::Before && first.swap(false, Ordering::SeqCst) {
                drop(held.acquire().await);
            }
            if moment == (Moment::After { status: 200 })
                && call.operation == "UpdateItem"
                && String::from_utf8_lossy(&call.body).contains(":endEvent")
            {
                down.store(true, Ordering::SeqCst);
            }
            match call.operation == "PutEvents" && down.load(Ordering::SeqCst) {
                true => Verdict::Fail { status: 400, code: "ValidationException".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    let task = serde_json::from_value(json!({"name": "x", "requestId": "req-1"})).unwrap();
    let emitter = ledger.emitter("t");
    let starter = ledger.stage.tasks.submit_task(&emitter, task);
    let worker = async {
        let received = loop {
            match ledger.next_message() {
                Some(received) => break received,
                None => tokio::task::yield_now().await,
            }
        };
        let held = ledger.take(received.clone(), "worker-1").await.ok().unwrap();
        // The end is claimed, and its worker dies before it sends the event.
        let end = TaskEnd::Completed { output: json!(1), duration_ms: 1, exit_code: 0, usage: None };
        ledger.stage.tasks.end(&held.lease, end).await.unwrap_err();
        bus_is_down.store(false, Ordering::SeqCst);
        finish.add_permits(1);
        received
    };
    let (started, received) = tokio::join!(starter, worker);
    started.unwrap();
    // The worker that gets the message again sends the event.
    assert!(matches!(ledger.take(received, "worker-2").await, Err(Acquisition::Ended)));
    assert_eq!(ledger.events("t", "Task Completed").await.len(), 1);
}

#[tokio::test]
async fn a_renewal_that_comes_late_does_not_shorten_the_lease() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({"name": "x"})).await;
    let received = ledger.next_message().unwrap();
    let mut held = ledger.take(received.clone(), "worker-1").await.ok().unwrap();
    let mut earlier = held.lease.clone();
    ledger.advance(10_000);
    assert!(ledger.stage.tasks.renew(&mut held.lease, EXTENSION).await.unwrap());
    // As a request would that was made before, for less, and arrives only now.
    assert!(ledger.stage.tasks.renew(&mut earlier, EXTENSION / 60).await.unwrap());
    assert_eq!(earlier.until, held.lease.until);
    ledger.advance(60_000);
    assert!(matches!(ledger.take(received, "worker-2").await, Err(Acquisition::Held { .. })));
}

#[tokio::test]
async fn an_end_whose_event_could_not_be_sent_may_be_repeated_and_is_not_refused() {
    let bus_is_down = Arc::new(AtomicBool::new(false));
    let down = bus_is_down.clone();
    let interceptor: Interceptor = Arc::new(move |call: Call, _| {
        let fails = call.operation == "PutEvents" && down.load(Ordering::SeqCst);
        Box::pin(async move {
            match fails {
                true => Verdict::Fail { status: 400, code: "ValidationException".into() },
                false => Verdict::Proceed,
            }
        })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.submit_task("t", json!({"name": "x"})).await;
    let held = ledger.take_all().await;
    let end = || TaskEnd::Completed { output: json!(1), duration_ms: 1, exit_code: 0, usage: None };
    bus_is_down.store(true, Ordering::SeqCst);
    ledger.stage.tasks.end(&held[0].lease, end()).await.unwrap_err();
    bus_is_down.store(false, Ordering::SeqCst);
    assert_eq!(ledger.stage.tasks.end(&held[0].lease, end()).await.unwrap(), EndAnswer::Done);
    assert_eq!(ledger.events("t", "Task Completed").await.len(), 1);
    assert!(ledger.events("t", "Task End Refused").await.is_empty());
}

#[tokio::test]
async fn a_task_that_always_fails_for_a_passing_reason_ends_on_the_dead_letter_queue() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1", "maxAttempts": 2})).await;
    let received = ledger.next_message().unwrap();
    for attempt in 1..=2 {
        let held = ledger.take(received.clone(), "worker-1").await.ok().unwrap();
        assert_eq!((held.lease.attempt, held.lease.is_last), (attempt, attempt == 2));
        assert!(ledger.stage.tasks.release(&held.lease, "ETIMEDOUT", ErrorCategory::Network).await.unwrap());
    }
    assert!(matches!(
        ledger.take(received.clone(), "worker-1").await,
        Err(Acquisition::Exhausted { attempts: 2 })
    ));
    let message = TaskMessage::parse(&received.body).unwrap();
    assert_eq!(
        ledger.stage.tasks.end_dead_letter(&message, &received.body).await.unwrap(),
        DeadLetterEnd::Ended
    );
    assert_eq!(
        ledger.stage.tasks.end_dead_letter(&message, &received.body).await.unwrap(),
        DeadLetterEnd::AlreadyEnded
    );
    ledger.settle("t").await;
    let attempts = ledger.events("t", "Task Processing Failed").await;
    assert_eq!(attempts.iter().map(|event| &event.properties["attemptNumber"]).collect::<Vec<_>>(), [1, 2]);
    let failed = ledger.events("t", "Task Failed").await;
    assert_eq!(failed.len(), 1);
    let properties = &failed[0].properties;
    assert_eq!((&properties["source"], &properties["retryCount"]), (&json!("dlq"), &json!(2)));
    assert_eq!(
        (&properties["error"], &properties["errorCategory"]),
        (&json!("ETIMEDOUT"), &json!("network"))
    );
    let task = ledger.stage.tasks.task(&name("t"), "req-1").await.unwrap();
    assert_eq!(
        (task.state, task.source, task.retry_count),
        (TaskState::Failed, Some(FailureSource::Dlq), Some(2))
    );
}

#[tokio::test]
async fn an_attempt_that_is_given_back_does_not_count() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({"name": "x", "maxAttempts": 1})).await;
    let received = ledger.next_message().unwrap();
    for attempt in 1..=4 {
        let held = ledger.take(received.clone(), "worker-1").await.ok().unwrap();
        assert_eq!((held.lease.attempt, held.lease.is_last), (attempt, true));
        assert!(ledger.stage.tasks.abandon(&held.lease).await.unwrap());
        // Once: the answer may have been lost.
        assert!(ledger.stage.tasks.abandon(&held.lease).await.unwrap());
    }
}

#[tokio::test]
async fn a_heartbeat_after_the_end_changes_nothing_and_a_timeout_is_listed_as_failed_only() {
    let ledger = Ledger::start().await;
    for id in ["done", "slow"] {
        ledger.submit_task("t", json!({"name": "x", "requestId": id})).await;
    }
    let held = ledger.take_all().await;
    let emitter = ledger.stage.tasks.task_emitter(&held[0].lease);
    ledger.complete(&held[0], json!(1)).await;
    ledger.settle("t").await;
    let before = ledger.stage.tasks.task(&name("t"), "done").await.unwrap();
    ledger.advance(5_000);
    let beat = json!({"requestId": "done", "effectiveUntil": 1, "heartbeatNumber": 9, "elapsedMs": 1, "workerId": "w", "processId": 1, "memoryUsage": {"rss": 1}});
    emitter.event("Task Heartbeat").entity("TASK", "done").properties(beat).emit().await.unwrap();
    let end = TaskEnd::TimedOut { timeout_ms: 10, elapsed_ms: 11, signal: Signal::Sigkill };
    ledger.stage.tasks.end(&held[1].lease, end).await.unwrap();
    ledger.settle("t").await;
    assert_eq!(ledger.stage.tasks.task(&name("t"), "done").await.unwrap(), before);
    for (state, expected) in [
        (TaskState::Pending, &[][..]),
        (TaskState::Processing, &[]),
        (TaskState::Completed, &["done"]),
        (TaskState::Failed, &["slow"]),
    ] {
        let page = ledger.stage.tasks.tasks(&name("t"), Some(state), 100, None).await.unwrap();
        let ids: Vec<&str> = page.items.iter().map(|task| task.request_id.as_str()).collect();
        assert_eq!(ids, expected, "{state:?}");
    }
}

#[tokio::test]
async fn listing_three_running_tasks_beside_ten_thousand_finished_ones_reads_a_handful_of_items() {
    let ledger = Ledger::start().await;
    // As the ledger would have them: each with its events, saved in batches.
    let began = ledger.now();
    let saver = ledger.store.saver();
    let of_task = |n: usize, kind: &str, after: u64| {
        let mut made = event("t", &format!("e{n:05}-{after}"), began.plus(after));
        made.entity_type = name("TASK");
        made.entity_id = name(&format!("req-{n:05}"));
        made.event_type = name(kind);
        made.properties = json!({"requestId": made.entity_id, "name": "x"}).as_object().unwrap().clone();
        ledgerline_test_support::admitted(made)
    };
    for chunk in 0..100 {
        let batch: Vec<_> =
            (chunk * 100..chunk * 100 + 100).map(|n| of_task(n, "Task Completed", 1)).collect();
        saver.save(&batch, ledger.now()).await.into_iter().for_each(|saved| drop(saved.unwrap()));
    }
    for n in 10_000..10_003 {
        let batch = [of_task(n, "Task Pending", 2), of_task(n, "Task Processing Started", 3)];
        saver.save(&batch, ledger.now()).await.into_iter().for_each(|saved| drop(saved.unwrap()));
    }
    ledger.advance(10_000);
    ledger.settle("t").await;
    ledger.store.embedded.reset_requests();
    let page = ledger.stage.tasks.tasks(&name("t"), Some(TaskState::Processing), 100, None).await.unwrap();
    let requests: u64 = ledger.store.embedded.requests().values().sum();
    assert_eq!((page.items.len(), requests), (3, 1));
    // The answer of the one request holds no more than was asked for.
    let answer = ledger
        .store
        .clients
        .dynamo
        .query()
        .table_name(&ledger.store.names.control_table)
        .index_name("list-index")
        .key_condition_expression("listIn = :list")
        .expression_attribute_values(":list", ledgerline_test_support::text("TASKS#t#processing"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.scanned_count(), 3);

    // All of the finished ones, page by page, each once.
    let (mut seen, mut cursor) = (std::collections::BTreeSet::new(), None::<String>);
    loop {
        let page = ledger
            .stage
            .tasks
            .tasks(&name("t"), Some(TaskState::Completed), 900, cursor.as_deref())
            .await
            .unwrap();
        assert!(page.items.len() <= 900);
        for task in page.items {
            assert!(seen.insert(task.request_id.to_string()));
        }
        match page.cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), 10_000);
}

#[tokio::test]
async fn a_submission_that_is_repeated_changes_nothing_and_one_that_differs_is_refused() {
    let ledger = Ledger::start().await;
    let submit = |task: Value| {
        let task = serde_json::from_value(task).unwrap();
        let (stage, emitter) = (ledger.stage.clone(), ledger.emitter("t"));
        async move { stage.tasks.submit_task(&emitter, task).await }
    };
    let task = json!({"name": "x", "requestId": "req-1", "input": {"a": 1}});
    assert!(!submit(task.clone()).await.unwrap().collapsed);
    assert!(submit(task).await.unwrap().collapsed);
    let refused = submit(json!({"name": "x", "requestId": "req-1", "input": {"a": 2}})).await.unwrap_err();
    assert!(refused.to_string().contains("`req-1` exists and asks for something else"), "{refused}");
    for (task, expected) in [
        (json!({"name": " "}), "name: has no name"),
        (json!({"name": "x", "requestId": "a:b"}), "requestId: `a:b` contains ':'"),
        (json!({"name": "x", "timeoutMs": 0}), "timeoutMs: is 0"),
        (json!({"name": "x", "maxAttempts": 0}), "maxAttempts: is 0"),
    ] {
        let error = submit(task).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(ledger.take_all().await.len(), 1);
    assert_eq!(ledger.events("t", "Task Pending").await.len(), 1);
}

#[tokio::test]
async fn a_terminal_event_of_another_system_ends_the_task_if_it_is_the_first() {
    let ledger = Ledger::start().await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1"})).await;
    let received = ledger.next_message().unwrap();
    let completed = json!({"requestId": "req-1", "output": 1, "durationMs": 1, "exitCode": 0});
    let emitter = ledger.emitter("t");
    emitter.event("Task Completed").entity("TASK", "req-1").properties(completed).emit().await.unwrap();
    ledger.settle("t").await;
    assert!(matches!(ledger.take(received, "worker-1").await, Err(Acquisition::Ended)));
    assert_eq!(ledger.stage.tasks.task(&name("t"), "req-1").await.unwrap().state, TaskState::Completed);
}

#[tokio::test]
async fn a_row_that_another_process_has_folded_further_is_not_overwritten() {
    let (put, puts) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, counted) = (put.clone(), puts.clone());
    let interceptor: Interceptor = Arc::new(move |call: Call, moment| {
        let (held, counted) = (held.clone(), counted.clone());
        Box::pin(async move {
            let folds =
                call.operation == "PutItem" && String::from_utf8_lossy(&call.body).contains("\"SUMMARY\"");
            // The second put of the row is held until another process has put a third.
            if folds && moment == Moment::Before && counted.fetch_add(1, Ordering::SeqCst) == 1 {
                drop(held.acquire().await);
            }
            Verdict::Proceed
        })
    });
    let ledger = Ledger::with(Some(interceptor)).await;
    ledger.submit_task("t", json!({"name": "x", "requestId": "req-1"})).await;
    ledger.settle("t").await;
    let task = ledger.take_all().await;
    let emitter = ledger.stage.tasks.task_emitter(&task[0].lease);
    let started = json!({"requestId": "req-1", "effectiveUntil": 1, "workerId": "w", "processId": 1});
    emitter
        .event("Task Processing Started")
        .entity("TASK", "req-1")
        .properties(started)
        .emit()
        .await
        .unwrap();
    ledger.deliver().await;
    let other = another_process(&ledger).await;
    let (tenant, jobs) = (name("t"), name("jobs"));
    let sleeper = ledger.stage.drains.drain(&tenant, &jobs, None);
    let awake = async {
        while puts.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        // The lease of the one who sleeps is over, and the task has ended.
        ledger.advance(120_000);
        ledger.complete(&task[0], json!(1)).await;
        ledger.deliver().await;
        other.drains.drain(&tenant, &jobs, None).await.unwrap();
        put.add_permits(1);
    };
    let (slept, ()) = tokio::join!(sleeper, awake);
    slept.unwrap();
    assert_eq!(ledger.stage.tasks.task(&tenant, "req-1").await.unwrap().state, TaskState::Completed);
}
