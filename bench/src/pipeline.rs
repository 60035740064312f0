//! Runs a job from its submission to its end, one step after the other. Nothing else runs meanwhile, so every request
//! belongs to the job, and a clock that stands still between the steps makes the requests the same each time.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, ensure};
use ledgerline_event::{JobState, Millis, Name};
use ledgerline_jobs::{JobSubmission, SubmittedJobTask};
use ledgerline_ledger::{Clients, Clock, Emitter, Saver, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::Stage;
use ledgerline_store::ControlTable;
use save_event_to_dynamo::Handler;

use crate::{meter::Meter, noop, saving::Saving, services::Services};

/// Tasks that the worker runs at the same time.
const SLOTS: i32 = 10;
/// After this long without events no drainer waits for more of them.
const SETTLED_MS: u64 = 6_000;
const BEGIN: u64 = 1_767_453_739_643;

/// The services, and every part that has to do with a job.
pub(crate) struct Pipeline {
    pub(crate) services: Services,
    pub(crate) clients: Clients,
    pub(crate) meter: Meter,
    stage: Stage,
    saving: Saving,
    queue_url: String,
    time: Arc<AtomicU64>,
    clock: Clock,
}

/// What a job cost.
pub(crate) struct JobCost {
    pub(crate) tenant: Name,
    pub(crate) job_id: Name,
    /// When each of its tasks completed.
    pub(crate) completions: Vec<Millis>,
    /// Requests to the tables.
    pub(crate) to_tables: u64,
    /// Requests to everything else.
    pub(crate) to_others: u64,
    pub(crate) write_units: f64,
    pub(crate) read_units: f64,
}

impl Pipeline {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let services = Services::start()?;
        let meter = Meter::default();
        let clients = services.clients();
        let clients = Clients { dynamo: meter.install(&clients.dynamo), ..clients };
        let time = Arc::new(AtomicU64::new(BEGIN));
        let clock: Clock = {
            let time = time.clone();
            Arc::new(move || Millis::try_from(time.load(Ordering::Relaxed)).unwrap_or(Millis::MAX))
        };
        let control = ControlTable::new(clients.dynamo.clone(), &services.names.control_table);
        let handler = Handler {
            saver: Saver::new(clients.dynamo.clone(), &services.names.events_table, control, 0),
            sqs: clients.sqs.clone(),
            dead_letter_queue_url: services.dead_letter_queue_url.clone(),
            metrics: Metrics::silent(),
            clock: clock.clone(),
        };
        let (queues, queue) = (services.embedded.queues(), services.names.ingest_queue.clone());
        let saving = Saving { handler, queues, queue };
        let (stage, queue_url) = services.runtime.block_on(async {
            let queues = QueueUrls::find(&clients.sqs, &services.names).await?;
            anyhow::Ok((services.stage(&clients, clock.clone()).await?, queues.tasks))
        })?;
        Ok(Self { services, clients, meter, stage, saving, queue_url, time, clock })
    }

    /// Runs a job, each of whose tasks takes `task_ms`, and counts from its submission until nothing is left to do.
    pub(crate) async fn run(
        &self,
        tenant: &str,
        tasks: Vec<SubmittedJobTask>,
        task_ms: u64,
    ) -> anyhow::Result<JobCost> {
        let tenant = Name::new("tenantId", tenant)?;
        let count = tasks.len();
        let app = Name::new("appName", "shop")?;
        let emitter =
            Emitter::with_clock(&self.clients, &self.services.names, tenant.clone(), app, self.clock.clone());
        self.services.embedded.reset_requests();
        self.meter.take();

        let submission = JobSubmission { job_id: None, request_id: None, tasks };
        let job_id = Box::pin(self.stage.jobs.submit_job(&emitter, submission)).await?.job_id;
        self.settle(&tenant).await?;
        let mut completions = Vec::with_capacity(count);
        while completions.len() < count {
            completions.extend(self.work(&tenant, task_ms).await?);
        }
        self.advance(SETTLED_MS);
        self.wake(&tenant).await?;

        let to_tables = self.services.table_requests();
        let to_others = self.services.requests() - to_tables;
        let units = self.meter.take();
        let job = Box::pin(self.stage.jobs.job(&tenant, &job_id)).await?;
        ensure!(job.job.state == JobState::Completed, "the job is {:?}", job.job);
        Ok(JobCost {
            tenant,
            job_id,
            completions,
            to_tables,
            to_others,
            write_units: units.units,
            read_units: units.read_units,
        })
    }

    /// Runs the waiting tasks, as many as a worker has slots for. Returns when each completed.
    async fn work(&self, tenant: &Name, task_ms: u64) -> anyhow::Result<Vec<Millis>> {
        let receive = self.clients.sqs.receive_message().queue_url(&self.queue_url);
        let messages = receive.max_number_of_messages(SLOTS).send().await?.messages.unwrap_or_default();
        ensure!(!messages.is_empty(), "the job is not completed and no task waits");
        let mut leases = Vec::with_capacity(messages.len());
        for message in &messages {
            let body = message.body().context("a message without a body")?;
            leases.push(Box::pin(noop::begin(&self.stage, body)).await?);
        }
        self.settle(tenant).await?;
        self.advance(task_ms);
        for (lease, message) in leases.iter().zip(&messages) {
            Box::pin(noop::complete(&self.stage, lease, task_ms)).await?;
            let delete = self.clients.sqs.delete_message().queue_url(&self.queue_url);
            delete.set_receipt_handle(message.receipt_handle.clone()).send().await?;
        }
        let now = (self.clock)();
        self.settle(tenant).await?;
        Ok(vec![now; leases.len()])
    }

    /// Saves the events on the bus and wakes the drainers, again and again, until the bus is empty.
    async fn settle(&self, tenant: &Name) -> anyhow::Result<()> {
        while self.saving.save().await? > 0 {
            self.wake(tenant).await?;
        }
        Ok(())
    }

    async fn wake(&self, tenant: &Name) -> anyhow::Result<()> {
        self.advance(1);
        let swept = Box::pin(self.stage.sweep.wake(BTreeSet::from([tenant.clone()]), None)).await?;
        ensure!(swept.trouble == 0, "a drainer had trouble: {swept:?}");
        Ok(())
    }

    fn advance(&self, ms: u64) {
        self.time.fetch_add(ms, Ordering::Relaxed);
    }
}
