//! Time, chance, and the order of things are the same at every replay.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    channel::mpsc,
    future::{join, join_all},
    stream::FuturesUnordered,
};
use ledgerline_event::{Kind, RunEventType as Type};
use ledgerline_workflow::{Ctx, Error, Retry};
use serde_json::{Value, json};

use crate::{gates::Gates, world::World};

#[test]
fn time_and_chance_are_the_same_at_every_replay() {
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let inner = Arc::clone(&seen);
    let mut world = World::of(move |ctx: Ctx| {
        let seen = Arc::clone(&inner);
        async move {
            let mut own = Vec::new();
            for _ in 0..3 {
                own.push(json!([ctx.now(), ctx.random(), ctx.id(), ctx.run_id()]));
                ctx.step("a", || {
                    // What a step draws is its own.
                    ctx.random();
                    async { Ok::<_, Error>(()) }
                })
                .await?;
                own.push(json!([ctx.now(), ctx.random(), ctx.id()]));
                ctx.sleep(Duration::from_secs(1)).await?;
            }
            seen.lock().unwrap().push(own.clone().into());
            Ok(own)
        }
    });
    while !world.ended() {
        let _ = world.poll();
        if !world.record() {
            world.pass_until_due();
        }
        world.crash();
    }
    // The code returned, was replayed, and returned again.
    let mut replay = world.rewound(world.log.len() - 1);
    let _ = replay.poll();
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 1 && seen.iter().all(|own| *own == seen[0]));
    let ids: std::collections::HashSet<_> =
        seen[0].as_array().unwrap().iter().map(|seen| seen[2].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 6);
}

#[test]
fn an_id_that_a_step_makes_is_the_same_at_each_attempt() {
    let mut world = World::of(|ctx: Ctx| async move {
        let mut made = Vec::new();
        let step = || {
            made.push((ctx.id(), ctx.id()));
            async { Err::<(), _>(Error::retryable("again")) }
        };
        let _ = ctx.step("a", step).retry(Retry::times(2).backoff(Duration::ZERO, 1.0, Duration::ZERO)).await;
        Ok(made)
    });
    world.run_until_waiting();
    let made = world.output();
    assert_eq!(made[0], made[1]);
    assert_ne!(made[0][0], made[0][1]);
}

#[test]
fn ids_come_from_the_run_and_the_order_of_the_commands() {
    let code = |ctx: Ctx| async move {
        ctx.step("a", || async { Ok::<_, Error>(()) }).await?;
        let hook = ctx.hook().await?;
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok(hook.token().to_owned())
    };
    let ids = || {
        let mut world = World::of(code);
        world.run_until_waiting();
        [Type::StepCreated, Type::HookCreated, Type::WaitCreated].map(|created| world.id_of(created))
    };
    let [step, hook, wait] = ids();
    assert_eq!(
        [&step, &hook, &wait].map(|id| Kind::of(id)),
        [Some(Kind::Step), Some(Kind::Hook), Some(Kind::Wait)]
    );
    assert_eq!([step, hook, wait], ids());
    // A run may have an id that is not ours: then its time is that of its first event.
    let mut world = World::of(code);
    world.crash();
    world.run_id = ledgerline_event::Name::new("runId", "my run").unwrap();
    for event in &mut world.log[0] {
        event.correlation_id = world.run_id.clone();
    }
    world.history = ledgerline_event::RunHistory::of(world.log.iter().flatten()).unwrap();
    let created = world.log[0][0].timestamp;
    world.run_until_waiting();
    assert_eq!(Kind::time_of(&world.id_of(Type::StepCreated)), Some(created));
}

/// Branches in a `FuturesUnordered` that wake each other in the reverse of their order, while steps of theirs
/// are woken by the world. What the world does must not change the order in which they ask for things.
#[test]
fn wakes_by_the_world_do_not_change_the_order_in_which_branches_continue() {
    const BRANCHES: usize = 5;
    let run = |noisy: bool| {
        let gates = Gates::default();
        let inner = gates.clone();
        let mut world = World::of(move |ctx: Ctx| {
            let gates = inner.clone();
            async move {
                let (senders, receivers): (Vec<_>, Vec<_>) =
                    (0..BRANCHES).map(|_| mpsc::unbounded::<()>()).unzip();
                let branch = |(n, mut receiver): (usize, mpsc::UnboundedReceiver<()>)| {
                    let (ctx, gates) = (&ctx, &gates);
                    async move {
                        let name = format!("gate {n}");
                        let step = ctx.step(name.clone(), || async {
                            // Each time that it is let through it waits once more.
                            loop {
                                gates.pass(&name).await;
                                if gates.begun("stop") > 0 {
                                    return Ok::<_, Error>(());
                                }
                            }
                        });
                        let told = async {
                            receiver.next().await;
                            ctx.step(format!("told {n}"), || async { Ok::<_, Error>(()) }).await
                        };
                        let (_, told) = join(step, told).await;
                        told
                    }
                };
                let mut branches: FuturesUnordered<_> =
                    receivers.into_iter().enumerate().map(branch).collect();
                let all = async { while branches.next().await.is_some() {} };
                let conductor = async {
                    ctx.sleep(Duration::from_secs(1)).await?;
                    if noisy {
                        // As another thread might, just now.
                        (0..BRANCHES).for_each(|n| gates.open(&format!("gate {n}")));
                    }
                    for sender in senders.iter().rev() {
                        let _ = sender.unbounded_send(());
                    }
                    Ok::<_, Error>(())
                };
                join(conductor, all).await.0
            }
        });
        world.run_until_waiting();
        world.pass(1_000);
        world.run_until_waiting();
        gates.begin("stop");
        for name in gates.waiting() {
            gates.open(&name);
        }
        world.run_until_waiting();
        assert!(world.ended());
        world.data(Type::StepCreated).into_iter().map(|data| data["stepName"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn many_branches_of_many_commands_replay_at_every_entry() {
    let gates = Gates::default();
    let inner = gates.clone();
    let mut world = World::of(move |ctx: Ctx| {
        let gates = inner.clone();
        async move {
            let (ctx, gates) = (&ctx, &gates);
            let branch = |n: usize| async move {
                let mut seen = Vec::new();
                for m in 0..3 {
                    let name = format!("{n}.{m}");
                    seen.push(
                        ctx.step(name.clone(), || async {
                            gates.begin(&name);
                            gates.pass(&name).await;
                            Ok::<_, Error>(name.clone())
                        })
                        .await?,
                    );
                    if n % 3 == m {
                        ctx.sleep(Duration::from_millis(10)).await?;
                    }
                }
                Ok::<_, Error>(seen)
            };
            let all: Result<Vec<_>, Error> =
                join_all((0..40).map(branch)).map(|all| all.into_iter().collect()).await;
            all
        }
    });
    let mut turn = 0;
    while !world.ended() {
        world.run_until_waiting();
        let waiting = gates.waiting();
        // Let them through in an order that is none.
        for name in waiting.iter().skip(turn % 5).step_by(3) {
            gates.open(name);
        }
        world.pass(7);
        turn += 1;
    }
    for entries in 1..world.log.len() {
        let mut replay = world.rewound(entries);
        let _ = replay.poll();
        assert_eq!(replay.execution().mismatch(), None, "after {entries} entries");
    }
    assert!(gates.all_begun().values().all(|begun| *begun >= 1));
}
