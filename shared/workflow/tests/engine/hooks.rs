//! Hooks: tokens, payloads, ends.

use std::time::Duration;

use futures::{FutureExt, future::join};
use ledgerline_event::RunEventType as Type;
use ledgerline_workflow::{Ctx, Error, first};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::world::World;

fn payload(world: &mut World, payload: Value) {
    let id = world.id_of(Type::HookCreated);
    world.receive(Type::HookReceived, &id, json!({"payload": payload}));
}

#[test]
fn payloads_are_received_in_their_order_even_those_that_came_early() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().metadata(json!({"for": "you"})).await?;
        ctx.sleep(Duration::from_secs(1)).await?;
        let mut all = vec![hook.token().to_owned()];
        while let Some(text) = hook.next::<Option<String>>().await? {
            all.push(text);
        }
        hook.dispose().await?;
        ctx.sleep(Duration::from_secs(1)).await?;
        Ok(all)
    });
    world.run_until_waiting();
    assert_eq!(world.types(1), [Type::RunStarted, Type::HookCreated]);
    let data = world.data(Type::HookCreated)[0].clone();
    assert_eq!(data["metadata"], json!({"for": "you"}));
    payload(&mut world, json!("a"));
    payload(&mut world, json!("b"));
    world.run_until_waiting();
    world.crash();
    world.pass(1_000);
    world.run_until_waiting();
    payload(&mut world, json!("c"));
    world.run_until_waiting();
    assert_eq!(world.count(Type::HookDisposed), 0);
    payload(&mut world, json!(null));
    payload(&mut world, json!("too late"));
    world.run_until_waiting();
    assert_eq!(world.count(Type::HookDisposed), 1);
    world.pass(1_000);
    world.run_until_waiting();
    assert_eq!(world.output(), json!([data["token"], "a", "b", "c"]));
}

#[test]
fn a_payload_that_does_not_fit_names_the_field_and_is_skipped() {
    #[derive(Deserialize)]
    struct Answer {
        approved: bool,
    }
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().token("mine").await?;
        let error = hook.next::<Answer>().await.map(|answer| answer.approved).unwrap_err();
        let answer: Answer = hook.next().await?;
        Ok((error.message, answer.approved))
    });
    world.run_until_waiting();
    assert_eq!(world.data(Type::HookCreated)[0]["token"], "mine");
    payload(&mut world, json!({"approved": "yes"}));
    payload(&mut world, json!({"approved": true}));
    world.run_until_waiting();
    let message = "payload.approved: invalid type: string \"yes\", expected a boolean";
    assert_eq!(world.output(), json!([message, true]));
    assert_eq!(world.types(world.log.len() - 1), [Type::HookDisposed, Type::RunCompleted]);
}

#[test]
fn a_taken_token_is_a_conflict() {
    let code = |ctx: Ctx| async move {
        let error = ctx.hook().token("taken").await.map(|_| ()).unwrap_err();
        assert!(error.is("hook_conflict"));
        ctx.hook().token("free").await.map(|hook| hook.token().to_owned())
    };
    let mut world = World::of(code);
    let _ = world.poll();
    let mut wanted = world.pending_drafts();
    wanted[1].event_type = Type::HookConflict;
    world.append(wanted);
    world.run_until_waiting();
    assert_eq!(world.output(), "free");
}

#[test]
fn a_bad_token_is_refused_before_anything_is_recorded() {
    let mut world =
        World::of(
            |ctx: Ctx| async move { ctx.hook().token("a#b").await.map(|hook| hook.token().to_owned()) },
        );
    world.run_until_waiting();
    assert!(world.error().message.starts_with("token: "), "{}", world.error());
    assert_eq!(world.count(Type::HookCreated), 0);
}

#[test]
fn a_dropped_hook_is_disposed_of() {
    let mut world = World::of(|ctx: Ctx| async move {
        drop(ctx.hook().await?);
        ctx.sleep(Duration::from_secs(1)).await
    });
    world.run_until_waiting();
    assert_eq!(world.types(2), [Type::HookDisposed, Type::WaitCreated]);
}

#[test]
fn a_hook_that_others_dispose_of_gives_its_payloads_and_then_an_error() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().await?;
        let first: u64 = hook.next().await?;
        let error: Error = hook.next::<u64>().await.unwrap_err();
        hook.dispose().await?;
        Ok((first, error.code))
    });
    world.run_until_waiting();
    payload(&mut world, json!(1));
    let id = world.id_of(Type::HookCreated);
    world.receive(Type::HookDisposed, &id, json!({}));
    world.run_until_waiting();
    assert_eq!(world.output(), json!([1, "hook_disposed"]));
    assert_eq!(world.count(Type::HookDisposed), 1);
}

#[test]
fn the_first_reader_is_served_first_even_if_it_is_polled_last() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().await?;
        let mut first = hook.next::<u64>();
        assert!(futures::poll!(&mut first).is_pending());
        let (second, first) = join(hook.next::<u64>(), first).await;
        Ok((first?, second?))
    });
    world.run_until_waiting();
    payload(&mut world, json!(1));
    payload(&mut world, json!(2));
    world.run_until_waiting();
    assert_eq!(world.output(), json!([1, 2]));
}

#[test]
fn a_payload_that_its_first_reader_does_not_take_wakes_the_next_reader() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().await?;
        let leaving = async {
            let mut next = hook.next::<u64>();
            assert!(futures::poll!(&mut next).is_pending());
            ctx.sleep(Duration::from_secs(1)).await?;
            drop(next);
            std::future::pending().await
        };
        first([leaving.boxed(), hook.next::<u64>().boxed()]).await.1
    });
    world.run_until_waiting();
    payload(&mut world, json!(5));
    world.run_until_waiting();
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), 5);
}

#[test]
fn readers_of_one_hook_get_payloads_in_the_order_in_which_they_began_to_wait() {
    let mut world = World::of(|ctx: Ctx| async move {
        let hook = ctx.hook().await?;
        let (first, second) = join(hook.next::<u64>(), hook.next::<u64>()).await;
        // One that no longer waits leaves its payload to the next.
        let mut third = Box::pin(hook.next::<u64>());
        assert!(futures::poll!(&mut third).is_pending());
        let mut fourth = Box::pin(hook.next::<u64>());
        assert!(futures::poll!(&mut fourth).is_pending());
        ctx.sleep(Duration::from_secs(1)).await?;
        drop(third);
        Ok((first?, second?, fourth.await?))
    });
    world.run_until_waiting();
    payload(&mut world, json!(1));
    payload(&mut world, json!(2));
    payload(&mut world, json!(3));
    world.run_until_waiting();
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), json!([1, 2, 3]));
}
