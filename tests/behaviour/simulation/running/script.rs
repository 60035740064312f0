//! What the runs of a history do: a workflow that is told by its input what to ask for, so that a seed makes many.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use futures::{FutureExt, future::BoxFuture};
use ledgerline_workflow::{Ctx, Error, Retry, Workflows, all, first};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a workflow asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Op {
    /// Fails so often, and then does not; or fails for good.
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
    /// So many waits for the same, one after the other.
    Wait {
        event: String,
        criteria: Value,
        times: u32,
        timeout_ms: Option<u64>,
        since_now: bool,
    },
    Hook {
        token: Option<String>,
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

/// An attempt at a step, when it began.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) run_id: String,
    pub(super) step: String,
    pub(super) visit: u64,
}

/// What steps did since this was last asked.
#[derive(Clone, Default)]
pub(super) struct Book(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    new: Vec<Begun>,
    failures: std::collections::BTreeMap<(String, String), u32>,
}

tokio::task_local! {
    /// Whose visit to a run is being polled.
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

    pub(super) fn take(&self) -> Vec<Begun> {
        std::mem::take(&mut self.0.lock().unwrap().new)
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
                match wait.await {
                    Ok(event) => came.push(json!(event.event_id)),
                    Err(error) if error.is_timeout() => came.push(Value::Null),
                    Err(error) => return Err(error),
                }
            }
            Ok(json!(came))
        }
        .boxed(),
        Op::Hook { token, payloads, patience_ms, dispose } => async move {
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
                let next = hook.next::<Value>();
                came.push(match patience_ms {
                    None => next.await?,
                    Some(ms) => {
                        let nap =
                            ctx.sleep(Duration::from_millis(ms)).map(|slept| slept.map(|()| Value::Null));
                        first([next.boxed(), nap.boxed()]).await.1?
                    }
                });
            }
            if dispose {
                hook.dispose().await?;
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

/// Writes scripts.
pub(super) struct Author {
    pub(super) random: Rng,
    /// Names of steps, tokens and tags are each script's own.
    pub(super) names: u32,
    pub(super) with_tasks: bool,
}

pub(super) const EVENTS: [&str; 2] = ["parcel.sent", "parcel.lost"];
/// Every one of them may clash with another run's.
const TOKENS: [&str; 2] = ["till-1", "till-2"];

impl Author {
    pub(super) fn script(&mut self) -> Script {
        let count = self.random.usize(1..4);
        Script { ops: (0..count).map(|_| self.op(2)).collect() }
    }

    fn some(&mut self, depth: u32) -> Vec<Op> {
        (0..self.random.usize(2..4)).map(|_| self.op(depth - 1)).collect()
    }

    /// Some are over before anybody looks, and some take longer than a lease.
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

    fn op(&mut self, depth: u32) -> Op {
        self.names += 1;
        let name = format!("n{}", self.names);
        match self.random.u8(..40) {
            0..3 if depth > 0 => Op::Sequence(self.some(depth)),
            3..7 if depth > 0 => Op::All(self.some(depth)),
            7..12 if depth > 0 => Op::First(self.some(depth)),
            12..15 => Op::Sleep { ms: self.time() },
            15..23 => Op::Wait {
                event: EVENTS[self.random.usize(..EVENTS.len())].to_owned(),
                criteria: criteria(&mut self.random),
                times: if self.random.u8(..3) == 0 { self.random.u32(2..4) } else { 1 },
                timeout_ms: self.perhaps_time(),
                since_now: self.random.u8(..6) == 0,
            },
            23..28 => Op::Hook {
                token: self.random.bool().then(|| TOKENS[self.random.usize(..TOKENS.len())].to_owned()),
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

/// What waits ask for; few enough that events fit several.
pub(super) fn criteria(random: &mut Rng) -> Value {
    match random.u8(..5) {
        0 => json!({}),
        1 => json!({ "to": 0 }),
        2 => json!({ "to": 1.0 }),
        3 => json!({ "tags": ["slow"] }),
        _ => json!({ "to": 0, "tags": ["slow"] }),
    }
}

/// What events bring.
pub(super) fn matched(random: &mut Rng) -> Value {
    match random.u8(..5) {
        0 => json!({}),
        1 => json!({ "to": random.u8(..3), "weight": 7 }),
        2 => json!({ "tags": ["heavy", "slow"] }),
        _ => json!({ "to": random.u8(..2), "tags": ["slow", "heavy"] }),
    }
}
