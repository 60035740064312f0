//! The way of a run from its start to its end, one part after the other: nothing runs beside it, so every request is
//! its own, and a clock that stands still makes them the same each time. Each part has a meter of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, ensure};
use ledgerline_embedded::Service;
use ledgerline_event::{Millis, Name};
use ledgerline_ledger::{Clients, Clock, Emitter, Saver, telemetry::Metrics};
use ledgerline_runs::{EventSubmission, RunDetails, RunMessage, RunSubmission};
use ledgerline_stage::Stage;
use ledgerline_store::ControlTable;
use ledgerline_workflow::{Runner, RunnerOptions, Visited};
use save_event_to_dynamo::Handler;
use serde_json::Value;

use crate::{
    meter::{Meter, Reading},
    saving::Saving,
    services::Services,
    workflows::workflows,
};

/// After this long without events no drainer waits for more of them.
const SETTLED_MS: u64 = 6_000;
const BEGIN: u64 = 1_767_453_739_643;

/// The requests to the services, and the capacity that they consumed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    requests: BTreeMap<(Service, String), u64>,
    /// Of the control table, by the parts that start, wake and execute runs.
    pub(crate) runs: Reading,
    /// Of the control table, by the saver.
    pub(crate) marks: Reading,
    /// Of the events table, by the saver.
    pub(crate) events: Reading,
    /// Of both tables, by the drainers.
    pub(crate) drains: Reading,
}

impl Counted {
    /// Requests to a service.
    pub(crate) fn to(&self, service: Service) -> u64 {
        self.requests.iter().filter(|((to, _), _)| *to == service).map(|(_, count)| count).sum()
    }

    /// Requests to all services.
    pub(crate) fn all(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Requests to the tables that do one of these.
    pub(crate) fn table_operations(&self, operations: &[&str]) -> u64 {
        let counted = self.requests.iter().filter(|((service, operation), _)| {
            *service == Service::DynamoDb && operations.contains(&operation.as_str())
        });
        counted.map(|(_, count)| count).sum()
    }

    /// With what came after.
    pub(crate) fn and(mut self, after: &Self) -> Self {
        for (of, count) in &after.requests {
            *self.requests.entry(of.clone()).or_default() += count;
        }
        let readings = [
            (&mut self.runs, &after.runs),
            (&mut self.marks, &after.marks),
            (&mut self.events, &after.events),
            (&mut self.drains, &after.drains),
        ];
        for (sum, more) in readings {
            sum.units += more.units;
            sum.read_units += more.read_units;
        }
        self
    }
}

/// The services, and every part that has to do with a run.
pub(crate) struct RunPipeline {
    pub(crate) services: Services,
    pub(crate) stage: Stage,
    pub(crate) runner: Runner,
    pub(crate) tenant: Name,
    emitter: Emitter,
    drains: Stage,
    saving: Saving,
    meters: Meters,
    time: Arc<AtomicU64>,
}

#[derive(Default)]
struct Meters {
    runs: Meter,
    marks: Meter,
    events: Meter,
    drains: Meter,
}

impl RunPipeline {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let services = Services::start()?;
        let (meters, plain) = (Meters::default(), services.clients());
        let time = Arc::new(AtomicU64::new(BEGIN));
        let clock: Clock = {
            let time = time.clone();
            Arc::new(move || Millis::try_from(time.load(Ordering::Relaxed)).unwrap_or(Millis::MAX))
        };
        let names = services.names.clone();
        let control = ControlTable::new(meters.marks.install(&plain.dynamo), &names.control_table);
        let handler = Handler {
            saver: Saver::new(meters.events.install(&plain.dynamo), &names.events_table, control, 0),
            sqs: plain.sqs.clone(),
            dead_letter_queue_url: services.dead_letter_queue_url.clone(),
            metrics: Metrics::silent(),
            clock: clock.clone(),
        };
        let (queues, queue) = (services.embedded.queues(), names.ingest_queue.clone());
        let metered = |meter: &Meter| Clients { dynamo: meter.install(&plain.dynamo), ..plain.clone() };
        let (for_runs, for_drains) = (metered(&meters.runs), metered(&meters.drains));
        let (stage, drains) = services.runtime.block_on(async {
            let stage = services.stage(&for_runs, clock.clone()).await?;
            anyhow::Ok((stage, services.stage(&for_drains, clock.clone()).await?))
        })?;
        // The runner must not wait in place for the end of a sleep: the clock does not move by itself.
        let options = RunnerOptions { wait_in_place_ms: 0, ..RunnerOptions::default() };
        let runner = Runner::new(stage.clone(), workflows(), options);
        let (tenant, app) = (Name::new("tenantId", "tenant")?, Name::new("appName", "shop")?);
        let emitter = Emitter::with_clock(&for_runs, &names, tenant.clone(), app, clock);
        services.runtime.block_on(runner.publish())?;
        let saving = Saving { handler, queues, queue };
        Ok(Self { services, stage, runner, tenant, emitter, drains, saving, meters, time })
    }

    /// Starts a run.
    pub(crate) async fn start_run(&self, workflow: &str, input: Value) -> anyhow::Result<Name> {
        let run = RunSubmission { workflow: workflow.to_owned(), input, run_id: None };
        Ok(Box::pin(self.stage.runs.start_run(&self.emitter, run)).await?.run_id)
    }

    /// Lets the runner go on with a run.
    pub(crate) async fn visit(&self, run_id: &Name, expected: Visited) -> anyhow::Result<()> {
        let message = RunMessage { tenant_id: self.tenant.clone(), run_id: run_id.clone() };
        let visited = Box::pin(self.runner.visit(&message, None)).await?;
        ensure!(visited == expected, "a visit to {run_id} ended with {visited:?}");
        Ok(())
    }

    /// Sends an event to runs.
    pub(crate) async fn send(&self, name: &str, matched: Value) -> anyhow::Result<Name> {
        let (event, data) = (name.to_owned(), Value::from(99));
        let event = EventSubmission { event, data, r#match: matched, idempotency_key: None };
        Ok(Box::pin(self.stage.events.send_event(&self.emitter, event, None)).await?.event_id)
    }

    /// The run as people see it.
    pub(crate) async fn run(&self, run_id: &Name) -> anyhow::Result<RunDetails> {
        Box::pin(self.stage.runs.run(&self.tenant, run_id)).await.context("reading a run")
    }

    /// Saves what is on the bus. Returns how many events that were.
    pub(crate) async fn save(&self) -> anyhow::Result<usize> {
        self.saving.save().await
    }

    /// Wakes the drainers once, and once more when everything has settled.
    pub(crate) async fn drain(&self) -> anyhow::Result<()> {
        for pass in [1, SETTLED_MS] {
            self.advance(pass);
            let tenants = BTreeSet::from([self.tenant.clone()]);
            let swept = Box::pin(self.drains.sweep.wake(tenants, None)).await?;
            ensure!(swept.trouble == 0, "a drainer had trouble: {swept:?}");
        }
        Ok(())
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.time.fetch_add(ms, Ordering::Relaxed);
    }

    /// What was asked for since the last call.
    pub(crate) fn take(&self) -> Counted {
        let requests = self.services.embedded.requests();
        self.services.embedded.reset_requests();
        let Meters { runs, marks, events, drains } = &self.meters;
        Counted {
            requests,
            runs: runs.take(),
            marks: marks.take(),
            events: events.take(),
            drains: drains.take(),
        }
    }
}
