//! Jobs, step by step: what starts when, with what input, and what the ledger says of it.

use ledgerline_event::{JobState, catalogue::TaskState};
use ledgerline_jobs::{EndAnswer, TaskEnd};
use serde_json::{Value, json};

use ledgerline_test_support::{Ledger, another_process, diamond, name};

fn ids(held: &[ledgerline_test_support::Held]) -> Vec<&str> {
    held.iter().map(|task| task.lease.message.task_id.as_deref().unwrap()).collect()
}

#[tokio::test]
async fn a_diamond_runs_in_order_and_each_child_gets_the_outputs_of_its_parents() {
    let ledger = Ledger::start().await;
    ledger.submit_job("t", "job-1", diamond()).await;
    ledger.settle("t").await;
    let roots = ledger.take_all().await;
    assert_eq!(ids(&roots), ["task-A", "task-B"]);
    let input = roots[0].lease.message.input.clone().unwrap();
    assert_eq!(Value::Object(input), json!({"storeId": "store-123"}));
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Running);

    ledger.complete(&roots[0], json!({"pages": 7})).await;
    ledger.settle("t").await;
    let middle = ledger.take_all().await;
    assert_eq!(ids(&middle), ["task-C", "task-D"]);
    let input = middle[0].lease.message.input.clone().unwrap();
    assert_eq!(
        Value::Object(input),
        json!({"style": "modern", "dependencyOutputs": {"task-A": {"pages": 7}}})
    );
    ledger.complete(&middle[0], json!("red")).await;
    ledger.settle("t").await;
    assert!(ledger.take_all().await.is_empty());
    ledger.complete(&middle[1], json!(["serif"])).await;
    ledger.settle("t").await;
    let last = ledger.take_all().await;
    assert_eq!(ids(&last), ["task-E"]);
    let input = last[0].lease.message.input.clone().unwrap();
    assert_eq!(Value::Object(input), json!({"dependencyOutputs": {"task-C": "red", "task-D": ["serif"]}}));
    ledger.complete(&last[0], Value::Null).await;
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Running);
    ledger.complete(&roots[1], Value::Null).await;
    ledger.settle("t").await;
    let job = ledger.job("t", "job-1").await;
    assert_eq!((job.job.state, job.job.job.done, job.job.job.active), (JobState::Completed, 5, 0));
    assert!(job.tasks.iter().all(|task| task.state == Some(TaskState::Completed)));
    let completed = ledger.events("t", "Job Completed").await;
    assert_eq!(completed.len(), 1);
    assert_eq!(completed[0].properties["totalTasks"], 5);
    assert_eq!(completed[0].properties["taskStatuses"]["task-E"], "completed");
    assert_eq!(ledger.events("t", "Task Pending").await.len(), 5);
    assert_eq!(ledger.events("t", "Task Completed").await.len(), 5);
}

#[tokio::test]
async fn a_failed_task_is_reported_once_the_others_continue_and_a_resume_runs_only_what_failed() {
    let ledger = Ledger::start().await;
    ledger.submit_job("t", "job-1", diamond()).await;
    ledger.settle("t").await;
    let roots = ledger.take_all().await;
    ledger.complete(&roots[0], Value::Null).await;
    ledger.settle("t").await;
    let middle = ledger.take_all().await;
    ledger.fail(&middle[0]).await;
    ledger.settle("t").await;
    let job = ledger.job("t", "job-1").await;
    assert_eq!((job.job.state, job.job.job.failed, job.job.job.active), (JobState::Failing, 1, 2));
    let told = ledger.events("t", "Job Failure Detected").await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].properties["failedTaskId"], "task-C");
    let statuses = &told[0].properties["taskStatuses"];
    assert_eq!((&statuses["task-A"], &statuses["task-C"]), (&json!("completed"), &json!("failed")));
    assert_eq!(statuses["task-E"], Value::Null);
    ledger.complete(&middle[1], Value::Null).await;
    ledger.complete(&roots[1], Value::Null).await;
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Failed);
    let failed = ledger.stage.jobs.jobs(&name("t"), Some(JobState::Failed), 10, None).await.unwrap();
    assert_eq!(failed.items.len(), 1);
    assert!(ledger.take_all().await.is_empty());

    let resumed = ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap();
    assert_eq!(resumed.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["task-C"]);
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Running);
    let again = ledger.take_all().await;
    assert_eq!(ids(&again), ["task-C"]);
    assert_eq!(again[0].lease.message.generation, 2);
    // The end of the first generation, told once more, changes nothing.
    ledger.fail(&middle[0]).await;
    ledger.complete(&again[0], json!(1)).await;
    assert_eq!(ledger.work_off("t").await, ["job-1:task-E"]);
    let job = ledger.job("t", "job-1").await;
    assert_eq!((job.job.state, job.job.job.done, job.job.job.failed), (JobState::Completed, 5, 0));
    assert_eq!(ledger.events("t", "Job Failure Detected").await.len(), 1);
    assert_eq!(ledger.events("t", "Task Failed").await.len(), 1);
    let refused = ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap_err();
    assert!(refused.to_string().contains("is completed"), "{refused}");
}

#[tokio::test]
async fn two_parents_that_complete_in_the_same_instant_start_their_child_once() {
    let ledger = Ledger::start().await;
    let other = another_process(&ledger).await;
    const TIMES: usize = 1_000;
    let mut started = 0;
    for chunk in 0..TIMES / 50 {
        for n in 0..50 {
            let tasks = json!([
                {"taskId": "a", "name": "x"},
                {"taskId": "b", "name": "x"},
                {"taskId": "child", "name": "x", "dependsOn": ["a", "b"]},
            ]);
            ledger.submit_job("t", &format!("job-{chunk}-{n}"), tasks).await;
        }
        ledger.settle("t").await;
        let parents = ledger.take_all().await;
        assert_eq!(parents.len(), 100);
        // Both at one time of the clock, from two processes at once, and drained by two at once.
        for pair in parents.chunks(2) {
            let end =
                || TaskEnd::Completed { output: Value::Null, duration_ms: 1, exit_code: 0, usage: None };
            let (first, second) = tokio::join!(
                ledger.stage.tasks.end(&pair[0].lease, end()),
                other.tasks.end(&pair[1].lease, end())
            );
            assert_eq!((first.unwrap(), second.unwrap()), (EndAnswer::Done, EndAnswer::Done));
        }
        ledger.deliver().await;
        let (tenant, jobs) = (name("t"), name("jobs"));
        let (one, two) = tokio::join!(
            ledger.stage.drains.drain(&tenant, &jobs, None),
            other.drains.drain(&tenant, &jobs, None)
        );
        one.unwrap();
        two.unwrap();
        ledger.settle("t").await;
        let children = ledger.take_all().await;
        assert!(children.iter().all(|child| child.lease.message.task_id.as_deref() == Some("child")));
        assert_eq!(children.len(), 50, "each child once");
        started += children.len();
        for child in &children {
            ledger.complete(child, Value::Null).await;
        }
        ledger.advance(60_000);
    }
    ledger.settle("t").await;
    assert_eq!(started, TIMES);
    assert_eq!(ledger.events("t", "Job Completed").await.len(), TIMES);
    assert_eq!(ledger.events("t", "Task Pending").await.len(), 3 * TIMES);
}

#[tokio::test]
async fn a_task_that_is_added_to_a_finished_parent_starts_and_one_added_in_the_same_instant_starts_once() {
    let ledger = Ledger::start().await;
    let task = |id: &str, parents: &[&str]| json!({"taskId": id, "name": "x", "dependsOn": parents});
    ledger.submit_job("t", "job-1", json!([task("a", &[]), task("open", &[])])).await;
    ledger.settle("t").await;
    let roots = ledger.take_all().await;
    ledger.complete(&roots[0], json!(1)).await;
    ledger.settle("t").await;
    let add = |job: &'static str, tasks: Value| {
        let tasks = serde_json::from_value(tasks).unwrap();
        let (stage, emitter) = (ledger.stage.clone(), ledger.emitter("t"));
        async move { stage.jobs.add_tasks(&emitter, job, tasks).await }
    };
    let added = add("job-1", json!([task("b", &["a"])])).await.unwrap();
    assert_eq!((added.previous_total_tasks, added.total_tasks_now), (2, 3));
    ledger.settle("t").await;
    let children = ledger.take_all().await;
    assert_eq!(ids(&children), ["b"]);
    assert_eq!(children[0].lease.message.input.as_ref().unwrap()["dependencyOutputs"], json!({"a": 1}));

    // The parent ends and tasks are added at once; the ledger gets the two events in either order.
    for n in 0..50 {
        let parent = format!("p{n}");
        add("job-1", json!([task(&parent, &[])])).await.unwrap();
        ledger.settle("t").await;
        let parent_task = ledger.take_all().await;
        let child = json!([task(&format!("c{n}"), &[&parent])]);
        let end = TaskEnd::Completed { output: json!(n), duration_ms: 1, exit_code: 0, usage: None };
        let (ended, added) =
            tokio::join!(ledger.stage.tasks.end(&parent_task[0].lease, end), add("job-1", child));
        assert_eq!(ended.unwrap(), EndAnswer::Done);
        added.unwrap();
        ledger.settle("t").await;
        let children = ledger.take_all().await;
        assert_eq!(ids(&children), [format!("c{n}")]);
        ledger.complete(&children[0], Value::Null).await;
    }
    ledger.complete(&children[0], Value::Null).await;
    ledger.complete(&roots[1], Value::Null).await;
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
    let refused = add("job-1", json!([task("late", &["a"])])).await.unwrap_err().to_string();
    assert!(refused.contains("is completed"), "{refused}");
}

#[tokio::test]
async fn a_task_that_cannot_be_added_to_a_job_is_named_in_the_refusal() {
    let ledger = Ledger::start().await;
    ledger.submit_job("t", "job-1", diamond()).await;
    ledger.settle("t").await;
    for (tasks, expected) in [
        (json!([{"taskId": "task-A", "name": "x"}]), "the job already has a task `task-A`"),
        (json!([{"taskId": "f", "name": "x", "dependsOn": ["nobody"]}]), "task `f`: depends on `nobody`"),
        (
            json!([{"taskId": "f", "name": "x", "dependsOn": ["g"]}, {"taskId": "g", "name": "x", "dependsOn": ["f"]}]),
            "f → g → f",
        ),
        (json!([]), "has 0 tasks"),
    ] {
        let tasks = serde_json::from_value(tasks).unwrap();
        let error = ledger.stage.jobs.add_tasks(&ledger.emitter("t"), "job-1", tasks).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = ledger.stage.jobs.add_tasks(&ledger.emitter("t"), "job-2", vec![]).await.unwrap_err();
    assert!(error.to_string().contains("there is no `job-2`"), "{error}");
}

#[tokio::test]
async fn a_bad_job_created_event_of_another_system_is_reported_and_holds_up_no_other_job() {
    let ledger = Ledger::start().await;
    let emit = |job: &'static str, tasks: Value| {
        let created = json!({"jobId": job, "requestId": job, "tasks": tasks, "totalTasks": 1});
        ledger.emitter("t").event("Job Created").entity("JOB", job).properties(created).emit()
    };
    emit("cycle", json!([{"taskId": "a", "name": "x", "dependsOn": ["a"]}])).await.unwrap();
    emit("shape", json!("no list")).await.unwrap();
    emit("sound", json!([{"taskId": "a", "name": "x"}])).await.unwrap();
    ledger.settle("t").await;
    let told = ledger.events("t", "workflow.dispatch_failed").await;
    let reasons: Vec<&str> = told.iter().map(|event| event.properties["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("wait for each other: a → a")), "{reasons:?}");
    assert_eq!(ledger.work_off("t").await, ["sound:a"]);
    // Another job with an id that is taken changes nothing.
    emit("sound", json!([{"taskId": "b", "name": "x"}])).await.unwrap();
    ledger.settle("t").await;
    let told = ledger.events("t", "workflow.dispatch_failed").await;
    assert!(told.iter().any(|event| event.properties["reason"].as_str().unwrap().contains("`sound` exists")));
    assert_eq!(ledger.job("t", "sound").await.tasks.len(), 1);
}

#[tokio::test]
async fn two_tenants_with_the_same_ids_have_nothing_to_do_with_each_other() {
    let ledger = Ledger::start().await;
    for tenant in ["t", "u"] {
        let task = json!([{"taskId": "a", "name": "x", "input": {"of": tenant}}, {"taskId": "b", "name": "x", "dependsOn": ["a"]}]);
        ledger.submit_job(tenant, "job-1", task).await;
        ledger.submit_task(tenant, json!({"name": "x", "requestId": "req-1", "input": {"of": tenant}})).await;
        ledger.settle(tenant).await;
    }
    let (of_t, of_u): (Vec<_>, Vec<_>) =
        ledger.take_all().await.into_iter().partition(|task| task.lease.message.tenant_id.as_str() == "t");
    assert_eq!((of_t.len(), of_u.len()), (2, 2));
    for task in of_t.iter().chain(&of_u) {
        let message = &task.lease.message;
        assert_eq!(message.input.as_ref().unwrap()["of"], message.tenant_id.as_str());
    }
    // One tenant's task fails, the other's is completed.
    for task in &of_t {
        ledger.fail(task).await;
    }
    for task in &of_u {
        ledger.complete(task, json!("u")).await;
    }
    ledger.settle("t").await;
    ledger.settle("u").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Failed);
    assert_eq!(ledger.job("u", "job-1").await.job.state, JobState::Running);
    assert_eq!(ledger.work_off("u").await, ["job-1:b"]);
    for (tenant, state) in [("t", TaskState::Failed), ("u", TaskState::Completed)] {
        assert_eq!(ledger.stage.tasks.task(&name(tenant), "req-1").await.unwrap().state, state);
        assert_eq!(ledger.stage.tasks.task(&name(tenant), "job-1:a").await.unwrap().state, state);
        let all = ledger.stage.tasks.tasks(&name(tenant), None, 100, None).await.unwrap();
        assert!(all.items.iter().all(|task| task.state == state), "{tenant}: {:?}", all.items);
    }
    let refused = ledger.stage.jobs.resume_job(&ledger.emitter("u"), "job-1").await.unwrap_err();
    assert!(refused.to_string().contains("is completed"), "{refused}");
}

#[tokio::test]
async fn a_large_input_and_a_large_output_travel_by_reference() {
    let ledger = Ledger::start().await;
    let large = "x".repeat(300_000);
    let tasks = json!([
        {"taskId": "a", "name": "x", "input": {"text": large}},
        {"taskId": "b", "name": "x", "dependsOn": ["a"]},
    ]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    let roots = ledger.take_all().await;
    assert!(roots[0].lease.message.input.is_none());
    let input = ledger.stage.tasks.input_of(&roots[0].lease.message).await.unwrap();
    assert_eq!(input["text"], large.as_str());
    ledger.complete(&roots[0], json!({"text": large})).await;
    ledger.settle("t").await;
    let children = ledger.take_all().await;
    let input = ledger.stage.tasks.input_of(&children[0].lease.message).await.unwrap();
    assert_eq!(input["dependencyOutputs"]["a"]["text"], large.as_str());
    let mut foreign = children[0].lease.message.clone();
    foreign.input_ref.as_mut().unwrap().key = "events/x/y-payload.json".into();
    let refused = ledger.stage.tasks.input_of(&foreign).await.unwrap_err().to_string();
    assert!(refused.contains("is no input of this stage"), "{refused}");
}

#[tokio::test]
async fn a_task_whose_parents_output_is_lost_fails_and_the_others_go_on() {
    let ledger = Ledger::start().await;
    let task = |id: &str, parents: &[&str]| json!({"taskId": id, "name": "x", "dependsOn": parents});
    let tasks = json!([task("a", &[]), task("b", &["a"]), task("x", &[]), task("y", &["x"])]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    let roots = ledger.take_all().await;
    // An end of another system, whose output points to where nothing is.
    let lost = json!({
        "requestId": "job-1:a", "jobId": "job-1", "durationMs": 1, "exitCode": 0,
        "_s3Overflow": {"bucket": ledger.store.names.payload_bucket, "key": "events/job-1:a/lost-payload.json"},
    });
    let mut end = ledgerline_test_support::event("t", "lost", ledger.now());
    (end.entity_type, end.entity_id, end.event_type) =
        (name("TASK"), name("job-1:a"), name("Task Completed"));
    end.properties = lost.as_object().unwrap().clone();
    ledger.save(end).await;
    ledger.complete(&roots[1], json!(1)).await;
    ledger.settle("t").await;
    let next = ledger.take_all().await;
    assert_eq!(ids(&next), ["y"]);
    ledger.complete(&next[0], Value::Null).await;
    ledger.settle("t").await;
    let job = ledger.job("t", "job-1").await;
    assert_eq!((job.job.state, job.job.job.failed, job.job.job.active), (JobState::Failed, 1, 0));
    let failed = ledger.events("t", "Task Failed").await;
    assert_eq!(failed.len(), 1);
    let error = failed[0].properties["error"].as_str().unwrap();
    assert!(error.contains("the output of `a` is lost"), "{error}");
    assert_eq!(ledger.events("t", "Job Failure Detected").await.len(), 1);
    assert!(ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.is_ok());
}

#[tokio::test]
async fn an_end_that_does_not_say_its_job_and_one_of_an_invented_generation() {
    let ledger = Ledger::start().await;
    let tasks = json!([{"taskId": "a", "name": "x"}, {"taskId": "b", "name": "x", "dependsOn": ["a"]}]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    let end = |generation: Option<u32>| {
        let emitter = ledger.emitter("t").with_scope(|scope| scope.context.generation = generation);
        let completed = json!({"requestId": "job-1:a", "output": 1, "durationMs": 1, "exitCode": 0});
        emitter.event("Task Completed").entity("TASK", "job-1:a").properties(completed).emit()
    };
    end(Some(99)).await.unwrap();
    end(Some(u32::MAX)).await.unwrap();
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.job.done, 0);
    end(None).await.unwrap();
    ledger.settle("t").await;
    let job = ledger.job("t", "job-1").await;
    assert_eq!((job.job.job.done, job.job.job.active), (1, 1));
}

#[tokio::test]
async fn an_end_without_a_generation_from_a_clock_that_is_behind_ends_the_generation_that_runs() {
    let ledger = Ledger::start().await;
    ledger.submit_job("t", "job-1", json!([{"taskId": "a", "name": "x"}])).await;
    ledger.settle("t").await;
    let first = ledger.take_all().await;
    ledger.fail(&first[0]).await;
    ledger.settle("t").await;
    ledger.stage.jobs.resume_job(&ledger.emitter("t"), "job-1").await.unwrap();
    ledger.settle("t").await;
    let completed =
        json!({"requestId": "job-1:a", "jobId": "job-1", "output": 1, "durationMs": 1, "exitCode": 0});
    let emitter = ledger.emitter("t");
    let draft = emitter.event("Task Completed").entity("TASK", "job-1:a").properties(completed);
    draft.at(ledger.now().minus(30_000)).emit().await.unwrap();
    ledger.settle("t").await;
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
}

#[tokio::test]
async fn tasks_that_were_added_before_their_job_was_there_are_taken_up_with_it() {
    let ledger = Ledger::start().await;
    let emitter = ledger.emitter("t");
    let added = json!({
        "jobId": "job-1", "newTasks": [{"taskId": "b", "name": "x", "dependsOn": ["a"]}],
        "previousTotalTasks": 1, "totalTasksNow": 2,
    });
    emitter.event("Job Tasks Added").entity("JOB", "job-1").properties(added).emit().await.unwrap();
    ledger.settle("t").await;
    ledger.submit_job("t", "job-1", json!([{"taskId": "a", "name": "x"}])).await;
    assert_eq!(ledger.work_off("t").await, ["job-1:a", "job-1:b"]);
    assert_eq!(ledger.job("t", "job-1").await.job.state, JobState::Completed);
    assert!(ledger.events("t", "workflow.dispatch_failed").await.is_empty());
}

#[tokio::test]
async fn two_tenants_whose_events_have_the_same_ids_keep_their_large_inputs_apart() {
    let ledger = Ledger::start().await;
    for tenant in ["t", "u"] {
        let input = json!({"secret": tenant.repeat(60_000)});
        let tasks = json!([{"taskId": "gate", "name": "x"}, {"taskId": "use", "name": "x", "dependsOn": ["gate"], "input": input}]);
        let created = json!({"jobId": "job-1", "requestId": "r", "tasks": tasks, "totalTasks": 2});
        let mut event = ledgerline_test_support::event(tenant, "created-1", ledger.now());
        (event.entity_type, event.entity_id, event.event_type) =
            (name("JOB"), name("job-1"), name("Job Created"));
        event.properties = created.as_object().unwrap().clone();
        ledger.save(event).await;
        ledger.settle(tenant).await;
    }
    for task in ledger.take_all().await {
        ledger.complete(&task, Value::Null).await;
    }
    ledger.settle("t").await;
    ledger.settle("u").await;
    let held = ledger.take_all().await;
    assert_eq!(held.len(), 2);
    for task in held {
        let message = &task.lease.message;
        let input = ledger.stage.tasks.input_of(message).await.unwrap();
        let secret = input["secret"].as_str().unwrap();
        assert!(secret.starts_with(message.tenant_id.as_str()), "{} got {}", message.tenant_id, &secret[..3]);
    }
}

#[tokio::test]
async fn characters_that_a_queue_does_not_take_travel_in_events_too() {
    let ledger = Ledger::start().await;
    let odd = "odd \u{fffe}\u{ffff} text";
    ledger.submit_job("t", "job-1", json!([{"taskId": "a", "name": "x", "input": {"x": odd}}, {"taskId": "b", "name": "x", "dependsOn": ["a"]}])).await;
    ledger.settle("t").await;
    let held = ledger.take_all().await;
    assert_eq!(held[0].lease.message.input.as_ref().unwrap()["x"], odd);
    ledger.complete(&held[0], json!(odd)).await;
    ledger.settle("t").await;
    let held = ledger.take_all().await;
    assert_eq!(held[0].lease.message.input.as_ref().unwrap()["dependencyOutputs"]["a"], odd);
}

#[tokio::test]
async fn a_second_end_of_a_task_drives_nothing() {
    let ledger = Ledger::start().await;
    let tasks = json!([{"taskId": "a", "name": "x"}, {"taskId": "open", "name": "x"}]);
    ledger.submit_job("t", "job-1", tasks).await;
    ledger.settle("t").await;
    let held = ledger.take_all().await;
    ledger.complete(&held[0], json!(1)).await;
    ledger.settle("t").await;
    let failed = json!({
        "requestId": "job-1:a", "jobId": "job-1", "error": "late", "errorCategory": "auth", "retryCount": 1, "source": "worker",
    });
    let emitter = ledger.emitter("t");
    emitter.event("Task Failed").entity("TASK", "job-1:a").properties(failed).emit().await.unwrap();
    ledger.settle("t").await;
    assert!(ledger.events("t", "Job Failure Detected").await.is_empty());
    let job = ledger.job("t", "job-1").await;
    assert_eq!((job.job.job.done, job.job.job.failed, job.job.job.active), (1, 0, 1));
}
