//! `ledgerline rewind`: says what lies between, asks, goes back, and drains or watches until the
//! cursor is where it was. The rewind itself is one write; whatever happens to this process
//! after it, the dispatcher goes on.

mod progress;

use std::{
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use indicatif::HumanCount;
use ledgerline_dispatch::{Dispatch, DispatchError, DrainerState, Rewind};
use ledgerline_event::{Name, keys::time_of};
use ledgerline_ledger::system_clock;
use tokio::{sync::watch, time::Instant};

use self::progress::Progress;
use crate::{
    args::RewindArgs,
    output::{Output, counted, wrong_usage},
    target::Target,
    times,
};

/// A drainer at work may move while a person reads, and while the rewind is written.
const ATTEMPTS: usize = 20;
/// How long this process drains before it shows how far it is.
const SLICE: Duration = Duration::from_millis(500);
/// How often it looks while another process drains…
const LOOK: Duration = Duration::from_millis(200);
/// …and when it tries to take over: that process may be gone.
const TAKE_OVER: Duration = Duration::from_secs(15);

/// How following a rewind ended.
enum End {
    CaughtUp(Box<DrainerState>),
    Halted(Box<DrainerState>),
    Interrupted,
}

pub(super) async fn run(target: &Target, args: RewindArgs, output: Output) -> anyhow::Result<ExitCode> {
    let asks = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !asks {
        return Ok(wrong_usage(
            "rewind asks before it starts work again, and there is no terminal to ask on: look at \
             `drainers`, then add --yes",
        ));
    }
    let (tenant, dispatch) = (target.tenant()?, target.dispatch().await?);
    let now = system_clock()();
    let to = times::length(&args.to).map_or(args.to, |ms| now.minus(ms).to_string());
    let plan = dispatch.plan_rewind(tenant, &args.drainer, &to, args.missing_only, true).await?;
    eprintln!("{}", description(&plan, tenant));
    if !args.yes && !agreed()? {
        eprintln!("Nothing was changed.");
        return Ok(ExitCode::FAILURE);
    }
    let before = state(&dispatch, tenant, &plan.drainer_id).await?.events_processed_total;
    let mut done = go_back(&dispatch, tenant, plan, &to).await?;
    let end = follow(&dispatch, tenant, &mut done, before)
        .await
        .context("the rewind is done and the dispatcher goes on with it, but it could not be followed")?;
    let caught_up = matches!(end, End::CaughtUp(_));
    if output.is_json() {
        output.json_line(&done)?;
    } else {
        output.line(&conclusion(&done, &end))?;
    }
    Ok(if caught_up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn description(plan: &Rewind, tenant: &Name) -> String {
    let time = |place: &str| time_of(place).map_or_else(|| place.to_owned(), |time| time.to_rfc3339());
    let effect = match plan.missing_only {
        true => "what matches and has no start yet starts; nothing starts twice".into(),
        false => format!("a new epoch, {}: everything that matches starts again, once", plan.epoch),
    };
    format!(
        "Rewind {} of tenant {tenant}\n  from    {}\n  until   {}, where it is now\n  events  {}\n  effect  {effect}\n",
        plan.drainer_id,
        time(&plan.from),
        time(&plan.until),
        HumanCount(plan.events.unwrap_or_default()),
    )
}

fn agreed() -> anyhow::Result<bool> {
    eprint!("Go back? [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Rewinds; plans anew, without counting, as long as the drainer moves in between.
async fn go_back(dispatch: &Dispatch, tenant: &Name, plan: Rewind, to: &str) -> anyhow::Result<Rewind> {
    let mut plan = plan;
    let events = plan.events;
    for _ in 1..ATTEMPTS {
        match dispatch.rewind(tenant, &plan).await {
            Ok(()) => return Ok(plan),
            Err(DispatchError::Refused(_)) => {
                plan = dispatch.plan_rewind(tenant, &plan.drainer_id, to, plan.missing_only, false).await?;
                plan.events = events;
            }
            Err(error) => return Err(error.into()),
        }
    }
    dispatch.rewind(tenant, &plan).await?;
    Ok(plan)
}

/// Drains in this process, or watches the process that holds the lease, until the drainer has caught up again.
async fn follow(dispatch: &Dispatch, tenant: &Name, done: &mut Rewind, before: u64) -> anyhow::Result<End> {
    let interrupted = interruption();
    let mut progress = Progress::new(done.events.unwrap_or_default());
    let mut drain_from = Instant::now();
    loop {
        if Instant::now() >= drain_from {
            let deadline = Instant::now() + SLICE;
            let drained = dispatch.drain(tenant, &done.drainer_id, Some(deadline)).await?;
            if drained.skipped_due_to_lock {
                drain_from = Instant::now() + TAKE_OVER;
            }
        }
        let state = state(dispatch, tenant, &done.drainer_id).await?;
        progress.at(state.events_processed_total.saturating_sub(before));
        if done.note(&state) {
            progress.end(true);
            return Ok(End::CaughtUp(Box::new(state)));
        }
        if state.halted {
            progress.end(false);
            return Ok(End::Halted(Box::new(state)));
        }
        if *interrupted.borrow() {
            progress.end(false);
            return Ok(End::Interrupted);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Becomes true with the first Ctrl-C, so that the drain releases its lease first. The second Ctrl-C exits at once.
fn interruption() -> watch::Receiver<bool> {
    let (asked, interrupted) = watch::channel(false);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if asked.send_replace(true) {
                std::process::exit(1);
            }
        }
    });
    interrupted
}

async fn state(dispatch: &Dispatch, tenant: &Name, drainer: &Name) -> anyhow::Result<DrainerState> {
    let states = dispatch.drainer_states(tenant).await?;
    states
        .into_iter()
        .find(|state| state.drainer_id == *drainer)
        .with_context(|| format!("{drainer} has not begun for this tenant"))
}

fn conclusion(done: &Rewind, end: &End) -> String {
    let drainer = &done.drainer_id;
    let started = format!("{} started", HumanCount(done.started.unwrap_or_default()));
    match end {
        End::CaughtUp(state) => {
            let events = counted(done.events.unwrap_or_default(), "event");
            let waits = match state.blocks {
                0 => "",
                _ => "; some starts wait, `parked list --all` shows them",
            };
            format!("{drainer} is back where it was: {events} handled again, {started}{waits}")
        }
        End::Halted(state) => format!(
            "{drainer} went back, {started}, and stands before {}: {}\nIt is tried again at {}; `drainers` shows how it \
             goes on.",
            state.halted_on_event_id.as_deref().unwrap_or("an event"),
            state.last_error.as_deref().unwrap_or("unknown"),
            state.next_attempt_at.map_or_else(|| "any moment".into(), |at| at.to_rfc3339()),
        ),
        End::Interrupted => {
            format!(
                "{drainer} went back, {started} so far; the dispatcher goes on, `drainers` shows how far it is"
            )
        }
    }
}
