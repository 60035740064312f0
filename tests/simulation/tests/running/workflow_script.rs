//! What the runs of a history do: one workflow whose input is a script of commands, so that each seed gives other runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use futures::{FutureExt, future::BoxFuture};
use ledgerline_workflow::{Ctx, Error, ReceivedEvent, Retry, Workflows, all, first};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a workflow asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Op {
    /// Fails `fails` times and then succeeds; or fails for good, if it is `fatal`.
    Step {
        name: String,
        takes_ms: u64,
        fails: u32,
        fatal: bool,
    },
    Sequence(Vec<Op>),
    All(Vec<Op>),
    First(Vec<Op>),
    Sleep {
        ms: u64,
    },
    /// `times` waits with the same criteria, one after the other.
    Wait {
        event: String,
        criteria: Value,
        times: u32,
        timeout_ms: Option<u64>,
        since_now: bool,
    },
    /// Reads the time, asks the world for an answer in a step, and waits for what was sent since.
    Ask {
        name: String,
        event: String,
        sleeps_ms: u64,
        timeout_ms: Option<u64>,
    },
    /// `times` times the first of two waits, and of a timer and a hook if there are any: the losers are dropped each
    /// time.
    Race {
        events: [String; 2],
        criteria: Value,
        times: u32,
        timer_ms: Option<u64>,
        token: Option<String>,
    },
    /// Opened `openings` times, one after the other.
    Hook {
        token: Option<String>,
        openings: u32,
        payloads: u32,
        patience_ms: Option<u64>,
        dispose: bool,
    },
    Send {
        event: String,
        matching: Value,
        tag: String,
    },
    Task {
        timeout_ms: Option<u64>,
    },
    Fail,
}

/// The input of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Script {
    pub(super) ops: Vec<Op>,
}

/// An attempt at a step that has begun.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) run_id: String,
    pub(super) step: String,
    pub(super) visit: u64,
}

/// A step of a run has asked the world for this event.
pub(super) struct Asked {
    pub(super) event: String,
    pub(super) matching: Value,
}

/// What the code of the runs did: the attempts and questions that were not taken yet, and all that it has read.
#[derive(Clone, Default)]
pub(super) struct Book(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    new: Vec<Begun>,
    asked: Vec<Asked>,
    /// What the code of each run has read: ids of events, and payloads of hooks.
    read: BTreeSet<(String, String)>,
    failures: BTreeMap<(String, String), u32>,
}

tokio::task_local! {
    /// The number of the visit that is being polled.
    pub(super) static VISIT: u64;
}

impl Book {
    fn begin(&self, run_id: &str, step: &str) -> u64 {
        let visit = VISIT.try_with(|visit| *visit).unwrap_or(0);
        let begun = Begun { run_id: run_id.into(), step: step.into(), visit };
        self.0.lock().unwrap().new.push(begun);
        visit
    }

    /// Whether this attempt is one of those that fail.
    fn fails(&self, run_id: &str, step: &str, times: u32) -> bool {
        let mut kept = self.0.lock().unwrap();
        let failed = kept.failures.entry((run_id.into(), step.into())).or_default();
        *failed += 1;
        *failed <= times
    }

    /// The attempts that began since this was last called.
    pub(super) fn take(&self) -> Vec<Begun> {
        std::mem::take(&mut self.0.lock().unwrap().new)
    }

    /// What steps have asked for since this was last called.
    pub(super) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }

    fn ask(&self, event: &str, matching: Value) {
        self.0.lock().unwrap().asked.push(Asked { event: event.to_owned(), matching });
    }

    fn note_read(&self, run_id: &str, what: &Value) {
        self.0.lock().unwrap().read.insert((run_id.to_owned(), what.to_string()));
    }

    /// Whether the code of a run has read this id of an event, or this payload.
    pub(super) fn has_read(&self, run_id: &str, what: &Value) -> bool {
        self.0.lock().unwrap().read.contains(&(run_id.to_owned(), what.to_string()))
    }
}

/// The one workflow that there is.
pub(super) fn workflows(book: &Book) -> Workflows {
    let book = book.clone();
    let code = move |ctx: Ctx, script: Script| {
        let book = book.clone();
        async move { perform(&ctx, Op::Sequence(script.ops), &book).await }
    };
    Workflows::new().register("script", "1", code)
}

fn perform(ctx: &Ctx, op: Op, book: &Book) -> BoxFuture<'static, Result<Value, Error>> {
    let (ctx, book) = (ctx.clone(), book.clone());
    match op {
        Op::Step { name, takes_ms, fails, fatal } => async move {
            let run_id = ctx.run_id().clone();
            let policy =
                Retry::times(fails + 2).backoff(Duration::from_millis(700), 6.0, Duration::from_secs(40));
            let step = ctx.step(name.clone(), || {
                let (book, name, run_id) = (book.clone(), name.clone(), run_id.clone());
                async move {
                    let visit = book.begin(&run_id, &name);
                    if takes_ms > 0 {
                        tokio::time::sleep(Duration::from_millis(takes_ms)).await;
                    }
                    if fatal {
                        return Err(Error::fatal("never").code(visit.to_string()));
                    }
                    if book.fails(&run_id, &name, fails) {
                        return Err(Error::retryable("not yet").code(visit.to_string()));
                    }
                    Ok(json!({ "step": name, "by": visit }))
                }
            });
            step.retry(policy).await
        }
        .boxed(),
        Op::Sequence(ops) => async move {
            let mut results = Vec::new();
            for op in ops {
                results.push(perform(&ctx, op, &book).await?);
            }
            Ok(json!(results))
        }
        .boxed(),
        Op::All(ops) => async move {
            let branches = ops.into_iter().map(|op| perform(&ctx, op, &book));
            all(branches).await.map(Value::from)
        }
        .boxed(),
        Op::First(ops) => async move {
            let (which, result) = first(ops.into_iter().map(|op| perform(&ctx, op, &book))).await;
            Ok(json!([which, result?]))
        }
        .boxed(),
        Op::Sleep { ms } => {
            async move { ctx.sleep(Duration::from_millis(ms)).await.map(|()| Value::Null) }.boxed()
        }
        Op::Wait { event, criteria, times, timeout_ms, since_now } => async move {
            let mut came = Vec::new();
            for _ in 0..times {
                let mut wait = ctx.wait_for_event(event.clone()).matching(criteria.clone());
                if since_now {
                    wait = wait.since(ctx.now());
                }
                if let Some(ms) = timeout_ms {
                    wait = wait.timeout(Duration::from_millis(ms));
                }
                came.push(read_event(&ctx, &book, wait).await?);
            }
            Ok(json!(came))
        }
        .boxed(),
        Op::Ask { name, event, sleeps_ms, timeout_ms } => async move {
            let asked_at = ctx.now();
            let matching = json!({ ASKED: name });
            let run_id = ctx.run_id().clone();
            let step = ctx.step(name.clone(), || {
                book.begin(&run_id, &name);
                book.ask(&event, matching.clone());
                async { Ok::<_, Error>(()) }
            });
            step.await?;
            if sleeps_ms > 0 {
                ctx.sleep(Duration::from_millis(sleeps_ms)).await?;
            }
            let mut wait = ctx.wait_for_event(event.clone()).matching(matching.clone()).since(asked_at);
            if let Some(ms) = timeout_ms {
                wait = wait.timeout(Duration::from_millis(ms));
            }
            read_event(&ctx, &book, wait).await
        }
        .boxed(),
        Op::Race { events, criteria, times, timer_ms, token } => async move {
            let mut came = Vec::new();
            for _ in 0..times {
                let mut branches: Vec<BoxFuture<'_, Result<Value, Error>>> = Vec::new();
                for event in &events {
                    let wait = ctx.wait_for_event(event.clone()).matching(criteria.clone());
                    branches.push(read_event(&ctx, &book, wait).boxed());
                }
                if let Some(token) = &token {
                    let hook = read_hook(&ctx, &book, Some(token.clone()), 1, None, false);
                    branches.push(hook.boxed());
                }
                if let Some(ms) = timer_ms {
                    let nap = ctx.sleep(Duration::from_millis(ms)).map(|slept| slept.map(|()| Value::Null));
                    branches.push(nap.boxed());
                }
                came.push(first(branches).await.1?);
            }
            Ok(json!(came))
        }
        .boxed(),
        Op::Hook { token, openings, payloads, patience_ms, dispose } => async move {
            let mut came = Vec::new();
            for _ in 0..openings {
                came.push(read_hook(&ctx, &book, token.clone(), payloads, patience_ms, dispose).await?);
            }
            Ok(json!(came))
        }
        .boxed(),
        Op::Send { event, matching, tag } => async move {
            let send = ctx.send_event(event).data(json!({ "tag": tag })).matching(matching);
            send.await.map(Value::from)
        }
        .boxed(),
        Op::Task { timeout_ms } => async move {
            let mut task = ctx.task::<Value>("work", json!({}));
            if let Some(ms) = timeout_ms {
                task = task.timeout(Duration::from_millis(ms));
            }
            match task.await {
                Ok(output) => Ok(output),
                Err(error) if error.is_timeout() || error.is("auth") => Ok(Value::Null),
                Err(error) => Err(error),
            }
        }
        .boxed(),
        Op::Fail => async move { Err(Error::fatal("as it was asked to")) }.boxed(),
    }
}

/// The id of the event that a wait gets; `null` if its timeout comes first.
async fn read_event(
    ctx: &Ctx,
    book: &Book,
    wait: impl Future<Output = Result<ReceivedEvent, Error>>,
) -> Result<Value, Error> {
    match wait.await {
        Ok(event) => {
            let event_id = json!(event.event_id);
            book.note_read(ctx.run_id(), &event_id);
            Ok(event_id)
        }
        Err(error) if error.is_timeout() => Ok(Value::Null),
        Err(error) => Err(error),
    }
}

/// Opens a hook and reads so many payloads of it; a payload that does not come in time is `null`.
async fn read_hook(
    ctx: &Ctx,
    book: &Book,
    token: Option<String>,
    payloads: u32,
    patience_ms: Option<u64>,
    dispose: bool,
) -> Result<Value, Error> {
    let hook = match token {
        Some(token) => ctx.hook().token(token).await,
        None => ctx.hook().await,
    };
    let hook = match hook {
        Err(error) if error.is("hook_conflict") => return Ok(json!("taken")),
        hook => hook?,
    };
    let mut came = Vec::new();
    for _ in 0..payloads {
        let next = hook
            .next::<Value>()
            .map(|payload| payload.inspect(|payload| book.note_read(ctx.run_id(), payload)));
        came.push(match patience_ms {
            None => next.await?,
            Some(ms) => {
                let nap = ctx.sleep(Duration::from_millis(ms)).map(|slept| slept.map(|()| Value::Null));
                first([next.boxed(), nap.boxed()]).await.1?
            }
        });
    }
    if dispose {
        hook.dispose().await?;
    }
    Ok(json!(came))
}

/// The field by which a wait finds the answer to its question. No event sent before the question has it.
pub(super) const ASKED: &str = "asked";

/// Writes scripts.
pub(super) struct Author {
    pub(super) random: Rng,
    /// Counts the names of steps and tags, so that no two are the same.
    pub(super) names: u32,
    pub(super) with_tasks: bool,
    /// Most commands are waits with the same criteria.
    pub(super) is_crowd: bool,
}

pub(super) const EVENTS: [&str; 2] = ["parcel.sent", "parcel.lost"];
/// So few that runs clash over them.
const TOKENS: [&str; 2] = ["till-1", "till-2"];

impl Author {
    pub(super) fn script(&mut self) -> Script {
        let count = self.random.usize(1..4);
        Script { ops: (0..count).map(|_| self.op(2)).collect() }
    }

    fn some(&mut self, depth: u32) -> Vec<Op> {
        (0..self.random.usize(2..4)).map(|_| self.op(depth - 1)).collect()
    }

    /// Some are over before the next visit, and some take longer than a lease.
    fn time(&mut self) -> u64 {
        match self.random.u8(..4) {
            0 => self.random.u64(..300),
            1 => self.random.u64(..3_000),
            2 => self.random.u64(..40_000),
            _ => self.random.u64(..300_000),
        }
    }

    fn perhaps_time(&mut self) -> Option<u64> {
        self.random.bool().then(|| self.time())
    }

    fn token(&mut self) -> Option<String> {
        self.random.bool().then(|| TOKENS[self.random.usize(..TOKENS.len())].to_owned())
    }

    /// Waits for events that many senders send at once.
    fn wait_in_crowd(&mut self) -> Op {
        let (event, criteria) = (EVENTS[0].to_owned(), json!({ "to": 0 }));
        match self.random.u8(..3) {
            0 => Op::Race {
                events: EVENTS.map(str::to_owned),
                criteria,
                times: self.random.u32(2..6),
                timer_ms: self.perhaps_time(),
                token: None,
            },
            _ => Op::Wait {
                event,
                criteria,
                times: self.random.u32(2..6),
                timeout_ms: self.perhaps_time(),
                since_now: false,
            },
        }
    }

    fn op(&mut self, depth: u32) -> Op {
        self.names += 1;
        let name = format!("n{}", self.names);
        if self.is_crowd && self.random.u8(..3) > 0 {
            return self.wait_in_crowd();
        }
        match self.random.u8(..46) {
            0..3 if depth > 0 => Op::Sequence(self.some(depth)),
            3..7 if depth > 0 => Op::All(self.some(depth)),
            7..12 if depth > 0 => Op::First(self.some(depth)),
            12..15 => Op::Sleep { ms: self.time() },
            15..23 => Op::Wait {
                event: EVENTS[self.random.usize(..EVENTS.len())].to_owned(),
                criteria: criteria(&mut self.random),
                times: if self.random.u8(..3) == 0 { self.random.u32(2..4) } else { 1 },
                timeout_ms: self.perhaps_time(),
                since_now: self.random.u8(..4) == 0,
            },
            23..28 => Op::Hook {
                token: self.token(),
                openings: if self.random.bool() { self.random.u32(2..4) } else { 1 },
                payloads: self.random.u32(..3),
                patience_ms: self.perhaps_time(),
                dispose: self.random.bool(),
            },
            28..31 => Op::Send {
                event: EVENTS[self.random.usize(..EVENTS.len())].to_owned(),
                matching: matched(&mut self.random),
                tag: name,
            },
            31 if self.with_tasks => Op::Task { timeout_ms: self.perhaps_time() },
            32 if self.random.bool() => Op::Fail,
            40..43 => Op::Ask {
                name,
                event: EVENTS[self.random.usize(..EVENTS.len())].to_owned(),
                sleeps_ms: if self.random.bool() { self.random.u64(..5_000) } else { 0 },
                timeout_ms: self.perhaps_time(),
            },
            43.. => Op::Race {
                events: EVENTS.map(str::to_owned),
                criteria: criteria(&mut self.random),
                times: self.random.u32(2..4),
                timer_ms: self.perhaps_time(),
                token: self.token(),
            },
            _ => Op::Step {
                name,
                takes_ms: match self.random.u8(..4) {
                    0 | 1 => 0,
                    2 => self.random.u64(..200),
                    _ => self.random.u64(..90_000),
                },
                fails: if self.random.u8(..3) == 0 { self.random.u32(1..3) } else { 0 },
                fatal: self.random.u8(..20) == 0,
            },
        }
    }
}

/// The criteria of waits: few enough that an event matches several waits.
pub(super) fn criteria(random: &mut Rng) -> Value {
    match random.u8(..5) {
        0 => json!({}),
        1 => json!({ "to": 0 }),
        2 => json!({ "to": 1.0 }),
        3 => json!({ "tags": ["slow"] }),
        _ => json!({ "to": 0, "tags": ["slow"] }),
    }
}

/// The match of a sent event.
pub(super) fn matched(random: &mut Rng) -> Value {
    match random.u8(..5) {
        0 => json!({}),
        1 => json!({ "to": random.u8(..3), "weight": 7 }),
        2 => json!({ "tags": ["heavy", "slow"] }),
        _ => json!({ "to": random.u8(..2), "tags": ["slow", "heavy"] }),
    }
}
