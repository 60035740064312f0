use std::sync::Arc;

use futures::FutureExt;
use ledgerline_alert::Slack;
use ledgerline_drains::{
    DrainParts, Drainers, Drains, JobEvents, PageHandled, PageStop, ParkedStarts, Registry, StartPlanner,
    Sweep,
};
use ledgerline_event::{Invalid, Millis, Name};
use ledgerline_jobs::{EndListener, Ended, Health, JobDriver, Jobs, Stop, Tasks};
use ledgerline_ledger::{Clients, Clock, Emitter, Names, Timeline, telemetry::Metrics};
use ledgerline_outbox::{Outbox, QueueUrls, Queues};
use ledgerline_runs::{EventSender, ExternalRuns, Hooks, RunSweep, Runs, TaskWaits};
use ledgerline_store::{ControlTable, FailedDeliveries, Payloads, Rows, Sweeps};
use ledgerline_verify::Verify;

use crate::{Attention, start_effects::Starters};

/// The app that the system's own events have.
const APP: &str = "ledgerline";

/// The components of one stage. Cheap to clone.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Stage {
    pub outbox: Arc<Outbox>,
    pub tasks: Arc<Tasks>,
    pub jobs: Arc<Jobs>,
    pub health: Arc<Health>,
    pub runs: Arc<Runs>,
    pub external_runs: Arc<ExternalRuns>,
    pub hooks: Arc<Hooks>,
    pub events: Arc<EventSender>,
    pub run_sweep: Arc<RunSweep>,
    pub drains: Arc<Drains>,
    pub sweep: Arc<Sweep>,
    pub verify: Arc<Verify>,
    pub attention: Arc<Attention>,
    drainers: Drainers,
    clock: Clock,
}

/// How to make a [`Stage`].
#[allow(missing_docs)]
pub struct StageOptions {
    pub queues: QueueUrls,
    pub drainers: Drainers,
    /// Sends alerts. Without it, alerts wait for a process that has one.
    pub slack: Option<Slack>,
    pub metrics: Metrics,
    /// How a person names this ledger on the command line: `--stage dev`, `--local`.
    pub ledger_flag: String,
    pub clock: Clock,
}

impl Stage {
    /// Makes the components of one stage and wires them to each other.
    pub fn new(clients: &Clients, names: &Names, options: StageOptions) -> Result<Self, Invalid> {
        let StageOptions { queues, drainers, slack, metrics, ledger_flag, clock } = options;
        let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
        let payloads = Payloads::new(clients.s3.clone(), &names.payload_bucket);
        let timeline = Timeline::new(clients.dynamo.clone(), &names.events_table, payloads.clone());
        let app = Name::new("appName", APP)?;
        let emitter =
            Emitter::with_clock(clients, names, app.clone(), app, clock.clone()).with_scope(|scope| {
                scope.context.source = Some("system".into());
                scope.context.origin = Some("dispatcher".into());
            });
        let queues = Queues::new(clients.sqs.clone(), queues);

        let runs = Runs::new(control.clone(), payloads.clone(), emitter.clone(), queues.clone());
        let outbox = Outbox::new(
            control.clone(),
            payloads.clone(),
            emitter.clone(),
            queues.clone(),
            slack.map(Arc::new),
            metrics.clone(),
            runs.effects(),
        );
        let tasks = Tasks::new(
            control.clone(),
            payloads.clone(),
            emitter.clone(),
            timeline.clone(),
            queues.clone(),
            outbox.clone(),
        );
        let jobs = Jobs::new(
            control.clone(),
            payloads.clone(),
            emitter.clone(),
            timeline.clone(),
            tasks.clone(),
            outbox.clone(),
        );
        let waits = TaskWaits::new(runs.clone(), timeline.clone());
        let driver = JobDriver::new(jobs.clone(), emitter.clone(), timeline.clone(), end_listener(waits));
        let starters = Starters { emitter: emitter.clone(), tasks: tasks.clone(), sent: runs.sent.clone() };
        let drains = Drains::new(DrainParts {
            control: control.clone(),
            timeline: timeline.clone(),
            emitter: emitter.clone(),
            metrics: metrics.clone(),
            ledger_flag: ledger_flag.clone(),
            drainers: drainers.clone(),
            outbox: outbox.clone(),
            planner: start_planner(starters),
            job_events: job_events(driver),
        });
        let sweep = Sweep::new(drains.clone());
        Ok(Self {
            health: Arc::new(Health::new(
                control.clone(),
                payloads,
                emitter.clone(),
                metrics,
                ledger_flag.clone(),
                tasks.clone(),
                outbox.clone(),
            )),
            external_runs: Arc::new(ExternalRuns::new(runs.clone())),
            hooks: Arc::new(Hooks::new(control.clone(), runs.clone(), outbox.clone())),
            events: Arc::new(EventSender::new(runs.clone(), outbox.clone())),
            run_sweep: Arc::new(RunSweep::new(control.clone(), runs.clone(), outbox.clone())),
            verify: Arc::new(Verify::new(
                control.clone(),
                timeline,
                emitter.clone(),
                outbox.clone(),
                tasks.clone(),
                jobs.clone(),
                runs.clone(),
                drains.clone(),
            )),
            attention: Arc::new(Attention {
                failed_deliveries: FailedDeliveries::new(control.clone()),
                sweeps: Sweeps::new(control.clone()),
                rows: Rows::new(control),
                emitter,
                ledger_flag,
                drainers: drainers.clone(),
                parked: drains.parked.clone(),
                sweep: sweep.clone(),
            }),
            outbox: Arc::new(outbox),
            tasks: Arc::new(tasks),
            jobs: Arc::new(jobs),
            runs: Arc::new(runs),
            drains: Arc::new(drains),
            sweep: Arc::new(sweep),
            drainers,
            clock,
        })
    }

    /// The time by its clock.
    pub fn now(&self) -> Millis {
        (self.clock)()
    }

    /// The drainers that this stage is configured with.
    pub fn drainers(&self) -> &Drainers {
        &self.drainers
    }

    /// What tenants have registered: subscriptions and workflow types.
    pub fn registry(&self) -> &Registry {
        &self.drains.registry
    }

    /// Starts that did not work.
    pub fn parked(&self) -> &ParkedStarts {
        &self.drains.parked
    }
}

/// The listener that wakes runs at the ends of the tasks and jobs that they wait for.
fn end_listener(waits: TaskWaits) -> EndListener {
    let waits = Arc::new(waits);
    Arc::new(move |ended| {
        let waits = waits.clone();
        async move {
            match ended {
                Ended::Task { run_id, end } => waits.on_task_ended(&run_id, &end).await,
                Ended::Job { tenant, run_id, job_id, failed_task } => {
                    waits.on_job_ended(&tenant, &run_id, &job_id, failed_task.as_ref()).await
                }
            }
        }
        .boxed()
    })
}

fn start_planner(starters: Starters) -> StartPlanner {
    let starters = Arc::new(starters);
    StartPlanner::new(Arc::new(move |request| {
        let starters = starters.clone();
        async move { starters.effects(request).await }.boxed()
    }))
}

/// What the drainer `jobs` does with a page of events: it drives jobs.
fn job_events(driver: JobDriver) -> JobEvents {
    let driver = Arc::new(driver);
    Arc::new(move |page| {
        let driver = driver.clone();
        async move {
            let handled = driver.drive(page.tenant, page.events, page.finished_before, page.deadline).await;
            let stop = handled.stop.map(|stop| match stop {
                Stop::OutOfTime => PageStop::OutOfTime,
                Stop::Trouble(error) => PageStop::Trouble(error),
            });
            PageHandled { finished: handled.finished, stop }
        }
        .boxed()
    })
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").field("drainers", &self.drainers).finish_non_exhaustive()
    }
}
