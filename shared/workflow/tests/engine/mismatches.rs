//! Code that does not fit the log of its run.

use std::time::Duration;

use futures::FutureExt;
use ledgerline_event::{Kind, Name, RunEventType as Type, RunHistory};
use ledgerline_workflow::{Ctx, Ended, Error, Workflow, all};
use serde_json::{Value, json};
use ulid::Ulid;

use crate::world::{World, workflow};

/// The step `a`, a wait for the event `go`, and a sleep of a second.
fn original() -> World {
    let mut world = World::of(|ctx: Ctx| async move {
        ctx.step("a", || async { Ok::<_, Error>(1) }).await?;
        ctx.wait_for_event("go").await?;
        ctx.sleep(Duration::from_secs(1)).await
    });
    world.run_until_waiting();
    let id = world.id_of(Type::WaitCreated);
    world.receive(Type::WaitCompleted, &id, json!({"outcome": "event"}));
    world.run_until_waiting();
    world
}

/// The mismatch between the log of [`original`] and this code: what the log says, and what the code says.
fn mismatch_of<F, Fut, O>(code: F) -> (String, String)
where
    F: Fn(Ctx) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Error>> + Send + 'static,
    O: serde::Serialize,
{
    let mut world = original();
    let open = world.log.last().unwrap().last().unwrap().correlation_id.clone();
    world.redeploy(workflow(move |ctx, _: Value| code(ctx)));
    assert!(world.poll().is_ready());
    let mismatch = world.execution().mismatch().unwrap().clone();
    // The run fails safely: it closes what the log has open, whichever version of the code asked for it.
    assert_eq!(world.wanted_types(), [Type::WaitCompleted, Type::RunFailed]);
    assert_eq!(world.pending_drafts()[0].correlation_id, open);
    assert!(!world.execution().busy() && world.execution().next_due().is_none());
    world.run_until_waiting();
    let error = world.error();
    assert!(error.is("nondeterminism"));
    assert!(error.message.ends_with(&mismatch.to_string()), "{error}");
    assert_eq!(world.pending_drafts(), []);
    (mismatch.log, mismatch.code)
}

fn says(mismatch: (String, String), log: &str, code: &str) {
    assert_eq!((mismatch.0.as_str(), mismatch.1.as_str()), (log, code));
}

async fn a(ctx: &Ctx) -> Result<i32, Error> {
    ctx.step("a", || async { Ok::<_, Error>(2) }).await
}

#[test]
fn a_command_of_another_kind_is_a_mismatch() {
    let code = |ctx: Ctx| async move { ctx.sleep(Duration::from_secs(1)).await };
    says(mismatch_of(code), "the log has step `a` (command 1)", "the code asks for sleep (command 1)");
    let code = |ctx: Ctx| async move {
        a(&ctx).await?;
        ctx.hook().await.map(|hook| hook.token().to_owned())
    };
    says(
        mismatch_of(code),
        "the log has wait for the event `go` (command 2)",
        "the code asks for hook (command 2)",
    );
}

#[test]
fn a_command_with_another_name_is_a_mismatch() {
    let code = |ctx: Ctx| async move { ctx.step("b", || async { Ok::<_, Error>(1) }).await };
    says(mismatch_of(code), "the log has step `a` (command 1)", "the code asks for step `b` (command 1)");
    let code = |ctx: Ctx| async move {
        a(&ctx).await?;
        ctx.wait_for_event("stop").await.map(|event| event.data)
    };
    says(
        mismatch_of(code),
        "the log has wait for the event `go` (command 2)",
        "the code asks for wait for the event `stop` (command 2)",
    );
    let code = |ctx: Ctx| async move {
        a(&ctx).await?;
        ctx.sleep(Duration::from_secs(1)).await
    };
    says(
        mismatch_of(code),
        "the log has wait for the event `go` (command 2)",
        "the code asks for sleep (command 2)",
    );
}

#[test]
fn commands_in_another_order_are_a_mismatch() {
    let code = |ctx: Ctx| async move {
        all([ctx.wait_for_event("go").map(|_| Ok(())).boxed(), a(&ctx).map(|_| Ok(())).boxed()])
            .await
            .map(|_: Vec<()>| ())
    };
    says(
        mismatch_of(code),
        "the log has step `a` (command 1)",
        "the code asks for wait for the event `go` (command 1)",
    );
}

#[test]
fn code_that_returns_early_is_a_mismatch() {
    let code = |ctx: Ctx| async move { a(&ctx).await };
    says(mismatch_of(code), "the log has wait for the event `go` (command 2)", "the code has returned");
}

#[test]
fn code_that_never_asks_for_a_logged_command_is_a_mismatch() {
    let code = |ctx: Ctx| async move {
        a(&ctx).await?;
        ctx.wait_for_event("go").await?;
        std::future::pending::<Result<(), Error>>().await
    };
    says(
        mismatch_of(code),
        "the log has sleep (command 3)",
        "the code never asked for it: it waits for no step, wait or hook",
    );
    let code = |ctx: Ctx| async move {
        a(&ctx).await?;
        let sleeps = (0..5).map(|n| ctx.sleep(Duration::from_secs(n)).boxed());
        all([ctx.wait_for_event("go").map(|_| Ok(())).boxed()].into_iter().chain(sleeps)).await.map(|_| ())
    };
    // The third command is a sleep here, too: a command that differs only in its details is no mismatch.
    let mut world = original();
    world.redeploy(workflow(move |ctx, _: Value| code(ctx)));
    let _ = world.poll();
    assert_eq!(world.execution().mismatch(), None);
}

#[test]
fn a_mismatch_names_three_awaited_commands_and_counts_the_others() {
    let mut world = World::of(|ctx: Ctx| async move {
        all((0..5).map(|n| ctx.sleep(Duration::from_secs(n + 1)))).await.map(|_| ())
    });
    world.run_until_waiting();
    let id = Kind::Wait.id(Ulid::from_parts(1, 2));
    world.receive(Type::WaitCreated, &id, json!({"task": "t-1"}));
    let _ = world.poll();
    let mismatch = world.execution().mismatch().unwrap();
    assert_eq!(mismatch.log, "the log has wait for the task `t-1`");
    assert_eq!(
        mismatch.code,
        "the code never asked for it: it waits for sleep (command 1), sleep (command 2), sleep (command 3) and 2 more"
    );
    assert_eq!(world.pending_drafts().len(), 7);
}

#[test]
fn a_hook_with_another_token_is_a_mismatch() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().token("one").await?;
        hook.next::<()>().await
    });
    world.run_until_waiting();
    world.redeploy(workflow(|ctx: Ctx, _: Value| async move {
        let hook = ctx.hook().token("two").await?;
        hook.next::<()>().await
    }));
    let _ = world.poll();
    let mismatch = world.execution().mismatch().unwrap();
    assert_eq!(mismatch.log, "the log has hook (command 1)");
    assert_eq!(mismatch.code, "the code asks for hook (command 1) with another token");
    assert_eq!(world.wanted_types(), [Type::HookDisposed, Type::RunFailed]);
}

#[test]
fn another_version_of_the_workflow_is_a_mismatch() {
    let code = |ctx: Ctx, _: Value| async move { ctx.sleep(Duration::from_secs(1)).await };
    let mut world = World::new(workflow(code), Value::Null);
    world.run_until_waiting();
    world.redeploy(Workflow::new("test", "2", code));
    let _ = world.poll();
    let mismatch = world.execution().mismatch().unwrap();
    assert_eq!(mismatch.log, "the log was begun by version `1` of the workflow");
    assert_eq!(mismatch.code, "the code is its version `2`");
}

#[test]
fn events_that_cannot_follow_are_a_mismatch() {
    let code = |ctx: Ctx| async move { ctx.sleep(Duration::from_secs(1)).await };
    for (event_type, again, expected) in [
        (
            Type::WaitCreated,
            false,
            "the log has wait_completed of command 1 — the code's command 1 is sleep, which cannot receive \
             wait_completed in its present state",
        ),
        (Type::WaitCompleted, true, "(command 1) — the code's command 1 had already ended"),
    ] {
        let mut world = World::of(code);
        world.run_until_waiting();
        world.pass_until_due();
        world.run_until_waiting();
        world.crash();
        // Such a log cannot be appended; it was damaged.
        for entry in &mut world.log {
            if let Some(place) = entry.iter().position(|event| event.event_type == event_type) {
                let event = entry.remove(place);
                if again {
                    entry.extend([event.clone(), event]);
                }
            }
        }
        let now = world.now;
        let _ = world.execution().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()), now);
        let mismatch = world.execution().mismatch().unwrap().to_string();
        assert!(mismatch.ends_with(expected), "{mismatch}");
    }
}

#[test]
fn an_id_that_writes_the_ulid_of_its_command_in_lower_case_is_a_mismatch() {
    let mut world = World::of(|ctx: Ctx| async move { ctx.sleep(Duration::from_secs(1)).await });
    world.run_until_waiting();
    let mut world = world.rewound(2);
    let created = &mut world.log[1][1];
    created.correlation_id = Name::new("id", created.correlation_id.to_lowercase()).unwrap();
    world.history = RunHistory::of(world.log.iter().flatten()).unwrap();
    let _ = world.poll();
    assert!(world.execution().mismatch().is_some());
}

#[test]
fn a_log_without_run_created_is_a_mismatch() {
    let mut world = World::of(|ctx: Ctx| async move { ctx.sleep(Duration::from_secs(1)).await });
    world.run_until_waiting();
    world.crash();
    world.log.remove(0);
    let now = world.now;
    let _ = world.execution().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()), now);
    let mismatch = world.execution().mismatch().unwrap().to_string();
    assert_eq!(mismatch, "the log begins with run_started — a run begins with run_created");
}

#[test]
fn a_run_with_a_mismatch_that_is_cancelled_meanwhile_ends_as_cancelled() {
    let mut world = original();
    world.redeploy(workflow(|_: Ctx, _: Value| async move { Ok(()) }));
    let _ = world.poll();
    assert!(world.execution().mismatch().is_some());
    let mut drafts = world.history.closings();
    drafts.push(crate::world::draft(Type::RunCancelled, &world.run_id, json!({})));
    world.append(drafts);
    assert!(world.poll().is_ready());
    assert_eq!(world.outcome(), Some(Ended::Cancelled));
    assert_eq!(world.pending_drafts(), []);
}
