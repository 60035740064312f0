//! What a driver may rely on: beginnings, ends, wakes, drops.

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures::FutureExt;
use ledgerline_event::{Millis, RunEventType as Type};
use ledgerline_workflow::{Ctx, Ended, Error, Execution, Retry, VISIBLE_AFTER_MS, all, first};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    gates::Gates,
    world::{World, draft, workflow},
};

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Count {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_wanted_of_a_run_without_a_log() {
    let workflow = workflow(|_: Ctx, _: Value| async move { Ok(()) });
    let run_id = World::new(workflow.clone(), Value::Null).run_id;
    let mut execution = Execution::new(&workflow, &run_id, Value::Null, None);
    assert!(execution.poll(&mut Context::from_waker(Waker::noop()), Millis::MIN).is_pending());
    assert_eq!(execution.pending_drafts(Millis::MIN), []);
    assert_eq!((execution.busy(), execution.next_due(), execution.outcome()), (false, None, None));
}

#[test]
fn an_empty_run_is_one_entry() {
    let mut world = World::of(|_: Ctx| async move { Ok("done") });
    world.run_until_waiting();
    assert_eq!(world.types(1), [Type::RunStarted, Type::RunCompleted]);
    assert_eq!(world.output(), "done");
}

#[test]
fn input_that_does_not_fit_fails_the_run_before_any_code_runs() {
    #[derive(Deserialize)]
    struct Order {
        #[allow(dead_code)]
        lines: Vec<Line>,
    }
    #[derive(Deserialize)]
    struct Line {
        #[allow(dead_code)]
        amount: u32,
    }
    let code = |_: Ctx, _: Order| async move { Ok(()) };
    let mut world = World::new(workflow(code), json!({"lines": [{"amount": 1}, {"amount": -1}]}));
    world.run_until_waiting();
    assert_eq!(world.types(1), [Type::RunFailed]);
    let error = world.error();
    assert!(error.message.starts_with("input.lines[1].amount: invalid value"), "{error}");
    assert!(error.is("bad_input"));
}

#[test]
fn output_that_is_not_json_fails_the_run() {
    let mut world = World::of(|_: Ctx| async move { Ok(std::collections::HashMap::from([((1, 2), 3)])) });
    world.run_until_waiting();
    assert!(world.error().is("bad_output"));
}

#[test]
fn an_error_fails_the_run() {
    let mut world = World::of(|ctx: Ctx| async move {
        ctx.hook().await?.next::<()>().await?;
        Err::<(), _>(Error::retryable("no luck").code("luck"))
    });
    world.run_until_waiting();
    let hook = world.id_of(Type::HookCreated);
    world.receive(Type::HookReceived, &hook, json!({}));
    world.run_until_waiting();
    assert_eq!(world.types(world.log.len() - 1), [Type::HookDisposed, Type::RunFailed]);
    assert_eq!(world.outcome(), Some(Ended::Failed(Error::fatal("no luck").code("luck"))));
}

#[test]
fn a_run_is_recorded_as_started_even_if_its_code_issues_no_command() {
    let mut world = World::of(|_: Ctx| async move { pending::<Result<(), Error>>().await });
    world.run_until_waiting();
    assert_eq!(world.types(1), [Type::RunStarted]);
    assert!(world.poll().is_pending());
}

#[test]
fn events_after_the_end_change_nothing() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().await?;
        hook.next::<Value>().await
    });
    world.run_until_waiting();
    let hook = world.id_of(Type::HookCreated);
    world.receive(Type::HookReceived, &hook, json!({"payload": 1}));
    world.run_until_waiting();
    let event = world.log[0][0].clone();
    let now = world.now;
    for _ in 0..3 {
        world.execution().feed([event.clone()]);
        assert!(world.poll().is_ready());
        assert_eq!(world.outcome(), Some(Ended::Completed(json!(1))));
        assert_eq!(world.execution().pending_drafts(now), []);
        assert!(!world.execution().busy() && world.execution().next_due().is_none());
    }
}

#[test]
fn events_appended_by_others_before_the_own_append_are_delivered_first() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().await?;
        let steps =
            [ctx.step("a", || async { Ok::<_, Error>(json!("a")) }).boxed(), hook.next::<Value>().boxed()];
        let (index, value) = first(steps).await;
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok((index, value?))
    });
    // The hook is recorded; the step has run, and is not.
    let _ = world.poll();
    world.record();
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::StepCreated, Type::StepStarted, Type::StepCompleted]);
    let hook = world.id_of(Type::HookCreated);
    world.receive(Type::HookReceived, &hook, json!({"payload": "h"}));
    assert!(world.poll().is_ready());
    assert_eq!(
        world.wanted_types(),
        [Type::WaitCreated],
        "the step that was never recorded is not requested again"
    );
    world.run_until_waiting();
    world.crash();
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), json!([1, "h"]));
}

#[test]
fn events_for_a_run_whose_code_has_returned_are_no_mismatch() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().await?;
        let wait = ctx.wait_for_event("x");
        futures::pin_mut!(wait);
        let payload = hook.next::<u64>();
        match futures::future::select(payload, wait).await {
            futures::future::Either::Left((payload, _)) => payload,
            futures::future::Either::Right(_) => Ok(0),
        }
    });
    world.run_until_waiting();
    let (hook, wait) = (world.id_of(Type::HookCreated), world.id_of(Type::WaitCreated));
    world.receive(Type::HookReceived, &hook, json!({"payload": 5}));
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::HookDisposed, Type::WaitCompleted, Type::RunCompleted]);
    // Refused: others were faster.
    world.receive(Type::HookReceived, &hook, json!({"payload": 6}));
    world.receive(Type::WaitCompleted, &wait, json!({"outcome": "event"}));
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::HookDisposed, Type::RunCompleted]);
    world.run_until_waiting();
    assert_eq!(world.output(), 5);
}

#[test]
fn a_cancelled_run_stops_its_steps_and_wants_nothing() {
    let gates = Gates::default();
    let dropped = Arc::new(AtomicBool::new(false));
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (inner, flag) = (gates.clone(), Arc::clone(&dropped));
    let mut world = World::of(move |ctx: Ctx| {
        let (gates, flag) = (inner.clone(), Arc::clone(&flag));
        async move {
            let hook = ctx.hook().await?;
            let sleep = ctx.sleep(Duration::from_secs(60)).boxed();
            let payload = hook.next::<()>().boxed();
            let step = ctx.step("a", || async {
                let _flag = Flag(Arc::clone(&flag));
                gates.pass("a").await;
                Ok::<_, Error>(())
            });
            let (_, ended) = first([sleep, payload, step.boxed()]).await;
            gates.begin("after");
            ended
        }
    });
    world.run_until_waiting();
    world.pass(VISIBLE_AFTER_MS);
    world.run_until_waiting();
    assert!(world.execution().busy());
    // The hook's end is last: only that is for the code to see.
    let mut drafts = world.history.closings();
    drafts.sort_by_key(|draft| draft.event_type == Type::HookDisposed);
    assert_eq!(drafts.len(), 3);
    let last = drafts.pop().unwrap();
    world.append(drafts);
    let _ = world.poll();
    assert_eq!(gates.begun("after"), 0, "the code does not learn that its step was closed");
    let mut drafts = vec![last];
    drafts.push(draft(Type::RunCancelled, &world.run_id, json!({"reason": "why not"})));
    world.append(drafts);
    assert!(world.poll().is_ready());
    assert_eq!(world.outcome(), Some(Ended::Cancelled));
    assert_eq!(world.execution().mismatch(), None);
    assert_eq!(world.pending_drafts(), []);
    assert!(!world.execution().busy());
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn the_driver_is_woken_only_when_a_step_can_continue() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let names = ["a", "b"];
            all(names.iter().map(|name| {
                let gates = &gates;
                ctx.step(*name, move || async move {
                    gates.pass(name).await;
                    Ok::<_, Error>(())
                })
            }))
            .await
        }
    });
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    assert!(world.poll_with(&waker).is_pending());
    assert_eq!(count.take(), 0);
    let other = gates.clone();
    std::thread::spawn(move || other.open("a")).join().unwrap();
    assert_eq!(count.take(), 1);
    assert!(world.poll_with(&waker).is_ready());
    assert_eq!(count.take(), 0, "nothing more to do");
    // While that is appended, the other step may go on.
    gates.open("b");
    assert_eq!(count.take(), 1);
    assert!(world.poll_with(&waker).is_ready());
    assert_eq!(world.pending_drafts().len(), 7);
    // An event of the log wakes the code inside the driver's poll, so the driver needs no wake.
    world.record();
    assert!(world.poll_with(&waker).is_ready());
    world.record();
    assert!(world.poll_with(&waker).is_ready());
    assert_eq!(count.take(), 0);
    assert!(world.ended());
}

#[test]
fn the_driver_is_not_woken_for_code_that_has_returned() {
    let mut world = World::of(|_: Ctx| {
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Ready(Ok(()))
        })
    });
    let count = Arc::new(Count::default());
    assert!(world.poll_with(&Waker::from(Arc::clone(&count))).is_ready());
    assert_eq!(count.take(), 0);
}

#[test]
fn the_future_of_a_step_is_dropped_when_it_has_finished() {
    let held = Arc::new(());
    let inner = Arc::clone(&held);
    let mut world = World::of(move |ctx: Ctx| {
        let held = Arc::clone(&inner);
        async move {
            let step = || {
                let held = Arc::clone(&held);
                poll_fn(move |_| Poll::Ready(Ok::<_, Error>(Arc::strong_count(&held))))
            };
            ctx.step("a", step).await
        }
    });
    assert!(world.poll().is_ready());
    // Held by the test, the workflow and its code.
    assert_eq!(Arc::strong_count(&held), 3);
}

#[test]
fn a_step_that_always_wakes_itself_does_not_block_other_tasks() {
    let polls = Arc::new(AtomicUsize::new(0));
    let inner = Arc::clone(&polls);
    let mut world = World::of(move |ctx: Ctx| {
        let polls = Arc::clone(&inner);
        async move {
            let restless = || {
                poll_fn(|cx| match polls.fetch_add(1, Ordering::SeqCst) {
                    1_000 => Poll::Ready(Ok::<_, Error>(())),
                    _ => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                })
            };
            ctx.step("restless", restless).await
        }
    });
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut returns = 0;
    while world.poll_with(&waker).is_pending() {
        assert_eq!(count.take(), 1);
        returns += 1;
    }
    assert!((10..1_000).contains(&returns), "{returns}");
    world.run_until_waiting();
    assert_eq!(world.output(), Value::Null);
}

#[test]
fn spurious_polls_change_nothing() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            ctx.step("a", || async {
                gates.begin("a");
                gates.pass("a").await;
                Ok::<_, Error>(())
            })
            .await?;
            ctx.sleep(Duration::from_secs(1)).await
        }
    });
    for _ in 0..10 {
        assert!(world.poll().is_pending());
    }
    gates.open("a");
    for _ in 0..10 {
        assert!(world.poll().is_ready());
        assert_eq!(world.pending_drafts().len(), 4);
    }
    world.run_until_waiting();
    for _ in 0..10 {
        assert!(world.poll().is_pending());
    }
    assert_eq!(gates.begun("a"), 1);
    world.pass_until_due();
    world.run_until_waiting();
    assert!(world.ended());
}

#[test]
fn the_context_does_not_work_inside_of_a_step() {
    let mut world = World::of(|ctx: Ctx| async move {
        let inside = ctx.clone();
        let step =
            ctx.step("outer", || inside.step("inner", || async { Ok::<_, Error>(()) })).await.unwrap_err();
        let sleep = ctx.step("outer", || inside.sleep(Duration::from_secs(1))).await.unwrap_err();
        let hook = ctx.hook().await?;
        let next = ctx.step("outer", || hook.next::<()>()).retry(Retry::never()).await.unwrap_err();
        let mut hook = Some(hook);
        let end = ctx.step("outer", || hook.take().unwrap().dispose()).await.unwrap_err();
        assert!([&step, &sleep, &next, &end].iter().all(|error| error.is("misplaced")));
        Ok(step.message)
    });
    world.run_until_waiting();
    assert_eq!(world.output(), "the context was used inside of step `outer`, where nothing is replayed");
    assert_eq!((world.count(Type::StepCreated), world.count(Type::WaitCreated)), (4, 0));
}

#[test]
fn the_context_does_not_work_in_another_thread() {
    let mut world = World::of(|ctx: Ctx| async move {
        let elsewhere = ctx.clone();
        let thread = std::thread::spawn(move || {
            elsewhere.random();
            elsewhere.sleep(Duration::from_secs(1)).now_or_never()
        });
        let error = thread.join().unwrap().unwrap().unwrap_err();
        Ok((error.message, ctx.random()))
    });
    world.run_until_waiting();
    let output = world.output();
    assert_eq!(
        output[0],
        "the context was used outside of the workflow's own code, where nothing is replayed"
    );
    let mut alone = World::of(|ctx: Ctx| async move { Ok(ctx.random()) });
    alone.run_until_waiting();
    assert_eq!(
        alone.output(),
        output[1],
        "random numbers that other threads draw do not change those of the workflow"
    );
}

#[test]
fn a_panic_of_code_that_is_dropped_is_ignored() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("dropped");
            }
        }
    }
    let code = |ctx: Ctx| async move {
        let step = || async {
            let _bomb = Bomb;
            pending::<Result<(), Error>>().await
        };
        let (index, _) =
            first([ctx.step("a", step).boxed(), ctx.sleep(Duration::from_secs(1)).boxed()]).await;
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok(index)
    };
    let mut world = World::of(code);
    let _ = world.poll();
    world.run_until_waiting();
    world.crash();
    world.pass(1_000);
    world.run_until_waiting();
    world.pass(1_000);
    world.run_until_waiting();
    assert_eq!(world.output(), 1);
    // Another runner has a result for the step that runs here.
    let mut world = World::of(code);
    let _ = world.poll();
    world.pass(VISIBLE_AFTER_MS);
    world.run_until_waiting();
    let id = world.id_of(Type::StepCreated);
    world.receive(Type::StepCompleted, &id, json!({"result": null}));
    world.run_until_waiting();
    world.pass(1_000);
    world.run_until_waiting();
    assert_eq!(world.output(), 0);
    let mut world = World::of(|ctx: Ctx| async move {
        let _bomb = Bomb;
        ctx.sleep(Duration::from_secs(1)).await
    });
    world.run_until_waiting();
    world.crash();
    world.run_until_waiting();
    let id = world.run_id.clone();
    let mut drafts = world.history.closings();
    drafts.push(draft(Type::RunCancelled, &id, json!({})));
    world.append(drafts);
    world.run_until_waiting();
    assert_eq!(world.outcome(), Some(Ended::Cancelled));
}
