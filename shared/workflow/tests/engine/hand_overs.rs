//! What the code has not read before it dropped a wait or a hook, and who gets it then.

use std::time::Duration;

use futures::FutureExt;
use ledgerline_event::{Name, RunEventType as Type};
use ledgerline_workflow::{Ctx, Error, first};
use serde_json::{Value, json};

use crate::world::{World, draft};

fn event(name: &str, id: &str, matching: Value) -> Value {
    json!({ "outcome": "event", "eventId": id, "eventName": name, "data": id, "matchCriteria": matching })
}

/// The open waits for an event of this name, in their order.
fn open(world: &World, name: &str) -> Vec<Name> {
    let is_open = |id: &Name| world.history.waits().get(id).is_some_and(|wait| !wait.state.is_terminal());
    let created = world.log.iter().flatten().filter(|event| event.event_type == Type::WaitCreated);
    let named = created.filter(|event| event.event_data.get("eventName") == Some(&json!(name)));
    named.map(|event| event.correlation_id.clone()).filter(is_open).collect()
}

fn complete(world: &mut World, name: &str, id: &str, matching: Value) {
    let wait = open(world, name).remove(0);
    world.receive(Type::WaitCompleted, &wait, event(name, id, matching));
}

async fn basket(ctx: Ctx) -> Result<Value, Error> {
    let mut had = Vec::new();
    while had.len() < 3 {
        let waits = ["added", "checkout"]
            .map(|name| ctx.wait_for_event(name).map(|event| event.map(|event| event.event_id)).boxed());
        had.push(first(waits).await.1?);
    }
    Ok(json!(had))
}

/// Both waits are completed before the code has seen either.
fn both_at_once() -> World {
    let mut world = World::of(basket);
    world.run_until_waiting();
    complete(&mut world, "added", "a", json!({}));
    complete(&mut world, "checkout", "b", json!({}));
    world
}

#[test]
fn an_event_of_a_dropped_wait_reaches_the_next_wait_in_one_entry() {
    let mut world = both_at_once();
    world.run_until_waiting();
    let handed: Vec<Value> = world
        .data(Type::WaitCompleted)
        .into_iter()
        .map(Value::from)
        .filter(|data| data["eventId"] == "b")
        .collect();
    assert_eq!(handed.len(), 2, "taken, and handed over once: {handed:#?}");
    assert_eq!(handed[1]["handedOverFrom"], json!(world.history.waits().as_slice()[1].wait_id));
    let entry = world
        .log
        .iter()
        .find(|entry| entry.iter().any(|event| event.event_data.contains_key("handedOverFrom")));
    let types: Vec<Type> = entry.unwrap().iter().map(|event| event.event_type).collect();
    assert!(types.ends_with(&[Type::WaitCreated, Type::WaitCreated, Type::WaitCompleted]), "{types:?}");
    complete(&mut world, "checkout", "c", json!({}));
    world.run_until_waiting();
    assert_eq!(world.output(), json!(["a", "b", "c"]));
    // Every replay of every part of the log says the same.
    for entries in 1..=world.log.len() {
        let mut again = world.rewound(entries);
        let _ = again.poll();
        assert_eq!(again.execution().mismatch().map(|mismatch| mismatch.to_string()), None, "{entries}");
    }
}

#[test]
fn an_open_wait_of_an_older_log_gets_the_event_at_the_next_replay() {
    let mut world = both_at_once();
    // A runner of a version before 0.1.0 handles the first, and registers the waits of the next round.
    let _ = world.poll();
    let wanted: Vec<_> = world
        .pending_drafts()
        .into_iter()
        .filter(|draft| !draft.event_data.contains_key("handedOverFrom"))
        .collect();
    world.append(wanted);
    world.crash();
    assert_eq!((open(&world, "added").len(), open(&world, "checkout").len()), (1, 1));
    world.run_until_waiting();
    complete(&mut world, "added", "c", json!({}));
    world.run_until_waiting();
    assert_eq!(world.output(), json!(["a", "b", "c"]));
}

#[test]
fn an_event_that_does_not_fit_is_kept_for_a_later_wait_in_the_order_of_the_log() {
    let mut world = World::of(|ctx: Ctx| async move {
        let waits = [0, 1, 2].map(|n| ctx.wait_for_event("e").matching(json!({ "n": n })).boxed());
        first(waits).await.1?;
        let since = ctx.now().plus(1);
        let late = ctx.wait_for_event("e").since(since).timeout(Duration::from_secs(1)).await;
        assert!(late.unwrap_err().is_timeout());
        let mut had = Vec::new();
        for criteria in [json!({ "other": 1 }), json!({}), json!({})] {
            let wait = ctx.wait_for_event("e").matching(criteria).timeout(Duration::from_secs(1));
            had.push(wait.await.map_or_else(|error| error.code.unwrap_or_default(), |event| event.event_id));
        }
        Ok::<_, Error>(had)
    });
    world.run_until_waiting();
    for n in [0, 2, 1] {
        let wait = world.history.waits().as_slice()[n].wait_id.clone();
        world.receive(Type::WaitCompleted, &wait, event("e", &format!("e{n}"), json!({ "n": n })));
    }
    for _ in 0..3 {
        world.run_until_waiting();
        world.crash();
        world.pass(1_000);
    }
    world.run_until_waiting();
    assert_eq!(world.output(), json!(["timeout", "e2", "e1"]));
}

#[test]
fn a_wait_and_its_hand_over_are_recorded_together() {
    let mut world = both_at_once();
    let _ = world.poll();
    let wanted = world.pending_drafts();
    let types: Vec<Type> = wanted.iter().map(|draft| draft.event_type).collect();
    assert_eq!(types, [Type::WaitCreated, Type::WaitCreated, Type::WaitCompleted]);
}

async fn till(ctx: Ctx) -> Result<Value, Error> {
    let mut had: Vec<Value> = Vec::new();
    for _ in 0..2 {
        let hook = ctx.hook().token("till").await?;
        had.push(hook.next().await?);
        hook.dispose().await?;
    }
    let other = ctx.hook().await?;
    ctx.sleep(Duration::from_secs(1)).await?;
    drop(other);
    let last = ctx.hook().token("till").await?;
    had.push(last.next().await?);
    had.push(last.next().await?);
    Ok(json!(had))
}

#[test]
fn unread_payloads_pass_to_a_later_hook_with_the_same_chosen_token() {
    let mut world = World::of(till);
    world.run_until_waiting();
    let hook = world.id_of(Type::HookCreated);
    let payloads = [1, 2, 3].map(|n| draft(Type::HookReceived, &hook, json!({ "payload": n })));
    world.append(payloads.to_vec());
    world.run_until_waiting();
    world.pass(1_000);
    world.crash();
    world.run_until_waiting();
    let last = world.history.hooks().as_slice().last().unwrap().hook_id.clone();
    world.receive(Type::HookReceived, &last, json!({ "payload": 4 }));
    world.run_until_waiting();
    assert_eq!(world.output(), json!([1, 2, 3, 4]));
    let handed = world.data(Type::HookReceived);
    let handed = handed.iter().filter(|data| data.contains_key("handedOverFrom"));
    assert_eq!(handed.map(|data| data["payload"].clone()).collect::<Vec<_>>(), [2, 3, 3]);
    for entries in 1..=world.log.len() {
        let mut again = world.rewound(entries);
        let _ = again.poll();
        assert_eq!(again.execution().mismatch().map(|mismatch| mismatch.to_string()), None, "{entries}");
    }
}
