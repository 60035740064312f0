//! Draining a backlog, of which one event in ten starts a task, with more and more
//! subscriptions; beside it a naive polling loop over the same events, in the same run.
//!
//! Both run on this thread with a runtime of their own, as each would in a process of its own;
//! so this thread's CPU time is theirs, and the rest is the store's. Who goes first alternates.

use std::time::Duration;

use anyhow::ensure;
use ledgerline_drains::{CountEvents, DEFAULT_DRAINER, RewindScope};
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::{Clients, system_clock};
use tokio::runtime::Runtime;

use crate::{
    backlog,
    cpu::{measured, of_process},
    naive_loop::{NaiveLoop, Passed},
    report::{Goal, Report},
    services::Services,
    spread::Spread,
    subscribers::{ONE_IN_TEN, SIZES, bystander, register, subscribe},
};

const EVENTS: usize = if cfg!(debug_assertions) { 1_000 } else { 20_000 };
const STARTS: usize = EVENTS / 10;
const ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { 3 };
/// Events of one read.
const PAGE: usize = 500;
/// Pages that match nothing.
const PAGES: usize = 10;
/// How long ago the events were: no drainer waits for more of that time.
const AGE_MS: u64 = 3_600_000;

/// Drains with each number of subscriptions, both ways, and counts requests.
pub(crate) fn run() -> anyhow::Result<Report> {
    let bench = Bench::start()?;
    let tenants: Vec<(usize, Name)> = SIZES
        .into_iter()
        .map(|size| Ok((size, bench.prepare(&format!("tenant-{size}"), Some(ONE_IN_TEN), size, EVENTS)?)))
        .collect::<anyhow::Result<_>>()?;
    let mut report = Report::of_figures();
    let mut rounds: Vec<[Vec<Round>; 2]> = tenants.iter().map(|_| Default::default()).collect();
    for round in 0..ROUNDS {
        for ((_, tenant), [drains, loops]) in tenants.iter().zip(&mut rounds) {
            if round % 2 == 0 {
                drains.push(bench.drain(tenant)?);
                loops.push(bench.naive_loop(tenant)?);
            } else {
                loops.push(bench.naive_loop(tenant)?);
                drains.push(bench.drain(tenant)?);
            }
        }
    }
    for ((size, _), [drains, loops]) in tenants.iter().zip(&rounds) {
        for (who, rounds) in [("drain", drains), ("naive loop", loops)] {
            let mut figure = |what: &str, of: fn(&Round) -> f64, unit: &str| {
                let median = rounds.iter().map(of).collect::<Spread>().median();
                report.figure(&format!("{size} subscriptions, {who}: {what}"), median, unit, Goal::None);
            };
            figure("events", Round::per_second, "/s");
            figure("CPU per event", Round::own_cpu, "ms");
            figure("CPU per event, embedded store", Round::store_cpu, "ms");
            figure("requests per event", |round| round.requests as f64 / EVENTS as f64, "");
            figure("requests per start", |round| round.requests as f64 / STARTS as f64, "");
        }
    }
    bench.pages(&mut report)?;
    bench.services.stop();
    super::idle::run(&mut report)?;
    Ok(report)
}

/// What one round cost.
struct Round {
    wall: Duration,
    own: Duration,
    process: Duration,
    requests: u64,
}

impl Round {
    fn per_second(&self) -> f64 {
        EVENTS as f64 / self.wall.as_secs_f64()
    }

    fn own_cpu(&self) -> f64 {
        self.own.as_secs_f64() * 1e3 / EVENTS as f64
    }

    fn store_cpu(&self) -> f64 {
        self.process.saturating_sub(self.own).as_secs_f64() * 1e3 / EVENTS as f64
    }
}

/// The services, and the runtime and connections of what drains them.
struct Bench {
    services: Services,
    runtime: Runtime,
    clients: Clients,
    drainer: Name,
    first: Millis,
}

impl Bench {
    fn start() -> anyhow::Result<Self> {
        let services = Services::start()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let clients = services.clients();
        let drainer = Name::new("drainerId", DEFAULT_DRAINER)?;
        Ok(Self { services, runtime, clients, drainer, first: system_clock()().minus(AGE_MS) })
    }

    /// A tenant with `size` subscriptions, one of them to `glob`, and a backlog.
    fn prepare(&self, tenant: &str, glob: Option<&str>, size: usize, events: usize) -> anyhow::Result<Name> {
        let tenant = Name::new("tenantId", tenant)?;
        self.runtime.block_on(async {
            let stage = self.services.stage(&self.clients, system_clock()).await?;
            register(&stage, &tenant).await?;
            let bystanders = (0..).map(bystander);
            for glob in glob.map(str::to_owned).into_iter().chain(bystanders).take(size) {
                subscribe(&stage, &tenant, &glob).await?;
            }
            anyhow::Ok(())
        })?;
        self.put(&tenant, self.first, events)?;
        Ok(tenant)
    }

    fn put(&self, tenant: &Name, first: Millis, events: usize) -> anyhow::Result<()> {
        let table = &self.services.names.events_table;
        self.runtime.block_on(backlog::put(&self.clients.dynamo, table, tenant, first, events))
    }

    /// A drain from the beginning by a process that has just started: it reads and compiles the subscriptions.
    fn drain(&self, tenant: &Name) -> anyhow::Result<Round> {
        let stage = self.runtime.block_on(self.services.stage(&self.clients, system_clock()))?;
        let begun = self.runtime.block_on(stage.drains.drainer_states(tenant))?;
        if begun.iter().any(|state| !state.cursor.is_empty()) {
            // A new epoch: everything starts again.
            let first = self.first.to_string();
            let rewind = stage.drains.plan_rewind(
                tenant,
                DEFAULT_DRAINER,
                &first,
                RewindScope::Everything,
                CountEvents::No,
            );
            let rewind = self.runtime.block_on(rewind)?;
            self.runtime.block_on(stage.drains.rewind(tenant, &rewind))?;
        }
        let (drained, round) = self.round(stage.drains.drain(tenant, &self.drainer, None))?;
        let passed = Passed { events: usize::try_from(drained.processed)?, starts: drained.triggered.len() };
        self.check(passed)?;
        Ok(round)
    }

    fn naive_loop(&self, tenant: &Name) -> anyhow::Result<Round> {
        let naive_loop = NaiveLoop::new(self.clients.dynamo.clone(), &self.services.names, tenant);
        self.runtime.block_on(naive_loop.rewind())?;
        let (passed, round) = self.round(naive_loop.drain())?;
        self.check(passed)?;
        Ok(round)
    }

    fn check(&self, passed: Passed) -> anyhow::Result<()> {
        let expected = Passed { events: EVENTS, starts: STARTS };
        ensure!(passed == expected, "{passed:?} instead of {expected:?}");
        // No worker handles the started tasks, and full queues are not part of the comparison.
        let (queues, names) = (self.services.embedded.queues(), &self.services.names);
        queues.purge(&names.task_queue)?;
        queues.purge(&names.ingest_queue)?;
        Ok(())
    }

    fn round<T, E: Into<anyhow::Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> anyhow::Result<(T, Round)> {
        self.services.embedded.reset_requests();
        let process = of_process();
        let (done, cost) = measured(|| self.runtime.block_on(work));
        let round = Round {
            wall: cost.wall,
            own: cost.cpu,
            process: of_process().saturating_sub(process),
            requests: self.services.requests(),
        };
        Ok((done.map_err(Into::into)?, round))
    }

    /// What pages cost of which no event matches, to a drainer that knows the subscriptions already.
    fn pages(&self, report: &mut Report) -> anyhow::Result<()> {
        let tenant = self.prepare("tenant-unmatched", None, 10, 0)?;
        let stage = self.runtime.block_on(self.services.stage(&self.clients, system_clock()))?;
        let visit = |expected: usize| {
            let (drained, round) = self.round(stage.drains.drain(&tenant, &self.drainer, None))?;
            ensure!(drained.processed == expected as u64 && drained.triggered.is_empty(), "{drained:?}");
            Ok(round.requests as f64)
        };
        visit(0)?;
        let nothing = visit(0)?;
        self.put(&tenant, self.first, PAGES * PAGE)?;
        let many = visit(PAGES * PAGE)?;
        self.put(&tenant, self.first.plus(AGE_MS / 2), PAGE - 1)?;
        let fewer = visit(PAGE - 1)?;
        self.put(&tenant, self.first.plus(AGE_MS / 2 + PAGE as u64), PAGE)?;
        let one = visit(PAGE)?;
        let each = (many - nothing) / PAGES as f64;
        report.figure("requests per page of 500 that match nothing", each, "", Goal::AtMost(3.0));
        report.figure("requests of a visit that finds nothing", nothing, "", Goal::None);
        report.figure("requests of a visit that finds 499 events, none matching", fewer, "", Goal::None);
        report.figure("requests of a visit that finds 500 events, none matching", one, "", Goal::None);
        report.figure("requests of a visit that finds 5,000 events, none matching", many, "", Goal::None);
        Ok(())
    }
}
