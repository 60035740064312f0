//! Sleeps, and waits for events.

use std::time::Duration;

use ledgerline_event::{Millis, RunEventType as Type};
use ledgerline_workflow::{Ctx, Error};
use serde_json::{Value, json};

use crate::world::World;

#[test]
fn a_sleep_is_over_at_its_time_and_not_before() {
    let mut world = World::of(|ctx: Ctx| async move {
        let before = ctx.now();
        ctx.sleep(Duration::from_millis(1_500)).await?;
        Ok(ctx.now().get() - before.get())
    });
    world.run_until_waiting();
    assert_eq!(world.types(1), [Type::RunStarted, Type::WaitCreated]);
    let resume_at = world.now.plus(1_500);
    assert_eq!(Value::from(world.data(Type::WaitCreated)[0].clone()), json!({"resumeAt": resume_at}));
    assert_eq!(world.execution().next_due(), Some(resume_at));
    assert!(!world.execution().busy());
    world.pass(1_499);
    world.run_until_waiting();
    assert_eq!(world.count(Type::WaitCompleted), 0);
    world.crash();
    world.pass(1);
    world.run_until_waiting();
    assert_eq!(world.data(Type::WaitCompleted)[0]["outcome"], "elapsed");
    assert_eq!(world.output(), 1_500);
}

#[test]
fn a_sleep_until_a_past_time_is_recorded_and_over_at_once() {
    let mut world = World::of(|ctx: Ctx| async move {
        ctx.sleep_until(Millis::MIN).await?;
        ctx.sleep(Duration::ZERO).await?;
        ctx.sleep(Duration::from_micros(1)).await?;
        ctx.sleep(Duration::MAX).await
    });
    world.run_until_waiting();
    assert_eq!((world.count(Type::WaitCreated), world.count(Type::WaitCompleted)), (3, 2));
    // But a little sleep is a sleep.
    world.pass(1);
    world.run_until_waiting();
    assert_eq!(world.execution().next_due(), Some(Millis::MAX));
}

#[test]
fn a_sleep_begins_when_it_is_issued_and_the_log_keeps_its_end() {
    let code = |ctx: Ctx| async move { ctx.sleep(Duration::from_secs(60)).await };
    let mut world = World::of(code);
    // The run lay in a queue for ten minutes.
    world.pass(600_000);
    world.run_until_waiting();
    let resume_at = world.now.plus(60_000);
    assert_eq!(world.execution().next_due(), Some(resume_at));
    world.pass(30_000);
    world.crash();
    world.run_until_waiting();
    assert_eq!(world.execution().next_due(), Some(resume_at));
}

async fn payment(ctx: Ctx) -> Result<Value, Error> {
    let since = ctx.now();
    let wait = ctx.wait_for_event("payment.received").matching(json!({"invoice": 7})).since(since);
    match wait.timeout(Duration::from_secs(60)).await {
        Ok(event) => {
            let amount: u64 = event.data_as()?;
            Ok(json!([event.event_id, event.event_name, amount, event.match_criteria]))
        }
        Err(error) => Ok(json!([error.is_timeout(), error.message])),
    }
}

#[test]
fn an_event_ends_a_wait() {
    let mut world = World::of(payment);
    let since = world.now;
    world.run_until_waiting();
    let timeout_at = world.now.plus(60_000);
    assert_eq!(
        Value::from(world.data(Type::WaitCreated)[0].clone()),
        json!({"eventName": "payment.received", "matchCriteria": {"invoice": 7}, "since": since, "timeoutAt": timeout_at})
    );
    let id = world.id_of(Type::WaitCreated);
    let event = json!({"outcome": "event", "eventId": "evnt_1", "eventName": "payment.received", "data": 99, "matchCriteria": {"invoice": 7, "x": 1}});
    world.receive(Type::WaitCompleted, &id, event);
    world.run_until_waiting();
    assert_eq!(world.output(), json!(["evnt_1", "payment.received", 99, {"invoice": 7, "x": 1}]));
}

#[test]
fn an_event_that_comes_before_the_timeout_is_recorded_wins() {
    let mut world = World::of(payment);
    world.run_until_waiting();
    world.pass(60_000);
    assert!(world.poll().is_ready());
    assert_eq!(world.wanted_types(), [Type::WaitCompleted]);
    assert_eq!(world.pending_drafts()[0].event_data["outcome"], "timeout");
    // The append is refused: another process has completed the wait with an event.
    let id = world.id_of(Type::WaitCreated);
    world.receive(
        Type::WaitCompleted,
        &id,
        json!({"outcome": "event", "eventId": "e", "eventName": "n", "data": 1}),
    );
    world.run_until_waiting();
    assert_eq!(world.output(), json!(["e", "n", 1, null]));
    assert_eq!(world.count(Type::WaitCompleted), 1);
}

#[test]
fn a_wait_whose_time_runs_out_is_a_timeout() {
    let mut world = World::of(payment);
    world.run_until_waiting();
    world.pass_until_due();
    world.run_until_waiting();
    assert_eq!(world.output(), json!([true, "the event did not come in time"]));
}

#[test]
fn data_that_does_not_fit_names_the_field() {
    let mut world = World::of(payment);
    world.run_until_waiting();
    let id = world.id_of(Type::WaitCreated);
    world.receive(Type::WaitCompleted, &id, json!({"outcome": "event", "data": {"amount": 1}}));
    world.run_until_waiting();
    assert_eq!(world.error().message, "data: invalid type: map, expected u64");
}

#[test]
fn criteria_that_no_index_can_hold_are_refused_before_anything_is_recorded() {
    let many: Value = (0..65).map(|n| (format!("k{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
    for (name, criteria, expected) in [
        ("a", json!([1]), "match: is an array; an object is expected"),
        ("a", many, "match: has 65 leaves; at most 64 are allowed"),
        ("a#b", json!({}), "event: `a#b` contains '#'"),
    ] {
        let mut world = World::of(move |ctx: Ctx| {
            let criteria = criteria.clone();
            async move { ctx.wait_for_event(name).matching(criteria).await.map(|event| event.data) }
        });
        world.run_until_waiting();
        assert!(world.error().message.starts_with(expected), "{}", world.error());
        assert_eq!(world.count(Type::WaitCreated), 0);
    }
}

#[test]
fn a_runner_that_knows_only_sleeps_may_complete_them_without_an_outcome() {
    let mut world = World::of(|ctx: Ctx| async move { ctx.sleep(Duration::from_secs(60)).await });
    world.run_until_waiting();
    let id = world.id_of(Type::WaitCreated);
    world.receive(Type::WaitCompleted, &id, json!({}));
    world.run_until_waiting();
    assert_eq!(world.output(), Value::Null);
}
