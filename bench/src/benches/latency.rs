//! From the save of an event to the start of its workflow, in local mode: idle, with one event
//! at a time, and while a backlog is drained, for a tenant that has none and for the one that has.

use std::time::{Duration, Instant};

use ledgerline_event::Name;
use ledgerline_ledger::{Names, system_clock};
use ledgerline_local::{Local, LocalOptions, STAGE, TENANT};
use tokio::runtime::Runtime;

use crate::{
    backlog,
    probes::{Probes, Times},
    report::{Goal, Report},
    services::Services,
    subscribers::{ONE_IN_TEN, register, subscribe},
};

const IDLE_EVENTS: usize = if cfg!(debug_assertions) { 20 } else { 200 };
/// Not counted: they find nothing compiled and no connections.
const FIRST_EVENTS: usize = 5;
/// Between a start and the next event: local mode is to be at rest.
const REST: Duration = Duration::from_millis(150);

const BACKLOG: usize = if cfg!(debug_assertions) { 5_000 } else { 100_000 };
/// How long ago it was.
const AGE_MS: u64 = 3_600_000;
/// Between two events while the backlog is drained.
const PACE: Duration = Duration::from_millis(100);

/// Both.
pub(crate) fn run() -> anyhow::Result<Report> {
    let mut report = Report::of_figures();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    idle(&runtime, &mut report)?;
    with_backlog(&runtime, &mut report)?;
    Ok(report)
}

fn idle(runtime: &Runtime, report: &mut Report) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let probes = Probes::default();
    let options = watched(LocalOptions::new(folder.path()), &probes);
    let times = runtime.block_on(async {
        let local = Local::start(options).await?;
        let tenant = Name::new("tenantId", TENANT)?;
        register(&local.stage, &tenant).await?;
        subscribe(&local.stage, &tenant, ONE_IN_TEN).await?;
        let probing = async {
            let mut ids = Vec::with_capacity(IDLE_EVENTS);
            for number in 0..FIRST_EVENTS + IDLE_EVENTS {
                tokio::time::sleep(REST).await;
                let id = probes.put(&local, &tenant, number).await?;
                probes.until_started(&id).await;
                ids.push(id);
            }
            anyhow::Ok(ids.split_off(FIRST_EVENTS))
        };
        let ids = tokio::select! {
            ids = probing => ids?,
            ended = probes.clone().receive(&local) => anyhow::bail!("no more starts are received: {ended:?}"),
        };
        local.stop().await;
        anyhow::Ok(probes.times(&ids))
    })?;
    figures(report, "idle", &times, Goal::Under(50.0));
    Ok(())
}

fn with_backlog(runtime: &Runtime, report: &mut Report) -> anyhow::Result<()> {
    let behind = Name::new("tenantId", "tenant-behind")?;
    let other = Name::new("tenantId", "tenant-other")?;
    let began = Instant::now();
    let services = Services::of_stage(STAGE, None)?;
    services.runtime.block_on(async {
        let clients = services.clients();
        let stage = services.stage(&clients, system_clock()).await?;
        for tenant in [&behind, &other] {
            register(&stage, tenant).await?;
            subscribe(&stage, tenant, ONE_IN_TEN).await?;
        }
        let first = system_clock()().minus(AGE_MS);
        backlog::put(&clients.dynamo, &services.names.events_table, &behind, first, BACKLOG).await
    })?;
    let folder = services.into_folder();
    let preparing = began.elapsed();

    let probes = Probes::default();
    let options = watched(LocalOptions::new(folder.path()), &probes);
    let (draining, [of_behind, of_other]) = runtime.block_on(async {
        let local = Local::start(options).await?;
        let began = Instant::now();
        let probing = async {
            let mut ids = [Vec::new(), Vec::new()];
            let mut pace = tokio::time::interval(PACE);
            while probes.others_started() < BACKLOG / 10 {
                pace.tick().await;
                for (tenant, ids) in [&behind, &other].into_iter().zip(&mut ids) {
                    ids.push(probes.put(&local, tenant, ids.len()).await?);
                }
            }
            let drained = began.elapsed();
            probes.until_all_started().await;
            anyhow::Ok((drained, ids))
        };
        let (drained, ids) = tokio::select! {
            done = probing => done?,
            ended = probes.clone().receive(&local) => anyhow::bail!("no more starts are received: {ended:?}"),
        };
        local.stop().await;
        anyhow::Ok((drained, ids.map(|ids| probes.times(&ids))))
    })?;
    let rate = BACKLOG as f64 / draining.as_secs_f64();
    report.figure("backlog, events", BACKLOG as f64, "", Goal::None);
    report.figure("backlog, putting it into the table", preparing.as_secs_f64(), "s", Goal::None);
    report.figure("backlog, until its last start", draining.as_secs_f64(), "s", Goal::None);
    report.figure("backlog, drained in local mode", rate, "/s", Goal::None);
    figures(report, "backlog of another tenant", &of_other, Goal::None);
    figures(report, "backlog of the same tenant", &of_behind, Goal::None);
    Ok(())
}

/// With the probes' interceptor in it.
fn watched(options: LocalOptions, probes: &Probes) -> LocalOptions {
    LocalOptions { interceptor: Some(probes.interceptor(&Names::of_stage(STAGE))), ..options }
}

fn figures(report: &mut Report, when: &str, times: &Times, goal: Goal) {
    for (from, spread, goal) in [("save", &times.from_save, goal), ("PutEvents", &times.from_put, Goal::None)]
    {
        report.figure(&format!("{when}: {from} to start, p50"), spread.quantile(0.5), "ms", goal);
        report.figure(&format!("{when}: {from} to start, p99"), spread.quantile(0.99), "ms", Goal::None);
    }
    report.figure(&format!("{when}: events measured"), times.from_save.count() as f64, "", Goal::None);
}
