//! Runs of workflows, executed by a runner over the embedded store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ledgerline_event::{RunState, StepState};
use ledgerline_workflow::{Ctx, Error, Visited, Workflows};
use serde_json::json;

use ledgerline_test_support::Ledger;

async fn ten_steps(ctx: Ctx, input: u64) -> Result<u64, Error> {
    let mut sum = input;
    for step in 0..10_u64 {
        sum = ctx.step(format!("add {step}"), || async move { Ok::<_, Error>(sum + step) }).await?;
    }
    Ok(sum)
}

#[tokio::test]
async fn ten_steps_are_ten_log_entries_and_each_event_is_emitted_once() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("ten", "1", ten_steps));
    let run_id = ledger.start_run("ten", json!(5)).await;
    assert_eq!(ledger.run_state(&run_id).await, RunState::Pending);

    assert_eq!(ledger.run_all(&runner).await, [Visited::Ended]);

    let run = ledger.run(&run_id).await.view;
    assert_eq!((run.run.state, run.run.output.clone()), (RunState::Completed, Some(json!(50))));
    assert_eq!(run.run.workflow_version.as_deref(), Some("1"));
    assert!(run.steps.iter().all(|step| step.state == StepState::Completed && step.attempt == 1));
    let entries = ledger.stage.runs.logs.log_entries("t", &run_id, 0).await.unwrap();
    // Created, one for each step, completed.
    assert_eq!(entries.len(), 12);
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_failing_step_is_tried_again_and_then_fails_the_run() {
    let ledger = Ledger::on_one_clock(None).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let flaky = move |ctx: Ctx, _: ()| {
        let tries = counted.clone();
        async move {
            ctx.step("flaky", || {
                let tries = tries.clone();
                async move {
                    tries.fetch_add(1, Ordering::SeqCst);
                    Err::<(), _>(Error::retryable("not today").code("busy"))
                }
            })
            .await
        }
    };
    let runner = ledger.runner(Workflows::new().register("flaky", "1", flaky));
    let run_id = ledger.start_run("flaky", json!(null)).await;
    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Failed);

    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.error.as_deref(), Some("not today"));
    assert_eq!(run.run.error_code.as_deref(), Some("busy"));
    assert_eq!(run.steps[0].retries, 2);
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_sleeping_run_occupies_no_runner_and_continues_within_a_second_of_its_time() {
    async fn nap(ctx: Ctx, seconds: u64) -> Result<(), Error> {
        ctx.sleep(Duration::from_secs(seconds)).await
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("nap", "1", nap));
    let run_id = ledger.start_run("nap", json!(600)).await;
    assert_eq!(ledger.run_all(&runner).await, [Visited::Suspended]);
    assert_eq!(ledger.run_state(&run_id).await, RunState::Running);
    // The message is delayed by the queue, whose clock is the test's.
    ledger.advance(599_000);
    assert!(ledger.run_all(&runner).await.is_empty());
    ledger.advance(1_000);
    assert_eq!(ledger.run_all(&runner).await, [Visited::Ended]);
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_sweep_continues_a_run_whose_long_sleep_has_ended() {
    async fn nap(ctx: Ctx, seconds: u64) -> Result<(), Error> {
        ctx.sleep(Duration::from_secs(seconds)).await
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("nap", "1", nap));
    let run_id = ledger.start_run("nap", json!(30 * 24 * 3600)).await;
    assert_eq!(ledger.run_all(&runner).await, [Visited::Suspended]);
    ledger.advance(1_000 * 3600 * 24 * 30 - 60_000);
    assert!(ledger.run_all(&runner).await.is_empty());
    ledger.stage.run_sweep.sweep_runs().await.unwrap();
    assert!(ledger.run_all(&runner).await.is_empty(), "the message has the rest as its delay");
    ledger.advance(60_000);
    assert_eq!(ledger.run_all(&runner).await, [Visited::Ended]);
    assert_eq!(ledger.run_state(&run_id).await, RunState::Completed);
}

#[tokio::test]
async fn changed_code_fails_the_run_with_an_error_that_names_log_and_code() {
    async fn before(ctx: Ctx, _: ()) -> Result<(), Error> {
        ctx.step("charge the card", || async { Ok::<_, Error>(()) }).await?;
        ctx.sleep(Duration::from_secs(60)).await
    }
    async fn after(ctx: Ctx, _: ()) -> Result<(), Error> {
        ctx.step("send the invoice", || async { Ok::<_, Error>(()) }).await?;
        ctx.sleep(Duration::from_secs(60)).await
    }
    let ledger = Ledger::on_one_clock(None).await;
    let run_id = ledger.start_run("pay", json!(null)).await;
    ledger.run_all(&ledger.runner(Workflows::new().register("pay", "1", before))).await;
    let changed = ledger.runner(Workflows::new().register("pay", "1", after));
    assert_eq!(ledger.finish(&changed, &run_id).await, RunState::Failed);
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.error_code.as_deref(), Some("nondeterminism"));
    let error = run.run.error.clone().unwrap();
    assert!(error.contains("charge the card") && error.contains("send the invoice"), "{error}");
    assert!(run.waits.iter().all(|wait| wait.state.is_terminal()), "nothing is left open");
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_run_stays_with_the_version_that_began_it() {
    async fn one(ctx: Ctx, _: ()) -> Result<u32, Error> {
        ctx.sleep(Duration::from_secs(60)).await?;
        Ok(1)
    }
    async fn two(ctx: Ctx, _: ()) -> Result<u32, Error> {
        ctx.sleep(Duration::from_secs(60)).await?;
        Ok(2)
    }
    let ledger = Ledger::on_one_clock(None).await;
    let run_id = ledger.start_run("versioned", json!(null)).await;
    ledger.run_all(&ledger.runner(Workflows::new().register("versioned", "1", one))).await;
    ledger.advance(61_000);

    let other = ledger.runner(Workflows::new().register("versioned", "2", two));
    let visited = ledger.run_all(&other).await;
    assert!(matches!(&visited[..], [Visited::Refused(why)] if why.contains("version 1")), "{visited:?}");
    let run = ledger.run(&run_id).await;
    assert_eq!(run.view.run.state, RunState::Running);
    assert!(run.last_error.unwrap().contains("this runner has 2"));

    let both = Workflows::new().register("versioned", "1", one).register("versioned", "2", two);
    let both = ledger.runner(both);
    assert_eq!(ledger.finish(&both, &run_id).await, RunState::Completed);
    assert_eq!(ledger.run(&run_id).await.view.run.output, Some(json!(1)));
    let new = ledger.start_run("versioned", json!(null)).await;
    ledger.finish(&both, &new).await;
    assert_eq!(ledger.run(&new).await.view.run.output, Some(json!(2)), "new runs take the newest");
}

#[tokio::test]
async fn an_unknown_workflow_is_refused_and_a_run_that_no_runner_can_execute_fails_in_the_end() {
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("ten", "1", ten_steps));
    // No runner has registered its workflows yet: this one may come.
    let run_id = ledger.start_run("eleven", json!(1)).await;
    assert!(matches!(&ledger.run_all(&runner).await[..], [Visited::Refused(_)]));
    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Failed);
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.error_code.as_deref(), Some("unknown_workflow"));
    assert!(run.run.error.clone().unwrap().contains("it has: ten"));

    runner.publish().await.unwrap();
    let run = serde_json::from_value(json!({ "workflow": "twelve" })).unwrap();
    let refused = ledger.stage.runs.start_run(&ledger.emitter("t"), run).await.unwrap_err().to_string();
    assert!(refused.contains("workflow: no runner has `twelve`; there are: ten"), "{refused}");
}

#[tokio::test]
async fn an_input_that_does_not_fit_fails_the_run_and_names_the_field() {
    #[derive(serde::Deserialize)]
    struct Order {
        lines: Vec<Line>,
    }
    #[derive(serde::Deserialize)]
    struct Line {
        quantity: u32,
    }
    async fn order(_: Ctx, order: Order) -> Result<u32, Error> {
        Ok(order.lines.iter().map(|line| line.quantity).sum())
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("order", "1", order));
    let run_id =
        ledger.start_run("order", json!({ "lines": [{ "quantity": 1 }, { "quantity": "two" }] })).await;
    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Failed);
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.error_code.as_deref(), Some("bad_input"));
    assert!(run.run.error.clone().unwrap().contains("input.lines[1].quantity"), "{:?}", run.run.error);
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn large_inputs_results_payloads_and_outputs_come_through_whole() {
    async fn echo(ctx: Ctx, input: String) -> Result<String, Error> {
        let doubled: String =
            ctx.step("double", || async { Ok::<_, Error>(format!("{input}{input}")) }).await?;
        let hook = ctx.hook().await?;
        let more: String = hook.next().await?;
        Ok(doubled + &more)
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("echo", "1", echo));
    let run_id = ledger.start_run("echo", json!("x".repeat(300_000))).await;
    ledger.run_all(&runner).await;
    let token = ledger.run(&run_id).await.view.hooks[0].token.clone();
    ledger.stage.hooks.receive_by_hook(None, &token, json!("y".repeat(700_000))).await.unwrap();
    ledger.run_all(&runner).await;
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.output, Some(json!("x".repeat(600_000) + &"y".repeat(700_000))));
    let completed = ledger.events("t", "run_completed").await;
    assert_eq!(completed[0].properties["output"].as_str().unwrap().len(), 1_300_000);
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_is_an_error_of_its_step() {
    async fn deep(ctx: Ctx, _: ()) -> Result<String, Error> {
        let mut value = json!(1);
        (0..60).for_each(|_| value = json!([value]));
        let step = ctx
            .step("dig", || {
                let value = value.clone();
                async move { Ok::<_, Error>(value) }
            })
            .await;
        Ok(step.unwrap_err().to_string())
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("deep", "1", deep));
    let run_id = ledger.start_run("deep", json!(null)).await;
    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Completed);
    let output = ledger.run(&run_id).await.view.run.output.clone().unwrap();
    assert!(output.as_str().unwrap().contains("cannot be stored"), "{output}");
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_run_that_kills_its_runners_is_given_up() {
    let ledger = Ledger::on_one_clock(None).await;
    let run_id = ledger.start_run("ten", json!(1)).await;
    for _ in 0..10 {
        // A runner takes the run and dies.
        let taken = ledger
            .stage
            .runs
            .leases
            .acquire_run(&ledgerline_test_support::name("t"), &run_id, 60_000)
            .await
            .unwrap();
        assert!(matches!(taken, ledgerline_runs::RunAcquisition::Acquired(_)));
        ledger.advance(61_000);
    }
    let runner = ledger.runner(Workflows::new().register("ten", "1", ten_steps));
    assert_eq!(ledger.finish(&runner, &run_id).await, RunState::Failed);
    assert_eq!(ledger.run(&run_id).await.view.run.error_code.as_deref(), Some("crashed"));
    ledger.assert_told(&run_id).await;
}

#[tokio::test]
async fn a_token_belongs_to_one_hook_of_a_tenant_at_a_time() {
    async fn ask(ctx: Ctx, keep: bool) -> Result<String, Error> {
        match ctx.hook().token("approve-order-42").await {
            Ok(hook) if keep => hook.next().await,
            Ok(hook) => hook.dispose().await.map(|()| "disposed".into()),
            Err(error) => Ok(error.to_string()),
        }
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("ask", "1", ask));
    let first = ledger.start_run("ask", json!(true)).await;
    ledger.run_all(&runner).await;
    let second = ledger.start_run("ask", json!(true)).await;
    ledger.run_all(&runner).await;
    let run = ledger.run(&second).await.view;
    assert_eq!(run.run.state, RunState::Completed);
    assert_eq!(run.hooks[0].state.as_str(), "conflicted");
    // A chosen token is no credential: only who has shown a key of the tenant may use it.
    let by = |tenant: Option<&'static str>| {
        let (stage, tenant) = (ledger.stage.clone(), tenant.map(ledgerline_test_support::name));
        async move {
            stage.hooks.receive_by_hook(tenant.as_ref(), "approve-order-42", json!("yes")).await.unwrap()
        }
    };
    assert_eq!(by(None).await, ledgerline_runs::HookAnswer::Unknown);
    assert_eq!(by(Some("other")).await, ledgerline_runs::HookAnswer::Unknown);
    assert!(matches!(by(Some("t")).await, ledgerline_runs::HookAnswer::Received { .. }));
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&first).await.view.run.output, Some(json!("yes")));
    // It is free again.
    let third = ledger.start_run("ask", json!(false)).await;
    ledger.run_all(&runner).await;
    assert_eq!(ledger.run(&third).await.view.run.output, Some(json!("disposed")));
    assert_eq!(by(Some("t")).await, ledgerline_runs::HookAnswer::Gone);
    for run_id in [&first, &second, &third] {
        ledger.assert_told(run_id).await;
    }
}

#[tokio::test]
async fn a_workflow_waits_for_a_task_and_a_job_that_it_starts_once() {
    async fn research(ctx: Ctx, topic: String) -> Result<serde_json::Value, Error> {
        let found: serde_json::Value = ctx.task("search", json!({ "topic": topic })).max_attempts(2).await?;
        let job = ctx
            .job(json!([{ "taskId": "a", "name": "a" }, { "taskId": "b", "name": "b", "dependsOn": ["a"] }]))
            .await?;
        let failed = ctx.task::<()>("fail", json!({})).await.unwrap_err();
        Ok(json!([found, job.starts_with("job_"), failed.to_string()]))
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("research", "1", research));
    let run_id = ledger.start_run("research", json!("rust")).await;
    for _ in 0..12 {
        ledger.run_all(&runner).await;
        ledger.settle("t").await;
        for held in ledger.take_all().await {
            let end = match held.lease.message.name.as_str() {
                "fail" => ledgerline_jobs::TaskEnd::Failed {
                    error: "no such luck".into(),
                    category: ledgerline_event::catalogue::ErrorCategory::Auth,
                },
                _ => ledgerline_jobs::TaskEnd::Completed {
                    output: json!({ "did": held.lease.message.name }),
                    duration_ms: 1,
                    exit_code: 0,
                    usage: None,
                },
            };
            ledger.stage.tasks.end(&held.lease, end).await.unwrap();
        }
        ledger.settle("t").await;
    }
    let run = ledger.run(&run_id).await.view;
    assert_eq!(run.run.output, Some(json!([{ "did": "search" }, true, "no such luck"])), "{run:?}");
    let pending = ledger.events("t", "Task Pending").await;
    assert_eq!(pending.len(), 4, "each was started once");
    let own = pending.iter().filter(|event| event.workflow_run_id.as_deref() == Some(run_id.as_str()));
    assert!(own.count() >= 3, "what the run starts belongs to it");
    ledger.assert_told(&run_id).await;
}

/// A subscription of kind `run` starts a run, and one of kind `send` wakes it.
#[tokio::test]
async fn subscriptions_start_runs_and_send_events_to_them() {
    async fn watch(ctx: Ctx, input: serde_json::Value) -> Result<serde_json::Value, Error> {
        let store = input["store"].clone();
        Ok(ctx.wait_for_event("price").matching(json!({ "store": store })).await?.data)
    }
    let ledger = Ledger::on_one_clock(None).await;
    let runner = ledger.runner(Workflows::new().register("watch", "1", watch));
    ledger.register("t", json!({ "workflowType": "watch", "kind": "run" })).await;
    ledger
        .register("t", json!({ "workflowType": "price", "kind": "send", "match": { "store": "$.store" } }))
        .await;
    ledger.subscribe("t", json!({ "eventTypeGlob": "store.opened", "workflowType": "watch", "inputMapper": { "store": "$.entity_id" } })).await;
    ledger.subscribe("t", json!({ "eventTypeGlob": "price.changed", "workflowType": "price", "inputMapper": { "store": "$.entity_id", "now": "$.payload.now" } })).await;
    let emitter = ledger.emitter("t");
    emitter.event("store.opened").entity("STORE", "s-1").emit().await.unwrap();
    ledger.deliver().await;
    ledger.drain("t").await;
    ledger.run_all(&runner).await;
    ledger.advance(1_000);
    emitter
        .event("price.changed")
        .entity("STORE", "s-1")
        .properties(json!({ "now": 12 }))
        .emit()
        .await
        .unwrap();
    ledger.deliver().await;
    ledger.drain("t").await;
    ledger.run_all(&runner).await;
    let runs =
        ledger.stage.runs.runs(&ledgerline_test_support::name("t"), None, 10, None).await.unwrap().items;
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].state, RunState::Completed);
    let run = ledger.run(&runs[0].run_id).await.view;
    assert_eq!(run.run.output, Some(json!({ "store": "s-1", "now": 12 })));
    let created = &ledger.events("t", "run_created").await[0];
    assert!(created.caused_by.as_deref().unwrap().starts_with("event:store.opened:"));
    assert_eq!(created.context.via.len(), 1);
    ledger.assert_told(&runs[0].run_id).await;
}
