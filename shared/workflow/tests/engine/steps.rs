//! Steps: what they cost, when they are seen, how often they are tried.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ledgerline_event::RunEventType as Type;
use ledgerline_workflow::{Ctx, Error, Retry, VISIBLE_AFTER_MS};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    gates::Gates,
    world::{World, workflow},
};

const FAST_STEP: [Type; 3] = [Type::StepCreated, Type::StepStarted, Type::StepCompleted];

#[test]
fn a_fast_step_costs_one_entry_and_the_first_one_also_starts_the_run() {
    let mut world = World::of(|ctx: Ctx| async move {
        let a: u32 = ctx.step("a", || async { Ok::<_, Error>(20) }).await?;
        let b: u32 = ctx.step("b", || async { Ok::<_, Error>(a + 1) }).input(&json!({"a": a})).await?;
        Ok(a + b)
    });
    world.run_until_waiting();
    assert_eq!(world.output(), 41);
    assert_eq!(world.log.len(), 4);
    assert_eq!(world.types(1), [&[Type::RunStarted], FAST_STEP.as_slice()].concat());
    assert_eq!(world.types(2), FAST_STEP);
    assert_eq!(world.types(3), [Type::RunCompleted]);
    assert_eq!(world.data(Type::RunStarted)[0]["workflowVersion"], "1");
    assert_eq!(
        Value::from(world.data(Type::StepCreated)[1].clone()),
        json!({"stepName": "b", "input": {"a": 20}})
    );
    assert_eq!(Value::from(world.data(Type::StepStarted)[0].clone()), json!({"attempt": 1}));
    assert_eq!(Value::from(world.data(Type::StepCompleted)[0].clone()), json!({"result": 20}));
}

#[test]
fn a_slow_step_is_recorded_as_started_while_it_runs() {
    let gates = Gates::default();
    let mut world = gated(&gates, Retry::default());
    assert!(world.poll().is_pending());
    assert!(world.execution().busy());
    let seen_at = world.now.plus(VISIBLE_AFTER_MS);
    assert_eq!(world.execution().next_due(), Some(seen_at));
    world.pass(VISIBLE_AFTER_MS - 1);
    assert!(world.poll().is_pending());
    world.pass(1);
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::RunStarted, Type::StepCreated, Type::StepStarted]);
    world.record();
    assert!(world.poll().is_pending());
    assert!(world.execution().busy());
    assert_eq!(world.execution().next_due(), None);
    gates.open("a");
    assert!(world.poll().is_ready());
    assert!(!world.execution().busy());
    assert_eq!(world.wanted_types(), [Type::StepCompleted]);
    world.run_until_waiting();
    assert_eq!(world.output(), 1);
    assert_eq!(gates.begun("a"), 1);
}

/// A workflow of the gated step `a`, which gives how often it was begun.
fn gated(gates: &Gates, retry: Retry) -> World {
    let gates = gates.clone();
    World::of(move |ctx: Ctx| {
        let gates = gates.clone();
        async move {
            let step = || async {
                let before = gates.begin("a");
                gates.pass("a").await;
                Ok::<_, Error>(before + 1)
            };
            ctx.step("a", step).retry(retry).await
        }
    })
}

#[test]
fn an_event_is_wanted_until_it_is_fed() {
    let mut world = World::of(|ctx: Ctx| async move {
        ctx.step("a", || async { Err::<(), _>(Error::retryable("not yet")) }).await
    });
    assert!(world.poll().is_ready());
    let first = world.pending_drafts();
    assert_eq!(first.last().unwrap().event_type, Type::StepRetrying);
    for _ in 0..3 {
        world.pass(700);
        assert_eq!(
            world.pending_drafts(),
            first,
            "the time of the next attempt was fixed when the last one failed"
        );
        assert!(world.poll().is_ready());
        assert_eq!(world.pending_drafts(), first);
    }
    let now = world.now;
    world.record();
    assert_eq!(world.execution().pending_drafts(now), [], "fed, and not yet delivered");
    // Its second was over before the first was recorded.
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::StepStarted, Type::StepRetrying]);
}

#[test]
fn a_step_is_retried_after_its_pause_and_fails_with_its_last_error() {
    let mut world = World::of(|ctx: Ctx| async move {
        let mut tried = 0;
        let step = || {
            tried += 1;
            let error = Error::retryable(format!("failure {tried}")).code("down");
            async move { Err::<(), _>(error) }
        };
        let retry = Retry::times(3).backoff(Duration::from_secs(2), 3.0, Duration::from_secs(60));
        let result = ctx.step("a", step).retry(retry).await;
        let error = result.unwrap_err();
        Ok(json!({"error": error.message, "code": error.code, "fatal": error.fatal}))
    });
    world.run_until_waiting();
    let start = world.now;
    assert_eq!(world.data(Type::StepRetrying)[0]["retryAfter"], start.plus(2_000).get());
    assert_eq!(world.execution().next_due(), Some(start.plus(2_000)));
    assert!(!world.execution().busy());
    world.pass(1_999);
    assert!(world.poll().is_pending());
    world.pass(1);
    world.run_until_waiting();
    assert_eq!(world.execution().next_due(), Some(start.plus(8_000)));
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), json!({"error": "failure 3", "code": "down", "fatal": true}));
    let attempts: Vec<_> = world.data(Type::StepStarted).iter().map(|data| data["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert_eq!((world.count(Type::StepRetrying), world.count(Type::StepFailed)), (2, 1));
    let mut replay = world.rewound(world.log.len() - 1);
    let _ = replay.poll();
    let output = replay.pending_drafts().pop().unwrap().event_data.remove("output").unwrap();
    assert_eq!(output, world.output());
}

#[test]
fn a_paused_step_does_not_begin_early_when_others_continue() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let resting = ctx.step("resting", || async {
                match gates.begin("resting") {
                    0 => Err(Error::retryable("not yet")),
                    _ => Ok(()),
                }
            });
            let slow = ctx.step("slow", || async {
                gates.pass("slow").await;
                Ok::<_, Error>(())
            });
            // Polls both whenever one is woken.
            futures::future::join(resting, slow).await.0
        }
    });
    world.run_until_waiting();
    gates.open("slow");
    world.run_until_waiting();
    assert_eq!((world.count(Type::StepCompleted), gates.begun("resting")), (1, 1));
    // Another runner starts the second attempt before its time, and dies.
    let id = world.log[1][1].correlation_id.clone();
    world.receive(Type::StepStarted, &id, json!({"attempt": 2}));
    world.crash();
    world.run_until_waiting();
    assert_eq!(gates.begun("resting"), 2);
    assert_eq!(world.output(), Value::Null);
}

#[test]
fn a_step_that_is_kept_and_not_awaited_does_not_make_anything_due() {
    let mut world = World::of(|ctx: Ctx| async move {
        let mut step = ctx.step("kept", || async { Ok::<_, Error>(7) });
        assert!(futures::poll!(&mut step).is_pending());
        ctx.sleep(Duration::from_secs(60)).await?;
        step.await
    });
    world.run_until_waiting();
    let due = world.now.plus(60_000);
    assert_eq!((world.execution().next_due(), world.execution().busy()), (Some(due), false));
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), 7);
}

#[test]
fn a_fatal_error_is_not_retried_and_an_error_may_set_its_pause() {
    let mut world = World::of(|ctx: Ctx| async move {
        let fatal = ctx.step("fatal", || async { Err::<(), _>(Error::fatal("no")) }).await.unwrap_err();
        let later = Error::retryable("busy").retry_after(Duration::from_secs(600));
        let mut tried = false;
        let step = || match std::mem::replace(&mut tried, true) {
            true => futures::future::ready(Ok(fatal.message.clone())),
            false => futures::future::ready(Err(later.clone())),
        };
        ctx.step("later", step).await
    });
    world.run_until_waiting();
    assert_eq!(world.data(Type::StepFailed).len(), 1);
    let at = world.now.plus(600_000);
    assert_eq!(world.execution().next_due(), Some(at));
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), "no");
}

#[test]
fn standard_errors_are_retryable_and_name_their_causes() {
    let mut world = World::of(|ctx: Ctx| async move {
        ctx.step("parse", || async { "x".parse::<u32>() }).retry(Retry::never()).await
    });
    world.run_until_waiting();
    assert_eq!(world.error().message, "invalid digit found in string");
}

#[test]
fn crashes_do_not_use_up_attempts() {
    let gates = Gates::default();
    let mut world = gated(&gates, Retry::never());
    for attempt in 1..=5 {
        assert!(world.poll().is_pending());
        world.pass(VISIBLE_AFTER_MS);
        world.run_until_waiting();
        assert_eq!(world.data(Type::StepStarted).last().unwrap()["attempt"], attempt);
        world.crash();
    }
    gates.open("a");
    world.run_until_waiting();
    assert_eq!(world.output(), 6);
    assert_eq!(world.count(Type::StepCreated), 1);
    assert_eq!(world.data(Type::StepStarted).last().unwrap()["attempt"], 6);
}

#[test]
fn a_recorded_step_never_runs_again_wherever_the_process_dies() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let mut sum = 0;
            for n in 0..10 {
                let name = format!("step {n}");
                sum += ctx
                    .step(name.clone(), || {
                        gates.begin(&name);
                        async move { Ok::<_, Error>(n) }
                    })
                    .await?;
            }
            Ok(sum)
        }
    });
    while !world.ended() {
        let _ = world.poll();
        world.record();
        world.crash();
    }
    assert_eq!(world.output(), 45);
    assert!(gates.all_begun().values().all(|begun| *begun == 1), "{:?}", gates.all_begun());
    // And one that was not recorded may.
    let mut world = gated(&gates, Retry::default());
    for _ in 0..3 {
        assert!(world.poll().is_pending());
        world.crash();
    }
    assert_eq!(gates.begun("a"), 3);
}

#[test]
fn panics_of_steps_are_errors_and_panics_of_workflows_fail_the_run() {
    let mut world = World::of(|ctx: Ctx| async move {
        let early = || -> std::future::Ready<Result<(), Error>> { panic!("at {}", "once") };
        let early = ctx.step("early", early).retry(Retry::never()).await.unwrap_err();
        let late = || async {
            if true {
                panic!("later");
            }
            Ok::<_, Error>(())
        };
        let late = ctx.step("late", late).retry(Retry::never()).await.unwrap_err();
        assert!(early.is("panic") && late.is("panic"));
        if true {
            panic!("{}, {}", early.message, late.message);
        }
        Ok(())
    });
    world.run_until_waiting();
    let error = world.error();
    assert_eq!(error.message, "panicked: panicked: at once, panicked: later");
    assert!(error.is("panic"));
}

#[test]
fn a_step_that_panics_is_retried() {
    let tried = Arc::new(AtomicUsize::new(0));
    let mut world = World::of(move |ctx: Ctx| {
        let tried = Arc::clone(&tried);
        async move {
            let step = || async {
                assert!(tried.fetch_add(1, Ordering::SeqCst) > 0, "the first time");
                Ok::<_, Error>("fine".to_owned())
            };
            ctx.step("a", step).await
        }
    });
    world.run_until_waiting();
    assert_eq!(world.data(Type::StepRetrying)[0]["error"], "panicked: the first time");
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), "fine");
}

#[test]
fn results_cross_the_log_as_json_and_errors_name_the_field() {
    #[derive(Serialize, Deserialize)]
    struct Old {
        amount: f64,
        tags: Vec<String>,
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct New {
        amount: f64,
        tags: Vec<u64>,
    }
    let step = || async { Ok::<_, Error>(Old { amount: 0.1 + 0.2, tags: vec!["x".into()] }) };
    let mut world = World::of(move |ctx: Ctx| async move {
        let old = ctx.step("a", step).await?;
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok(old)
    });
    world.run_until_waiting();
    let mut world = world.rewound(2);
    world.redeploy(workflow(|ctx: Ctx, _: Value| async move {
        let never = || async { Err::<New, _>(Error::fatal("it has run")) };
        ctx.step("a", never).await
    }));
    let _ = world.poll();
    let failed = world.pending_drafts().pop().unwrap();
    assert_eq!(failed.event_data["error"], "result.tags[0]: invalid type: string \"x\", expected u64");

    let mut world = World::of(|ctx: Ctx| async move {
        let unwritable = || async { Ok::<_, Error>(std::collections::HashMap::from([((1, 2), 3)])) };
        ctx.step("a", unwritable).await.map(|map| map.len())
    });
    world.run_until_waiting();
    assert_eq!(world.error().message, "result: key must be a string");
    assert_eq!(world.count(Type::StepRetrying), 0);
}

#[test]
fn the_code_of_a_step_may_borrow_and_change_variables_of_the_workflow() {
    let mut world = World::of(|ctx: Ctx| async move {
        let words = vec!["a".to_owned(), "b".to_owned()];
        let joined: String = ctx.step("join", || join(&words)).await?;
        let mut log = Vec::new();
        ctx.step("log", || {
            log.push(joined.clone());
            async { Ok::<_, Error>(()) }
        })
        .await?;
        Ok(log)
    });
    async fn join(words: &[String]) -> Result<String, Error> {
        Ok(words.join("+"))
    }
    world.run_until_waiting();
    assert_eq!(world.output(), json!(["a+b"]));
}

#[test]
fn a_result_of_another_runner_replaces_the_attempt_in_this_process() {
    let gates = Gates::default();
    let mut world = gated(&gates, Retry::default());
    let _ = world.poll();
    world.pass(VISIBLE_AFTER_MS);
    world.run_until_waiting();
    let id = world.id_of(Type::StepCreated);
    world.receive(Type::StepStarted, &id, json!({"attempt": 2}));
    world.receive(Type::StepRetrying, &id, json!({"error": "elsewhere"}));
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::StepStarted], "the attempt here goes on");
    assert!(world.execution().busy());
    assert_eq!(gates.begun("a"), 1);
    gates.open("a");
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::StepStarted, Type::StepCompleted]);
    assert_eq!(world.pending_drafts()[0].event_data["attempt"], 3);
    // But the other one was faster.
    world.receive(Type::StepStarted, &id, json!({"attempt": 3}));
    world.receive(Type::StepCompleted, &id, json!({"result": 77}));
    world.run_until_waiting();
    assert_eq!(world.output(), 77);
}
