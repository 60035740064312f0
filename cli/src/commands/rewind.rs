//! `ledgerline rewind`: shows what will be handled again, asks, rewinds, and drains or watches until the cursor is
//! where it was. The rewind itself is one write; if this process ends after it, the dispatcher goes on.

mod progress;

use std::{
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use indicatif::HumanCount;
use ledgerline_drains::{CountEvents, DrainerState, Rewind, RewindScope};
use ledgerline_event::{Name, keys::time_of, parse_duration_ms};
use ledgerline_ledger::system_clock;
use ledgerline_stage::Stage;
use tokio::{sync::watch, time::Instant};

use self::progress::Progress;
use crate::{
    args::RewindArgs,
    output::{Output, counted, wrong_usage},
    target::Target,
};

/// How many times to plan the rewind: a working drainer moves its cursor while the user reads, and while the rewind is
/// written.
const ATTEMPTS: usize = 20;
/// How long this process drains before it shows its progress.
const DRAIN_FOR: Duration = Duration::from_millis(500);
/// How often to poll while another process drains…
const POLL_EVERY: Duration = Duration::from_millis(200);
/// …and how often to try for its lease: that process may have died.
const RETRY_LEASE_EVERY: Duration = Duration::from_secs(15);

/// How following a rewind ended.
enum RewindEnd {
    CaughtUp(Box<DrainerState>),
    Halted(Box<DrainerState>),
    Interrupted,
}

pub(super) async fn run(target: &Target, args: RewindArgs, output: Output) -> anyhow::Result<ExitCode> {
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !can_ask {
        return Ok(wrong_usage(
            "rewind asks before it starts work again, and there is no terminal to ask on: look at \
             `drainers`, then add --yes",
        ));
    }
    let (tenant, stage) = (target.tenant()?, target.stage().await?);
    let now = system_clock()();
    let to = parse_duration_ms(&args.to).map_or(args.to, |ms| now.minus(ms).to_string());
    let plan = stage
        .drains
        .plan_rewind(tenant, &args.drainer, &to, RewindScope::of(args.missing_only), CountEvents::Yes)
        .await?;
    eprintln!("{}", description(&plan, tenant));
    if !args.yes && !confirmed()? {
        eprintln!("Nothing was changed.");
        return Ok(ExitCode::FAILURE);
    }
    let before = state(&stage, tenant, &plan.drainer_id).await?.events_processed_total;
    let mut done = stage.drains.rewind_with_retries(tenant, plan, &to, ATTEMPTS).await?;
    let end = follow(&stage, tenant, &mut done, before)
        .await
        .context("the rewind is done and the dispatcher goes on with it, but it could not be followed")?;
    let caught_up = matches!(end, RewindEnd::CaughtUp(_));
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

fn confirmed() -> anyhow::Result<bool> {
    eprint!("Rewind? [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Drains in this process, or watches the process that holds the lease, until the drainer has caught up again.
async fn follow(stage: &Stage, tenant: &Name, done: &mut Rewind, before: u64) -> anyhow::Result<RewindEnd> {
    let interrupted = interruption();
    let mut progress = Progress::new(done.events.unwrap_or_default());
    let mut drain_from = Instant::now();
    loop {
        if Instant::now() >= drain_from {
            let deadline = Instant::now() + DRAIN_FOR;
            let drained = stage.drains.drain(tenant, &done.drainer_id, Some(deadline)).await?;
            if drained.skipped_due_to_lock {
                drain_from = Instant::now() + RETRY_LEASE_EVERY;
            }
        }
        let state = state(stage, tenant, &done.drainer_id).await?;
        progress.at(state.events_processed_total.saturating_sub(before));
        if done.update(&state) {
            progress.complete();
            return Ok(RewindEnd::CaughtUp(Box::new(state)));
        }
        if state.halted {
            progress.stop();
            return Ok(RewindEnd::Halted(Box::new(state)));
        }
        if *interrupted.borrow() {
            progress.stop();
            return Ok(RewindEnd::Interrupted);
        }
        tokio::time::sleep(POLL_EVERY).await;
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

async fn state(stage: &Stage, tenant: &Name, drainer: &Name) -> anyhow::Result<DrainerState> {
    let states = stage.drains.drainer_states(tenant).await?;
    states
        .into_iter()
        .find(|state| state.drainer_id == *drainer)
        .with_context(|| format!("{drainer} has not begun for this tenant"))
}

fn conclusion(done: &Rewind, end: &RewindEnd) -> String {
    let drainer = &done.drainer_id;
    let started = format!("{} started", HumanCount(done.started.unwrap_or_default()));
    match end {
        RewindEnd::CaughtUp(state) => {
            let events = counted(done.events.unwrap_or_default(), "event");
            let waits = match state.blocks {
                0 => "",
                _ => "; some starts wait, `parked list --all` shows them",
            };
            format!("{drainer} is back where it was: {events} handled again, {started}{waits}")
        }
        RewindEnd::Halted(state) => format!(
            "{drainer} went back, {started}, and is halted on {}: {}\nIt is tried again at {}; `drainers` shows how it \
             goes on.",
            state.halted_on_event_id.as_deref().unwrap_or("an event"),
            state.last_error.as_deref().unwrap_or("unknown"),
            state.next_attempt_at.map_or_else(|| "any moment".into(), |at| at.to_rfc3339()),
        ),
        RewindEnd::Interrupted => {
            format!(
                "{drainer} went back, {started} so far; the dispatcher goes on, `drainers` shows how far it is"
            )
        }
    }
}
