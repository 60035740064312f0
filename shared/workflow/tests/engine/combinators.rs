//! All of many, the first of many, and what becomes of the others.

use std::time::Duration;

use futures::{
    FutureExt,
    future::{Either, select},
};
use ledgerline_event::RunEventType as Type;
use ledgerline_workflow::{Ctx, Error, VISIBLE_AFTER_MS, all, first};
use serde_json::{Value, json};

use crate::{
    gates::Gates,
    world::{World, workflow},
};

#[test]
fn a_hundred_steps_that_finish_together_share_an_entry() {
    let mut world = World::new(
        workflow(|ctx: Ctx, count: u64| async move {
            let steps = (0..count)
                .map(|n| ctx.step(format!("step {n}"), move || async move { Ok::<_, Error>(n * n) }));
            all(steps).await.map(|squares| squares.iter().sum::<u64>())
        }),
        json!(100),
    );
    world.run_until_waiting();
    assert_eq!(world.output(), 328_350);
    assert_eq!(world.log.len(), 3);
    assert_eq!(world.types(1).len(), 301);
    let names: Vec<Value> =
        world.data(Type::StepCreated).iter().map(|data| data["stepName"].clone()).collect();
    assert_eq!(names, (0..100).map(|n| json!(format!("step {n}"))).collect::<Vec<_>>());
}

#[test]
fn steps_run_side_by_side_and_are_recorded_as_they_finish() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let names: Vec<String> = (0..100).map(|n| format!("{n:02}")).collect();
            all(names.iter().map(|name| {
                let gates = &gates;
                ctx.step(name.clone(), move || async move {
                    gates.begin(name);
                    gates.pass(name).await;
                    Ok::<_, Error>(name.clone())
                })
            }))
            .await
        }
    });
    assert!(world.poll().is_pending());
    assert_eq!(gates.waiting().len(), 100);
    for name in ["42", "07", "99"] {
        gates.open(name);
    }
    world.run_until_waiting();
    let completed: Vec<Value> =
        world.data(Type::StepCompleted).iter().map(|data| data["result"].clone()).collect();
    assert_eq!(completed, ["07", "42", "99"], "in the order of the commands");
    world.crash();
    world.run_until_waiting();
    assert_eq!(gates.waiting().len(), 97);
    for name in gates.waiting() {
        gates.open(&name);
    }
    world.run_until_waiting();
    assert_eq!(world.output().as_array().unwrap().len(), 100);
    assert_eq!(["07", "42", "99", "00"].map(|name| gates.begun(name)), [1, 1, 1, 2]);
}

#[test]
fn the_first_error_ends_all_and_the_others_are_closed() {
    let mut world = World::of(|ctx: Ctx| async move {
        let failing = async {
            ctx.sleep(Duration::from_secs(1)).await?;
            Err(Error::fatal("the second one"))
        };
        let failed = all([ctx.sleep(Duration::from_secs(60)).boxed(), failing.boxed()]).await;
        let error = failed.unwrap_err();
        ctx.sleep(Duration::from_secs(5)).await?;
        Ok(error.message)
    });
    world.run_until_waiting();
    assert_eq!(world.types(1), [Type::RunStarted, Type::WaitCreated, Type::WaitCreated]);
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.types(3), [Type::WaitCompleted, Type::WaitCreated]);
    assert_eq!(world.data(Type::WaitCompleted)[1]["outcome"], "abandoned");
    assert_eq!(world.log[3][0].correlation_id, world.log[1][1].correlation_id);
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), "the second one");
}

/// The first of a gated step, a sleep and a hook.
fn race(gates: &Gates) -> World {
    let gates = gates.clone();
    World::of(move |ctx: Ctx| {
        let gates = gates.clone();
        async move {
            let hook = ctx.hook().token("t").await?;
            let step = ctx.step("a", || async {
                gates.begin("a");
                gates.pass("a").await;
                Ok::<_, Error>("step".to_owned())
            });
            let slept = ctx.sleep(Duration::from_secs(60)).map(|slept| slept.map(|()| "sleep".to_owned()));
            let called = hook.next::<Value>().map(|payload| payload.map(|_| "hook".to_owned()));
            let (index, what) = first([step.boxed(), slept.boxed(), called.boxed()]).await;
            let what = what?;
            drop(hook);
            ctx.step("after", || async { Ok::<_, Error>(()) }).await?;
            Ok((index, what))
        }
    })
}

#[test]
fn when_the_step_is_first_the_sleep_and_the_hook_are_closed() {
    let gates = Gates::default();
    let mut world = race(&gates);
    world.run_until_waiting();
    gates.open("a");
    world.run_until_waiting();
    assert_eq!(world.output(), json!([0, "step"]));
    assert_eq!((world.count(Type::WaitCompleted), world.count(Type::HookDisposed)), (1, 1));
    assert_eq!(world.data(Type::WaitCompleted)[0]["outcome"], "abandoned");
}

#[test]
fn when_the_sleep_is_first_a_step_that_was_not_recorded_leaves_no_trace() {
    let gates = Gates::default();
    let mut world = race(&gates);
    world.run_until_waiting();
    assert_eq!(gates.waiting(), ["a"]);
    world.now = world.now.plus(60_000);
    // The step would be seen by now, but the sleep is recorded first.
    let _ = world.poll();
    let wanted = world.pending_drafts();
    let sleep = wanted.iter().find(|draft| draft.event_type == Type::WaitCompleted).unwrap().clone();
    world.append(vec![sleep]);
    world.run_until_waiting();
    assert_eq!(world.output(), json!([1, "sleep"]));
    assert!(world.data(Type::StepCreated).iter().all(|data| data["stepName"] == "after"));
    assert!(!world.execution().busy());
}

#[test]
fn when_the_hook_is_first_a_recorded_step_is_closed() {
    let gates = Gates::default();
    let mut world = race(&gates);
    world.run_until_waiting();
    world.pass(VISIBLE_AFTER_MS);
    world.run_until_waiting();
    let step = world.id_of(Type::StepCreated);
    let hook = world.id_of(Type::HookCreated);
    world.receive(Type::HookReceived, &hook, json!({"payload": 1}));
    assert!(world.poll().is_ready());
    assert!(!world.execution().busy(), "what lost does not run on");
    let wanted: Vec<_> =
        world.pending_drafts().into_iter().map(|draft| (draft.event_type, draft.correlation_id)).collect();
    assert_eq!(wanted[0], (Type::HookDisposed, hook), "in the order of the commands");
    assert_eq!(wanted[1], (Type::StepFailed, step));
    assert_eq!(wanted[2].0, Type::WaitCompleted);
    assert_eq!(world.execution().next_due(), None);
    let before = world.pending_drafts();
    world.pass(60_000);
    assert_eq!(world.pending_drafts(), before, "what was abandoned is not due any more");
    world.run_until_waiting();
    assert_eq!(world.data(Type::StepFailed)[0]["errorCode"], "abandoned");
    assert_eq!(world.output(), json!([2, "hook"]));
}

#[test]
fn a_loser_that_ended_in_the_same_entry_as_the_winner_is_no_mismatch() {
    let mut world = World::of(|ctx: Ctx| async move {
        let step = |n: u64| ctx.step(format!("{n}"), move || async move { Ok::<_, Error>(n) });
        let (index, _) = first([step(1), step(2), step(3)]).await;
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok(index)
    });
    world.run_until_waiting();
    assert_eq!(world.types(1).len(), 10);
    assert_eq!(world.types(2), [Type::WaitCreated]);
    world.crash();
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), 0);
}

#[test]
fn a_command_that_is_abandoned_in_the_entry_that_creates_it_is_closed_next() {
    let mut world = World::of(|ctx: Ctx| async move {
        let step = ctx.step("a", || async { Ok::<_, Error>(()) }).boxed();
        let (_, done) =
            first([step, ctx.sleep(Duration::from_secs(60)).boxed(), ctx.hook().map(|_| Ok(())).boxed()])
                .await;
        done?;
        ctx.sleep(Duration::from_secs(1)).await
    });
    world.run_until_waiting();
    let fast = [Type::StepCreated, Type::StepStarted, Type::StepCompleted];
    assert_eq!(
        world.types(1),
        [&[Type::RunStarted], fast.as_slice(), &[Type::WaitCreated, Type::HookCreated]].concat()
    );
    assert_eq!(world.types(2), [Type::WaitCompleted, Type::HookDisposed, Type::WaitCreated]);
}

#[test]
fn a_step_that_the_next_event_makes_superfluous_is_not_begun() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let step = |name: &'static str| {
                let gates = &gates;
                ctx.step(name, move || {
                    gates.begin(name);
                    async { Ok::<_, Error>(()) }
                })
            };
            let long = async {
                step("a").await?;
                step("b").await
            };
            first([long.boxed(), step("c").boxed()]).await.1
        }
    });
    world.run_until_waiting();
    assert!(world.ended());
    assert_eq!(["a", "b", "c"].map(|name| gates.begun(name)), [1, 0, 1]);
}

#[test]
fn ends_of_sleeps_and_steps_are_recorded_in_the_order_of_the_commands() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let step = ctx.step("a", || async {
                gates.pass("a").await;
                Ok::<_, Error>(())
            });
            all([ctx.sleep(Duration::from_secs(1)).boxed(), step.boxed()]).await
        }
    });
    world.run_until_waiting();
    gates.open("a");
    world.pass(1_000);
    let _ = world.poll();
    let fast = [Type::StepCreated, Type::StepStarted, Type::StepCompleted];
    assert_eq!(world.wanted_types(), [&[Type::WaitCompleted], fast.as_slice()].concat());
}

#[test]
fn losers_are_dropped_even_if_the_future_of_first_is_kept() {
    let mut world = World::of(|ctx: Ctx| async move {
        let sleep = |seconds| ctx.sleep(Duration::from_secs(seconds));
        let mut race = first([sleep(60), sleep(1)]);
        let (index, _) = (&mut race).await;
        let failing = async {
            sleep(1).await?;
            Err(Error::fatal("no"))
        };
        let mut all = all([sleep(60).boxed(), failing.boxed()]);
        assert!((&mut all).await.is_err());
        sleep(60).await?;
        drop((race, all));
        Ok(index)
    });
    world.run_until_waiting();
    world.pass_until_due();
    world.run_until_waiting();
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.history.open_waits().count(), 1);
}

#[test]
fn a_loser_that_is_kept_is_not_abandoned() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let step = ctx.step("slow", || async {
                gates.pass("slow").await;
                Ok::<_, Error>("slow".to_owned())
            });
            match select(step, ctx.sleep(Duration::from_secs(1))).await {
                Either::Left((result, _)) => result,
                Either::Right((_, step)) => {
                    ctx.step("remind", || async { Ok::<_, Error>(()) }).await?;
                    step.await
                }
            }
        }
    });
    world.run_until_waiting();
    world.pass(1_000);
    world.run_until_waiting();
    assert_eq!(world.count(Type::StepCompleted), 1);
    gates.open("slow");
    world.run_until_waiting();
    assert_eq!(world.output(), "slow");
}

#[test]
fn the_first_of_nothing_fails_the_run() {
    let mut world = World::of(|_: Ctx| async move {
        first(std::iter::empty::<std::future::Ready<()>>()).await;
        Ok(())
    });
    world.run_until_waiting();
    assert_eq!(world.error().message, "panicked: `first` was called without futures");
    let mut world =
        World::of(
            |_: Ctx| async move { all(std::iter::empty::<std::future::Ready<Result<(), Error>>>()).await },
        );
    world.run_until_waiting();
    assert_eq!(world.output(), json!([]));
}
