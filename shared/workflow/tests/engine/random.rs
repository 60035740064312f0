//! Random workflows, random events from the world, and a process that dies at any point: the run continues as if
//! nothing had happened, recorded work is not done again, and every prefix of the log can be replayed.

use std::{
    collections::BTreeMap,
    task::{Context, Waker},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use ledgerline_event::{LogDraft, LogEvent, Name, RunEventType as Type, RunHistory, WaitFor};
use ledgerline_workflow::{Ctx, Ended, Error, Retry, all, first};
use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

use crate::{
    gates::Gates,
    world::{World, draft, workflow},
};

/// What a workflow does.
#[derive(Clone, Debug)]
enum Plan {
    Step {
        slow: bool,
        failures: usize,
    },
    Sleep(u64),
    Event {
        timeout: Option<u64>,
    },
    Hook {
        payloads: usize,
        dispose: bool,
    },
    Draw,
    InTurn(Vec<Plan>),
    All(Vec<Plan>),
    First(Vec<Plan>),
    /// All plans side by side; each plan that ends begins one step.
    Following(Vec<Plan>),
}

fn plan() -> impl Strategy<Value = Plan> {
    let leaf = prop_oneof![
        4 => (any::<bool>(), 0..3_usize).prop_map(|(slow, failures)| Plan::Step { slow, failures }),
        2 => (0..200_u64).prop_map(Plan::Sleep),
        2 => prop::option::of(0..200_u64).prop_map(|timeout| Plan::Event { timeout }),
        2 => (0..3_usize, any::<bool>()).prop_map(|(payloads, dispose)| Plan::Hook { payloads, dispose }),
        1 => Just(Plan::Draw),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let some = prop::collection::vec(inner, 1..6);
        prop_oneof![
            3 => some.clone().prop_map(Plan::InTurn),
            1 => some.clone().prop_map(Plan::All),
            2 => some.clone().prop_map(Plan::First),
            1 => some.prop_map(Plan::Following),
        ]
    })
}

/// What the world does.
#[derive(Clone, Debug)]
enum Move {
    Poll,
    Record,
    /// An event is appended just before the entry that the code wants.
    RecordLate(Index),
    Crash,
    Open(Index),
    Pass(u64),
    Receive(Index),
    Cancel,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        40 => Just(Move::Poll),
        40 => Just(Move::Record),
        10 => any::<Index>().prop_map(Move::RecordLate),
        15 => Just(Move::Crash),
        30 => any::<Index>().prop_map(Move::Open),
        20 => (1..80_u64).prop_map(Move::Pass),
        20 => any::<Index>().prop_map(Move::Receive),
        1 => Just(Move::Cancel),
    ];
    prop::collection::vec(one, 0..120)
}

/// Executes the plan; returns the results that it saw.
fn act<'a>(ctx: &'a Ctx, gates: &'a Gates, plan: &'a Plan, path: String) -> BoxFuture<'a, Value> {
    let result = move |result: Result<Value, Error>| match result {
        Ok(value) => value,
        Err(error) => json!({"error": error.message, "code": error.code}),
    };
    let parts = |parts: &'a [Plan]| {
        let path = path.clone();
        parts.iter().enumerate().map(move |(n, part)| act(ctx, gates, part, format!("{path}.{n}")))
    };
    match plan {
        Plan::Step { slow, failures } => async move {
            let step = || async {
                let before = gates.begin(&path);
                if *slow {
                    gates.pass(&path).await;
                }
                if before < *failures {
                    return Err(Error::retryable(format!("failure {before}")));
                }
                Ok(json!([path, ctx.id()]))
            };
            let retry = Retry::times(2).backoff(Duration::from_millis(30), 2.0, Duration::from_secs(1));
            result(ctx.step(path.clone(), step).retry(retry).await)
        }
        .boxed(),
        Plan::Sleep(ms) => {
            async move { result(ctx.sleep(Duration::from_millis(*ms)).await.map(|()| json!(ctx.now()))) }
                .boxed()
        }
        Plan::Event { timeout } => async move {
            let mut wait = ctx.wait_for_event(path);
            if let Some(timeout) = timeout {
                wait = wait.timeout(Duration::from_millis(*timeout));
            }
            result(wait.await.map(|event| event.data))
        }
        .boxed(),
        Plan::Hook { payloads, dispose } => async move {
            let work = async {
                let hook = ctx.hook().metadata(&path).await?;
                let mut seen = vec![json!(hook.token())];
                for _ in 0..*payloads {
                    seen.push(hook.next().await?);
                }
                if *dispose {
                    hook.dispose().await?;
                }
                Ok(seen.into())
            };
            result(work.await)
        }
        .boxed(),
        Plan::Draw => async move { json!([ctx.now(), ctx.random(), ctx.id()]) }.boxed(),
        Plan::InTurn(plans) => {
            let parts = parts(plans);
            async move {
                let mut seen = Vec::new();
                for part in parts {
                    seen.push(part.await);
                }
                seen.into()
            }
            .boxed()
        }
        Plan::All(plans) => {
            // Half of the parts with `all` of this crate, half with `join_all` of the crate `futures`.
            let (even, odd): (Vec<_>, Vec<_>) = parts(plans).enumerate().partition(|(n, _)| n % 2 == 0);
            let even = all(even.into_iter().map(|(_, part)| part.map(Ok::<_, Error>)));
            let odd = join_all(odd.into_iter().map(|(_, part)| part));
            futures::future::join(even, odd).map(|(even, odd)| json!([even.unwrap(), odd])).boxed()
        }
        Plan::First(plans) => first(parts(plans)).map(|(index, value)| json!([index, value])).boxed(),
        Plan::Following(plans) => {
            let mut running: FuturesUnordered<BoxFuture<'a, Value>> = parts(plans).collect();
            async move {
                let (mut seen, mut more) = (Vec::new(), plans.len());
                while let Some(value) = running.next().await {
                    seen.push(value);
                    if more > 0 {
                        more -= 1;
                        let name = format!("{path}+{more}");
                        let step = move || {
                            gates.begin(&name);
                            let name = name.clone();
                            async move { Ok::<_, Error>(json!(name)) }
                        };
                        running.push(ctx.step(format!("{path}+{more}"), step).map(result).boxed());
                    }
                }
                seen.into()
            }
            .boxed()
        }
    }
}

fn world(plan: &Plan, gates: &Gates) -> World {
    let (plan, gates) = (plan.clone(), gates.clone());
    let code = move |ctx: Ctx, _: Value| {
        let (plan, gates) = (plan.clone(), gates.clone());
        async move { Ok(act(&ctx, &gates, &plan, "p".into()).await) }
    };
    World::new(workflow(code), Value::Null)
}

/// What the world may append: payloads for active hooks, and events for open waits.
fn world_events(history: &RunHistory, salt: usize) -> Vec<LogDraft> {
    let payload = |id: &Name| draft(Type::HookReceived, id, json!({"payload": format!("payload {salt}")}));
    let hooks = history.active_hooks().map(|hook| payload(&hook.hook_id));
    let waits = history.open_waits().filter_map(|wait| match &wait.target {
        WaitFor::Event { event_name, .. } => {
            let event = json!({"outcome": "event", "eventName": event_name, "data": {"event": salt}});
            Some(draft(Type::WaitCompleted, &wait.wait_id, event))
        }
        _ => None,
    });
    hooks.chain(waits).collect()
}

/// Checks that no step begins again after the log says that it has ended.
struct NothingTwice(BTreeMap<String, usize>);

impl NothingTwice {
    fn check(&mut self, gates: &Gates, history: &RunHistory) {
        let begun = gates.all_begun();
        for step in history.steps() {
            if step.state.is_terminal() {
                let now = begun.get(&step.name).copied().unwrap_or(0);
                let before = *self.0.entry(step.name.clone()).or_insert(now);
                assert_eq!(before, now, "{} was begun though it had ended", step.name);
            }
        }
    }
}

/// Carries out the move with this number.
fn carry_out(world: &mut World, gates: &Gates, number: usize, next: &Move) {
    let append_event = |world: &mut World, index: &Index| {
        let events = world_events(&world.history, number);
        if !events.is_empty() {
            world.append(vec![index.get(&events).clone()]);
        }
    };
    match next {
        Move::Poll => _ = world.poll(),
        Move::Record => {
            let _ = world.poll();
            world.record();
        }
        Move::RecordLate(index) => {
            let _ = world.poll();
            append_event(world, index);
            let _ = world.poll();
            if !world.ended() {
                world.record();
            }
        }
        Move::Crash => world.crash(),
        Move::Open(index) => {
            let waiting = gates.waiting();
            if !waiting.is_empty() {
                gates.open(&waiting[index.index(waiting.len())]);
            }
        }
        Move::Pass(ms) => world.pass(*ms),
        Move::Receive(index) => append_event(world, index),
        Move::Cancel => {
            let mut drafts = world.history.closings();
            drafts.push(draft(Type::RunCancelled, &world.run_id.clone(), json!({})));
            world.append(drafts);
        }
    }
}

/// Opens every gate, appends events and lets time pass until the run has ended.
fn finish(world: &mut World, gates: &Gates, check: &mut NothingTwice) {
    for turn in 0..2_000 {
        world.run_until_waiting();
        check.check(gates, &world.history);
        if world.ended() {
            return;
        }
        for name in gates.waiting() {
            gates.open(&name);
        }
        if let Some(event) = world_events(&world.history, 1_000 + turn).into_iter().next() {
            world.append(vec![event]);
        }
        world.pass(50);
    }
    panic!("it never ends: {:#?}", world.history);
}

/// Every prefix of the log replays, and after all entries but the last the code wants exactly the last one.
fn check_replays(world: &World, plan: &Plan) {
    let replayed = |entries: usize| {
        let gates = Gates::default();
        let mut replay = world.rewound(entries);
        replay.workflow = self::world(plan, &gates).workflow;
        let mut check = NothingTwice(Default::default());
        check.check(&gates, &replay.history);
        let _ = replay.poll();
        check.check(&gates, &replay.history);
        assert_eq!(replay.execution().mismatch(), None, "after {entries} entries");
        replay
    };
    for entries in 1..world.log.len() {
        replayed(entries);
    }
    if last_type(world) == Type::RunCancelled {
        return;
    }
    let (last, before) = world.log.split_last().unwrap();
    let drafts = |entry: &[LogEvent]| -> Vec<LogDraft> {
        let draft = |LogEvent { event_type, correlation_id, event_data, .. }| LogDraft {
            event_type,
            correlation_id,
            event_data,
        };
        entry.iter().cloned().map(draft).collect()
    };
    assert_eq!(replayed(before.len()).pending_drafts(), drafts(last));
    // The same if the log comes piece by piece, to a process that begins steps in between.
    let mut slow = replayed(1);
    for entry in &before[1..] {
        for event in entry {
            slow.now = event.timestamp;
            slow.execution().feed([event.clone()]);
            let now = slow.now;
            let _ = slow.execution().poll(&mut Context::from_waker(Waker::noop()), now);
        }
    }
    assert_eq!(slow.execution().mismatch(), None);
    assert_eq!(slow.pending_drafts(), drafts(last));
}

fn last_type(world: &World) -> Type {
    world.log.last().unwrap().last().unwrap().event_type
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_run_survives_crashes_and_events_at_any_point_and_its_log_replays(plan in plan(), moves in moves()) {
        let gates = Gates::default();
        let mut world = world(&plan, &gates);
        let mut check = NothingTwice(Default::default());
        for (number, next) in moves.iter().enumerate() {
            if world.ended() {
                break;
            }
            carry_out(&mut world, &gates, number, next);
            check.check(&gates, &world.history);
        }
        finish(&mut world, &gates, &mut check);
        prop_assert_eq!(world.execution().mismatch(), None);
        match world.outcome() {
            Some(Ended::Completed(_)) => {
                prop_assert_eq!(world.history.open_steps().count() + world.history.open_waits().count(), 0);
            }
            Some(Ended::Cancelled) => {}
            other => prop_assert!(false, "{:?}", other),
        }
        check_replays(&world, &plan);
    }
}
