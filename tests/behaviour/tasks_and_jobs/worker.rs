//! A worker on a running local mode: real processes, and what the ledger and the queue know of them.

use std::{fs, path::PathBuf, time::Duration};

use aws_sdk_dynamodb::types::AttributeValue;
use ledgerline_event::{Event, keys::Scope};
use ledgerline_ledger::{Emitter, EventQuery, system_clock};
use ledgerline_outbox::QueueUrls;
use ledgerline_store::keys;
use ledgerline_worker::{Config, Stop, WorkerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use ledgerline_test_support::{World, name, until};

use crate::binary::ledgerline;

/// A task file in a folder of its own.
fn task_file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker.toml");
    fs::write(&file, text).unwrap();
    (folder, file)
}

async fn submit(world: &World, task: Value) -> String {
    let emitter = Emitter::new(world.clients(), &world.local.names, name("local"), name("shop"));
    let task = serde_json::from_value(task).unwrap();
    world.local.stage.tasks.submit_task(&emitter, task).await.unwrap().request_id.to_string()
}

/// Every event of a task, oldest first.
async fn events(world: &World, task: &str) -> Vec<Event> {
    let tenant = name("local");
    let mut events =
        world.reader().all(&EventQuery::new(&tenant, Scope::Entity("TASK", task))).await.unwrap();
    events.sort_by_key(|event| (event.timestamp, event.event_id.clone()));
    events
}

/// Waits for an event of a task.
async fn awaited(world: &World, task: &str, event_type: &str) -> Event {
    until(event_type, || async {
        events(world, task).await.into_iter().find(|event| event.event_type.as_str() == event_type)
    })
    .await
}

async fn types(world: &World, task: &str) -> Vec<String> {
    events(world, task).await.into_iter().map(|event| event.event_type.to_string()).collect()
}

/// Waits until the task queue holds nothing, visible or hidden.
async fn queue_is_empty(world: &World) {
    until("the task queue is empty", || async {
        let counts = world.local.embedded.queues().counts(&world.local.names.task_queue).unwrap();
        (counts.visible + counts.in_flight + counts.delayed == 0).then_some(())
    })
    .await;
}

async fn options(world: &World, file: &std::path::Path) -> WorkerOptions {
    WorkerOptions {
        tasks: world.local.stage.tasks.clone(),
        sqs: world.clients().sqs.clone(),
        queue_url: QueueUrls::find(&world.clients().sqs, &world.local.names).await.unwrap().tasks,
        config: Config::read(file).unwrap(),
        grace: Duration::ZERO,
        until_idle: false,
        clock: system_clock(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_runs_as_a_process_and_the_ledger_has_its_whole_story() {
    let (folder, file) = task_file(
        r#"
        heartbeat-seconds = 1
        [tasks.scrape-store]
        # It goes on until the test has seen enough.
        command = """
          echo '{"type":"step_running","stepName":"colours"}' >> $LEDGERLINE_ACTIVITY
          while ! test -e go; do sleep 0.05; done
          printf '{"given":%s,"attempt":%s,"usage":{"inputTokens":12}}' "$(cat)" $LEDGERLINE_ATTEMPT > $LEDGERLINE_OUTPUT
        """
        "#,
    );
    let world = World::with(|options| options.worker = Some(file)).await;
    let task = submit(&world, json!({"name": "scrape-store", "input": {"storeId": "s-1"}})).await;
    let beat = awaited(&world, &task, "Task Heartbeat").await;
    fs::write(folder.path().join("go"), "").unwrap();
    let completed = awaited(&world, &task, "Task Completed").await;
    queue_is_empty(&world).await;

    let story = types(&world, &task).await;
    assert_eq!(story[..3], ["Task Pending", "Task Processing Started", "Task Heartbeat"]);
    assert_eq!(story.last().unwrap(), "Task Completed");
    let started = awaited(&world, &task, "Task Processing Started").await;
    let worker = started.context.worker_id.clone().unwrap();
    assert!(worker.starts_with("worker-"), "{worker}");
    let (pid, until) = (&started.properties["processId"], &started.properties["effectiveUntil"]);
    // The lease: twice the heartbeat, and half as long again.
    let after = until.as_u64().unwrap() * 1_000 - started.timestamp.get() / 1_000 * 1_000;
    assert!((2_000..=4_000).contains(&after), "{after}");
    let properties =
        json!({"requestId": task, "effectiveUntil": until, "workerId": worker, "processId": pid});
    assert_eq!(Value::Object(started.properties.clone()), properties);
    for event in [&started, &beat, &completed] {
        assert_eq!((event.context.origin.as_deref(), event.context.attempt), (Some("worker"), Some(1)));
        assert_eq!((event.context.generation, event.app_name.as_str()), (Some(1), "shop"));
    }

    let properties = &beat.properties;
    assert_eq!((&properties["heartbeatNumber"], &properties["processId"]), (&json!(1), pid));
    assert_eq!(properties["lastActivity"]["stepName"], "colours");
    assert!(properties["elapsedMs"].as_u64().unwrap() >= 1_000);
    if cfg!(target_os = "linux") {
        assert!(properties["memoryUsage"]["rss"].as_u64().unwrap() > 0);
    }
    let output = json!({"given": {"storeId": "s-1"}, "attempt": 1, "usage": {"inputTokens": 12}});
    let duration = &completed.properties["durationMs"];
    let properties = json!({
        "requestId": task, "output": output, "durationMs": duration, "exitCode": 0, "usage": {"inputTokens": 12}
    });
    assert_eq!(Value::Object(completed.properties.clone()), properties);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_takes_too_long_or_fails_for_good_ends_at_its_first_attempt() {
    let (_folder, file) = task_file(
        r#"
        [tasks.slow]
        command = ["sleep", "600"]
        timeout = "10m"
        [tasks.locked-out]
        command = "echo 'Invalid API key' >&2; exit 1"
        [tasks.nonsense]
        command = "echo done > $LEDGERLINE_OUTPUT"
        [tasks.missing]
        command = ["ledgerline-has-no-such-program"]
        "#,
    );
    let world = World::with(|options| options.worker = Some(file)).await;
    // What is given with the task comes before what the file says.
    let slow = submit(&world, json!({"name": "slow", "timeoutMs": 100})).await;
    let timeout = awaited(&world, &slow, "Task Timeout").await.properties;
    assert_eq!((&timeout["timeoutMs"], &timeout["signal"]), (&json!(100), &json!("SIGTERM")));
    assert!(timeout["elapsedMs"].as_u64().unwrap() >= 100);

    let mut ended = vec![slow];
    for (command, category, error) in [
        ("locked-out", "auth", "Invalid API key"),
        ("nonsense", "validation", "the output is no JSON"),
        ("missing", "programming", "`ledgerline-has-no-such-program` cannot be started"),
    ] {
        let task = submit(&world, json!({"name": command})).await;
        let failed = awaited(&world, &task, "Task Failed").await.properties;
        assert_eq!(failed["errorCategory"], category);
        assert_eq!((&failed["source"], &failed["retryCount"]), (&json!("worker"), &json!(1)));
        assert!(failed["error"].as_str().unwrap().contains(error), "{failed:?}");
        ended.push(task);
    }
    queue_is_empty(&world).await;
    for task in ended {
        let story = types(&world, &task).await;
        assert!(story.iter().filter(|kind| *kind == "Task Processing Started").count() <= 1, "{story:?}");
    }
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_may_pass_is_tried_again() {
    let (_folder, file) = task_file(
        r#"
        [tasks.flaky]
        command = """
          test $LEDGERLINE_ATTEMPT -gt 1 && exit 0
          echo '{"error":"slow down","category":"rate-limit"}' > $LEDGERLINE_ERROR; exit 1
        """
        "#,
    );
    let world = World::with(|options| options.worker = Some(file)).await;
    let task = submit(&world, json!({"name": "flaky"})).await;
    let completed = awaited(&world, &task, "Task Completed").await;
    assert_eq!(completed.context.attempt, Some(2));
    let failed = awaited(&world, &task, "Task Processing Failed").await.properties;
    let expected =
        json!({"requestId": task, "attemptNumber": 1, "error": "slow down", "errorCategory": "rate-limit"});
    assert_eq!(Value::Object(failed), expected);
    queue_is_empty(&world).await;
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_does_not_pass_ends_as_a_dead_letter() {
    let (_folder, file) = task_file("[tasks.'*']\ncommand = 'echo connect ECONNRESET >&2; exit 1'");
    let world = World::with(|options| options.worker = Some(file)).await;
    let task = submit(&world, json!({"name": "anything", "maxAttempts": 1})).await;
    let failed = awaited(&world, &task, "Task Failed").await.properties;
    let expected = json!({
        "requestId": task, "error": "connect ECONNRESET", "errorCategory": "network", "retryCount": 1, "source": "dlq"
    });
    assert_eq!(Value::Object(failed), expected);
    let story = types(&world, &task).await;
    assert_eq!(story, ["Task Pending", "Task Processing Started", "Task Processing Failed", "Task Failed"]);
    queue_is_empty(&world).await;
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_stopped_gives_its_tasks_back_and_another_runs_them_at_once() {
    let (_first_folder, first) = task_file("[tasks.'*']\ncommand = ['sleep', '600']\nattempts = 1");
    let (_second_folder, second) = task_file("[tasks.'*']\ncommand = ['true']\nattempts = 1");
    let world = World::start().await;
    let task = submit(&world, json!({"name": "anything"})).await;

    let (stop, stopped) = watch::channel(Stop::No);
    let working = tokio::spawn(ledgerline_worker::run(options(&world, &first).await, stopped));
    let started = awaited(&world, &task, "Task Processing Started").await;
    stop.send_replace(Stop::Gently);
    working.await.unwrap();
    let pid = &started.properties["processId"];
    assert!(!PathBuf::from(format!("/proc/{pid}/exe")).exists(), "its process is gone");

    // The attempt that was given back does not count: the only one that it may have is still there.
    let (_stop, stopped) = watch::channel(Stop::No);
    ledgerline_worker::run(WorkerOptions { until_idle: true, ..options(&world, &second).await }, stopped)
        .await;
    let completed = awaited(&world, &task, "Task Completed").await;
    assert_eq!(completed.context.attempt, Some(2));
    queue_is_empty(&world).await;
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_task_was_taken_over_kills_its_process_and_says_that_it_lost_it() {
    let (_folder, file) = task_file("heartbeat-seconds = 1\n[tasks.'*']\ncommand = ['sleep', '600']");
    let world = World::with(|options| options.worker = Some(file)).await;
    let task = submit(&world, json!({"name": "anything"})).await;
    let started = awaited(&world, &task, "Task Processing Started").await;
    // As another worker would have it.
    let key = keys::task_record(&name("local"), &name(&task), 1);
    let taken = world.control().update(&key).update_expression("SET attempt = attempt + :one");
    taken.expression_attribute_values(":one", AttributeValue::N("1".into())).send().await.unwrap();

    let exe = PathBuf::from(format!("/proc/{}/exe", started.properties["processId"]));
    until("its process is gone", || async { (!exe.exists()).then_some(()) }).await;
    awaited(&world, &task, "Task End Refused").await;
    let told = types(&world, &task).await;
    world.local.stop().await;
    assert!(
        !told.iter().any(|kind| ["Task Completed", "Task Failed", "Task Timeout"].contains(&kind.as_str()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_the_file_does_not_name_is_left_for_another_worker() {
    let (_folder, file) = task_file("[tasks.ours]\ncommand = ['true']");
    let world = World::with(|options| options.worker = Some(file)).await;
    let theirs = submit(&world, json!({"name": "theirs"})).await;
    let ours = submit(&world, json!({"name": "ours"})).await;
    awaited(&world, &ours, "Task Completed").await;
    until("their message is hidden for a while", || async {
        let counts = world.local.embedded.queues().counts(&world.local.names.task_queue).unwrap();
        ((counts.visible, counts.in_flight) == (0, 1)).then_some(())
    })
    .await;
    assert_eq!(types(&world, &theirs).await, ["Task Pending"]);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_runs_what_waits_and_says_so_line_by_line() {
    let world = World::start().await;
    let (_folder, file) = task_file("[tasks.hello]\ncommand = 'echo from the task >&2'");
    let task = submit(&world, json!({"name": "hello"})).await;
    let args = ["worker", "--once", "--verbose", "--json", "--config", file.to_str().unwrap()];
    let done = ledgerline(world.folder.path(), &args);
    assert!(done.status.success(), "{done:?}");
    let told = String::from_utf8(done.stderr).unwrap();
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said =
        |what: &str| told.iter().find(|line| line["message"] == what).unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!((&said("started")["task"], &said("completed")["task"]), (&json!(task), &json!(task)));
    assert_eq!(said("from the task")["stream"], "stderr");

    let wrong = ledgerline(world.folder.path(), &["worker", "--config", "no-such.toml"]);
    assert_eq!(wrong.status.code(), Some(1));
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(said.contains("no-such.toml") && said.contains("ledgerline worker --help"), "{said}");
    world.local.stop().await;
}
