//! A job of no-op tasks in local mode, all but the first of which wait for the first: from its submission to
//! `Job Completed` in the ledger. Once without processes, so that the ledger is all there is to it; once with
//! the worker, which runs `true` for each; and beside that as many `true` and nothing else.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ledgerline_event::Name;
use ledgerline_local::Local;
use ledgerline_outbox::QueueUrls;
use tokio::runtime::Runtime;

use crate::{
    local_jobs::{self, CONCURRENCY},
    noop,
    report::{Goal, Report},
    shapes::Shape,
    sightings::Sightings,
    spread::Spread,
};

const SIZES: &[usize] = if cfg!(debug_assertions) { &[20] } else { &[100, 1_000] };
const ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { 3 };
/// Not counted: it finds no connections.
const FIRST: usize = 10;
/// What a task runs.
const COMMAND: &str = "true";
/// The pause between two jobs, as long as drainers look back.
const REST: Duration = Duration::from_secs(6);
const LONG_POLL_SECONDS: i32 = 20;

/// Every size, three ways in turn.
pub(crate) fn run() -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::of_figures();
    for &size in SIZES {
        let (mut without, mut with, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(job(&runtime, size, None)?);
            with.push(job(&runtime, size, Some(COMMAND))?);
            alone.push(processes(size)?);
        }
        let seconds =
            |rounds: &[Round]| rounds.iter().map(|round| round.wall.as_secs_f64()).collect::<Spread>();
        let alone: Spread = alone.iter().map(Duration::as_secs_f64).collect();
        for (how, rounds) in [("no processes", &without), ("`true` by the worker", &with)] {
            let spread = seconds(rounds);
            let requests: Spread = rounds.iter().map(|round| round.requests / size as f64).collect();
            let mut figure = |what: &str, value: f64, unit: &str| {
                report.figure(&format!("{size} tasks, {how}: {what}"), value, unit, Goal::None);
            };
            figure("submit to Job Completed", spread.median(), "s");
            figure("worst round", spread.most(), "s");
            figure("tasks", size as f64 / spread.median(), "/s");
            figure("requests per task", requests.median(), "");
        }
        let name = format!("{size} times `true`, {CONCURRENCY} at a time, and nothing else");
        report.figure(&name, alone.median(), "s", Goal::None);
    }
    Ok(report)
}

struct Round {
    wall: Duration,
    requests: f64,
}

/// A local mode of its own, a small job, and then the one that is measured.
fn job(runtime: &Runtime, size: usize, command: Option<&str>) -> anyhow::Result<Round> {
    let folder = tempfile::tempdir()?;
    let sightings = Sightings::default();
    let options = local_jobs::options(&folder, &sightings, local_jobs::job_completed(), command)?;
    runtime.block_on(async {
        let local = Box::pin(Local::start(options)).await?;
        let jobs = async {
            timed(&local, &sightings, "tenant-first", FIRST).await?;
            tokio::time::sleep(REST).await;
            timed(&local, &sightings, "tenant-measured", size).await
        };
        let round = match command {
            Some(_) => jobs.await?,
            None => tokio::select! {
                round = jobs => round?,
                ended = no_processes(&local) => anyhow::bail!("no more tasks are taken: {ended:?}"),
            },
        };
        local.stop().await;
        Ok(round)
    })
}

async fn timed(local: &Local, sightings: &Sightings, tenant: &str, size: usize) -> anyhow::Result<Round> {
    let tenant = Name::new("tenantId", tenant)?;
    let tasks = Shape::FanOut.tasks(size);
    local.embedded.reset_requests();
    let began = Instant::now();
    let job_id = local_jobs::submit(local, &tenant, tasks).await?;
    let ended = sightings.until(&local_jobs::completed(&job_id)).await;
    let requests = local.embedded.requests().values().sum::<u64>() as f64;
    Ok(Round { wall: ended.saturating_duration_since(began), requests })
}

/// Takes and completes tasks for as long as it is let, as many at a time as the worker.
async fn no_processes(local: &Local) -> anyhow::Result<()> {
    let url = QueueUrls::find(&local.clients.sqs, &local.names).await?.tasks;
    let hands: FuturesUnordered<BoxFuture<'_, anyhow::Result<()>>> =
        (0..CONCURRENCY).map(|_| Box::pin(hand(local, &url)) as BoxFuture<'_, _>).collect();
    hands.into_future().await.0.unwrap_or(Ok(()))
}

async fn hand(local: &Local, url: &str) -> anyhow::Result<()> {
    let sqs = &local.clients.sqs;
    loop {
        let receive = sqs.receive_message().queue_url(url).wait_time_seconds(LONG_POLL_SECONDS);
        for message in receive.send().await?.messages.unwrap_or_default() {
            let body = message.body().context("a message without a body")?;
            let lease = Box::pin(noop::begin(&local.stage, body)).await?;
            Box::pin(noop::complete(&local.stage, &lease, 0)).await?;
            sqs.delete_message().queue_url(url).set_receipt_handle(message.receipt_handle).send().await?;
        }
    }
}

/// As many processes, as many at a time, and nothing else.
fn processes(count: usize) -> anyhow::Result<Duration> {
    let began = Instant::now();
    thread::scope(|scope| {
        let share = |hand: usize| (hand..count).step_by(CONCURRENCY);
        let threads: Vec<_> = (0..CONCURRENCY)
            .map(|hand| scope.spawn(move || share(hand).try_for_each(|_| process())))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("starting processes panicked"))?)
    })?;
    Ok(began.elapsed())
}

fn process() -> anyhow::Result<()> {
    ensure!(Command::new(COMMAND).status()?.success(), "`{COMMAND}` failed");
    Ok(())
}
