//! Ends of tasks that another system emits: for tasks that a subscription started, and before the job of the task is known.

use ledgerline_event::{JobState, catalogue::TaskState};
use ledgerline_jobs::Acquisition;
use ledgerline_outbox::ComponentError;
use ledgerline_verify::Mode;
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, event, name};

/// Emits the end of a task as a worker does that takes no leases.
async fn emit_end(ledger: &Ledger, id: &str, kind: &str, properties: Value) {
    let mut end = json!({"requestId": id, "output": 1, "durationMs": 1, "exitCode": 0, "error": "no", "errorCategory": "auth"});
    end.as_object_mut().unwrap().extend(properties.as_object().unwrap().clone());
    ledger.emitter("t").event(kind).entity("TASK", id).properties(end).emit().await.unwrap();
}

#[tokio::test]
async fn an_external_end_of_a_task_that_a_subscription_started_ends_it_and_its_message_is_discarded() {
    let ledger = Ledger::start().await;
    ledger.register("t", json!({"workflowType": "w", "kind": "task"})).await;
    ledger.subscribe("t", json!({"eventTypeGlob": "price.*", "workflowType": "w"})).await;
    ledger.save(event("t", "e1", ledger.now())).await;
    ledger.advance(10_000);
    let id = ledger.drain("t").await.triggered.remove(0).started;
    emit_end(&ledger, &id, "Task Completed", json!({})).await;
    ledger.settle("t").await;
    assert_eq!(ledger.stage.tasks.task(&name("t"), &id).await.unwrap().state, TaskState::Completed);
    let received = ledger.next_message().unwrap();
    assert!(matches!(ledger.take(received, "worker-1").await, Err(Acquisition::Ended)));
}

#[tokio::test]
async fn a_task_that_ended_before_it_was_submitted_cannot_be_submitted_and_the_answer_says_so() {
    let ledger = Ledger::start().await;
    emit_end(&ledger, "req-1", "Task Completed", json!({})).await;
    ledger.settle("t").await;
    let task = serde_json::from_value(json!({"name": "x", "requestId": "req-1"})).unwrap();
    let refused = ledger.stage.tasks.submit_task(&ledger.emitter("t"), task).await.unwrap_err();
    assert!(matches!(refused, ComponentError::Refused(_)), "{refused}");
}

#[tokio::test]
async fn ends_that_arrive_before_their_job_count_as_soon_as_it_is_created() {
    let ledger = Ledger::start().await;
    // One names its job and one does not: both are ends of the tasks that the job is about to have.
    emit_end(&ledger, "job-1:a", "Task Completed", json!({"jobId": "job-1", "output": "early"})).await;
    emit_end(&ledger, "job-1:b", "Task Completed", json!({})).await;
    emit_end(&ledger, "job-1:c", "Task Failed", json!({"jobId": "job-1"})).await;
    ledger.settle("t").await;
    let tasks = json!([
        {"taskId": "a", "name": "x"}, {"taskId": "b", "name": "x", "dependsOn": ["a"]},
        {"taskId": "c", "name": "x"}, {"taskId": "d", "name": "x", "dependsOn": ["a", "b"]},
    ]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    assert!(ledger.events("t", "workflow.dispatch_failed").await.is_empty());
    assert_eq!(ledger.events("t", "Job Failure Detected").await.len(), 1);
    let held = ledger.take_all().await;
    assert_eq!(held.len(), 1, "only what has not ended and waits for nothing is started");
    let message = &held[0].lease.message;
    assert_eq!(message.request_id.as_str(), "job-1:d");
    assert_eq!(message.input.as_ref().unwrap()["dependencyOutputs"], json!({"a": "early", "b": 1}));
    ledger.complete(&held[0], Value::Null).await;
    ledger.settle("t").await;
    let job = ledger.job("t", "job-1").await.job;
    assert_eq!((job.state, job.job.done, job.job.failed, job.job.active), (JobState::Failed, 3, 1, 0));
    ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap();
    assert_eq!(ledger.work_off("t").await, ["job-1:c"]);
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
    ledger.advance(3_600_000);
    let verified = Box::pin(ledger.stage.verify.verify(&name("t"), Mode::Report, &mut |_| {})).await.unwrap();
    assert!(verified.differences.is_empty(), "{:?}", verified.differences);
}

#[tokio::test]
async fn an_end_of_a_task_that_waits_for_its_parents_is_its_end() {
    let ledger = Ledger::start().await;
    let tasks = json!([{"taskId": "a", "name": "x"}, {"taskId": "b", "name": "x", "dependsOn": ["a"]}]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    emit_end(&ledger, "job-1:b", "Task Completed", json!({})).await;
    assert_eq!(ledger.work_off("t").await, ["job-1:a"]);
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
}

#[tokio::test]
async fn an_end_of_an_invented_generation_before_its_job_is_no_end() {
    let ledger = Ledger::start().await;
    let emitter = ledger.emitter("t").with_scope(|scope| scope.context.generation = Some(7));
    let end = json!({"requestId": "job-1:a", "jobId": "job-1", "output": 1, "durationMs": 1, "exitCode": 0});
    emitter.event("Task Completed").entity("TASK", "job-1:a").properties(end).emit().await.unwrap();
    ledger.settle("t").await;
    ledger.submit_job("t", "job-1", json!([{"taskId": "a", "name": "x"}])).await;
    assert_eq!(ledger.work_off("t").await, ["job-1:a"]);
    let job = ledger.job("t", "job-1").await.job;
    assert_eq!((job.state, job.job.done, job.job.active), (JobState::Completed, 1, 0));
}

#[tokio::test]
async fn a_task_that_failed_before_its_parents_were_completed_is_resumed_after_them() {
    let ledger = Ledger::start().await;
    let tasks = json!([{"taskId": "a", "name": "x"}, {"taskId": "b", "name": "x", "dependsOn": ["a"]}]);
    ledger.submit_job("t", "job-1", tasks).await;
    emit_end(&ledger, "job-1:b", "Task Failed", json!({"jobId": "job-1"})).await;
    ledger.settle("t").await;
    let refused = ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap_err().to_string();
    assert!(refused.contains("resume it after them"), "{refused}");
    assert_eq!(ledger.work_off("t").await, ["job-1:a"]);
    let resumed = ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap();
    assert_eq!(resumed, [name("b")]);
    assert_eq!(ledger.work_off("t").await, ["job-1:b"]);
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
}
