//! Producers and workers that know only the bus and the task queue: the script of the docs.

use std::process::Command;

use ledgerline_event::{JobState, catalogue::TaskState, keys::Scope};
use ledgerline_ledger::EventQuery;
use serde_json::{Value, json};

use ledgerline_test_support::{World, name, until};

use crate::binary::Running;

/// The script, in the environment that an AWS SDK looks at.
fn script(world: &World) -> Command {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let python = std::env::var("LEDGERLINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let state = &world.local.state;
    let mut command = Command::new(python);
    command
        .arg(format!("{root}/docs/examples/foreign-worker.py"))
        .env("LEDGERLINE_STAGE", &state.stage)
        .env("AWS_ENDPOINT_URL", &state.aws_endpoint)
        .env("AWS_DEFAULT_REGION", &state.region)
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("NO_PROXY", "127.0.0.1");
    command
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Python with boto3: LEDGERLINE_PYTHON=<python> cargo test foreign_worker -- --ignored"]
async fn a_job_that_only_an_event_made_is_run_by_a_script_in_python() {
    let world = World::start().await;
    let tenant = name("acme");
    let made = script(&world).args(["job", "acme", "foreign-1"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let worker = Running(script(&world).spawn().unwrap());

    let job = until("the job is completed", || async {
        let job = world.local.stage.jobs.job(&tenant, "foreign-1").await.ok()?;
        let all = job.tasks.iter().all(|task| task.state == Some(TaskState::Completed));
        (job.job.state == JobState::Completed && all).then_some(job)
    })
    .await;
    assert_eq!((job.job.job.total, job.job.job.app_name.as_str()), (3, "shop"));

    let store = json!({"store": "store-123", "colors": ["teal", "sand"]});
    let tags = json!({"style": "modern", "of": ["teal", "sand"]});
    let parts = json!({"parts": {"task-A": store, "task-C": tags}});
    for (task_id, output) in [("task-A", store), ("task-C", tags), ("task-E", parts)] {
        let id = format!("foreign-1:{task_id}");
        let task = world.local.stage.tasks.task(&tenant, &id).await.unwrap();
        assert_eq!((task.state, task.attempt, task.generation), (TaskState::Completed, Some(1), 1));
        assert!(task.worker_id.as_deref().unwrap().starts_with("python-"), "{task:?}");
        assert_eq!(world.local.stage.tasks.task_output(&tenant, &task).await.unwrap(), Some(output));
        let mut story =
            world.reader().all(&EventQuery::new(&tenant, Scope::Entity("TASK", &id))).await.unwrap();
        story.sort_by_key(|event| event.timestamp);
        let story: Vec<&str> = story.iter().map(|event| event.event_type.as_str()).collect();
        assert_eq!(story, ["Task Pending", "Task Processing Started", "Task Completed"]);
    }
    let told =
        world.reader().all(&EventQuery::new(&tenant, Scope::Entity("JOB", "foreign-1"))).await.unwrap();
    let completed = told.iter().find(|event| event.event_type.as_str() == "Job Completed").unwrap();
    assert_eq!(
        Value::Object(completed.properties.clone()),
        json!({"jobId": "foreign-1", "totalTasks": 3,
               "taskStatuses": {"task-A": "completed", "task-C": "completed", "task-E": "completed"}})
    );
    until("the task queue is empty", || async {
        let counts = world.local.embedded.queues().counts(&world.local.names.task_queue).unwrap();
        (counts.visible + counts.in_flight + counts.delayed == 0).then_some(())
    })
    .await;
    drop(worker);
    world.local.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Python with boto3: LEDGERLINE_PYTHON=<python> cargo test foreign_worker -- --ignored"]
async fn a_script_in_python_runs_submitted_tasks_too_large_inputs_among_them_and_tells_of_failures() {
    let world = World::start().await;
    let _worker = Running(script(&world).spawn().unwrap());
    let submit = async |task: Value| {
        let (status, answer) = world.post("/api/tasks", task.to_string()).await;
        assert_eq!(status, 202, "{answer}");
        answer["requestId"].as_str().unwrap().to_owned()
    };
    let ended = async |id: &str| {
        until("the task has ended", || async {
            let (_, task) = world.get(&format!("/api/tasks/{id}")).await;
            ["completed", "failed"].iter().any(|state| task["state"] == *state).then_some(task)
        })
        .await
    };
    let padding = "x".repeat(300_000);
    let large =
        submit(json!({"name": "scrape-store", "input": {"storeId": "s-1", "padding": padding}})).await;
    assert_eq!(ended(&large).await["output"]["store"], "s-1");
    let wrong = submit(json!({"name": "scrape-store"})).await;
    let failed = ended(&wrong).await;
    assert_eq!((&failed["state"], &failed["errorCategory"]), (&json!("failed"), &json!("programming")));
    assert_eq!((&failed["error"], &failed["source"]), (&json!("KeyError('storeId')"), &json!("worker")));
    world.local.stop().await;
}
