//! Starts and stops the parts of local mode, in the order in which they depend on each other.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use ledgerline_alert::Slack;
use ledgerline_drains::Drainers;
use ledgerline_embedded::{Admission, ConnectionTimeouts, Embedded, Interceptor, serve};
use ledgerline_event::{Millis, Name, catalogue::EVENT_TYPES};
use ledgerline_ledger::{Clients, Clock, Names, system_clock, telemetry::Metrics};
use ledgerline_outbox::QueueUrls;
use ledgerline_stage::{Stage, StageOptions};
use ledgerline_store::{ApiKeys, ControlTable, KeyScope};
use ledgerline_worker::Config;
use ledgerline_workflow::Workflows;
use producer_api::{Api, HealthProbe};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use super::{
    Finding, LocalState, change_stream, dispatcher, functions, health, local_json,
    periodic::{First, run_every},
    provision::{self, Parameters},
    runner::LocalRunner,
    supervisor::Supervisor,
    wiring::{Wiring, wiring},
    worker::LocalWorker,
};

/// The stage of local mode.
pub const STAGE: &str = "local";
/// The tenant of local mode.
pub const TENANT: &str = "local";
/// The region that local mode calls its own.
pub const REGION: &str = "us-east-1";

/// How long requests and batches in flight may take once local mode stops.
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Events that may wait to be saved: some seconds of work, even on a slow disk.
const MAX_WAITING: usize = 5_000;

/// What to start.
#[derive(Clone)]
pub struct LocalOptions {
    /// Where everything is kept.
    pub data: PathBuf,
    /// The port of the AWS services; 0 picks a free one.
    pub aws_port: u16,
    /// The port of the HTTP API; 0 picks a free one.
    pub port: u16,
    /// The task file of a worker in the same process.
    pub worker: Option<PathBuf>,
    /// Workflows whose runs are executed in the same process. Without them, runners of other programs execute the runs.
    pub workflows: Option<Workflows>,
    /// Where alerts go; without one they are printed.
    pub slack_webhook: Option<String>,
    /// The drainers, as `workflow_runner,timeline=1h`.
    pub drainers: String,
    /// 0 keeps events for ever.
    pub retention_days: u64,
    /// The time, for everything.
    pub clock: Clock,
    /// Called around every request to the services, for tests.
    pub interceptor: Option<Interceptor>,
    /// While this many events wait to be saved, the bus refuses more. For the system's own events the bound is ten times
    /// as high.
    pub max_waiting: usize,
    /// How many log lines the process has dropped, for `/api/health`.
    pub dropped_log_lines: fn() -> u64,
}

impl LocalOptions {
    /// A folder, and for everything else a default: free ports, the system's clock.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            aws_port: 0,
            port: 0,
            worker: None,
            workflows: None,
            slack_webhook: None,
            drainers: String::new(),
            retention_days: 0,
            clock: system_clock(),
            interceptor: None,
            max_waiting: MAX_WAITING,
            dropped_log_lines: || 0,
        }
    }
}

/// Local mode, running.
pub struct Local {
    /// What `local.json` says.
    pub state: LocalState,
    /// Clients of the embedded services.
    pub clients: Clients,
    /// The names of tables, queues, bus and bucket.
    pub names: Names,
    /// The embedded services.
    pub embedded: Embedded,
    /// The dispatcher's operations.
    pub stage: Stage,
    /// What `/api/health` reports.
    health: HealthProbe,
    supervisor: Supervisor,
    task_queue_url: String,
    clock: Clock,
    worker: Option<LocalWorker>,
    runner: Option<LocalRunner>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Local {
    /// Starts everything; ready when this returns.
    pub async fn start(options: LocalOptions) -> anyhow::Result<Self> {
        // First, so that an error in the task file is reported before anything is started.
        let task_file = options.worker.as_deref().map(Config::read).transpose()?;
        let api_listener = listen(options.port).await?;
        let clock = options.clock.clone();
        let names = Names::of_stage(STAGE);
        let drainers = Drainers::parse(&options.drainers)?;
        let (interceptor, wake_ups) = change_stream::change_stream(&names, options.interceptor.clone());
        let embedded = Embedded::start(ledgerline_embedded::Options {
            data: Some(options.data.clone()),
            port: options.aws_port,
            region: REGION.into(),
            clock: Arc::new(move || clock().get()),
            interceptor: Some(interceptor),
            admission: Some(admission(&names, options.max_waiting)),
        })
        .await
        .map_err(|error| match error {
            ledgerline_embedded::StartError::PortTaken(port) => {
                anyhow::anyhow!("port {port} is in use: choose another with --aws-port, or 0 for a free one")
            }
            ledgerline_embedded::StartError::FolderInUse(folder) => {
                anyhow::anyhow!(
                    "another local mode uses {}: stop it, or choose another with --data",
                    folder.display()
                )
            }
            other => other.into(),
        })?;

        let clients = Clients::in_process(embedded.http_client(), &embedded.endpoint(), REGION);
        let parameters =
            Parameters { slack_webhook: options.slack_webhook.as_deref(), drainers: &options.drainers };
        provision::provision(&clients, &names, &wiring(&names), &parameters).await?;

        let api_keys = ApiKeys::new(ControlTable::new(clients.dynamo.clone(), &names.control_table));
        let tenant = Name::new("tenant", TENANT)?;
        let api_key =
            local_json::kept_key(&options.data, &api_keys, &tenant, KeyScope::Admin, (options.clock)())
                .await?;
        let state = LocalState {
            aws_endpoint: embedded.endpoint(),
            api_url: format!("http://{}", api_listener.local_addr()?),
            api_key,
            tenant: TENANT.into(),
            stage: STAGE.into(),
            region: REGION.into(),
        };

        let (stop, stopped) = watch::channel(false);
        let queues = QueueUrls::find(&clients.sqs, &names).await?;
        let task_queue = queues.tasks.clone();
        let stage = Stage::new(
            &clients,
            &names,
            StageOptions {
                queues,
                drainers,
                slack: Some(Slack::new(clients.ssm.clone(), names.slack_webhook_parameter.clone())),
                metrics: Metrics::silent(),
                ledger_flag: "--local".into(),
                clock: options.clock.clone(),
            },
        )?;
        let supervisor = Supervisor::default();
        let mut tasks =
            functions::start(&embedded, &clients, &names, &options, &stage, &supervisor, stopped.clone())
                .await?;
        let Wiring { sweep_every, runs_every, .. } = wiring(&names);
        let (for_drains, clock) = (stage.clone(), options.clock.clone());
        let until = stopped.clone();
        tasks.push(supervisor.run(
            "dispatcher",
            stopped.clone(),
            |stop| *stop,
            move || {
                let (stage, wake_ups, clock) = (for_drains.clone(), wake_ups.clone(), clock.clone());
                dispatcher::run(stage, wake_ups, clock, sweep_every, until.clone())
            },
        ));
        // After the queues are released, and before the sweep, which enqueues the runs of an earlier runner.
        let runner = match options.workflows.clone() {
            Some(workflows) => {
                let (queues, clock) = (embedded.queues(), options.clock.clone());
                let queue = names.run_queue.clone();
                Some(LocalRunner::start(&stage, workflows, queues, queue, clock, &supervisor).await?)
            }
            None => None,
        };
        let (for_runs, until) = (stage.clone(), stopped.clone());
        tasks.push(supervisor.run(
            "run-sweep",
            stopped.clone(),
            |stop| *stop,
            move || {
                let stage = for_runs.clone();
                let sweep = move || {
                    let stage = stage.clone();
                    async move { stage.run_sweep.sweep_runs().await }
                };
                // The first sweep is at once, for the runs that an earlier process left.
                run_every(runs_every, First::AtOnce, "the sweep of runs", sweep, until.clone())
            },
        ));
        let (names_of_api, clock) = (names.clone(), options.clock.clone());
        let mut api = Api::new(clients.clone(), names_of_api, stage.clone(), Metrics::silent(), clock)?;
        let health =
            HealthProbe::with(health::vitals(&embedded, &names, &supervisor, options.dropped_log_lines));
        api.health = health.clone();
        let (listener, router, until) = (Arc::new(api_listener), producer_api::router(api), stopped.clone());
        tasks.push(supervisor.run(
            "http-api",
            stopped,
            |stop| *stop,
            move || serve(listener.clone(), router.clone(), ConnectionTimeouts::default(), until.clone()),
        ));

        let worker = task_file.map(|config| {
            LocalWorker::start(
                &stage,
                &clients,
                task_queue.clone(),
                config,
                options.clock.clone(),
                &supervisor,
            )
        });

        // Last: a program that finds the file may call at once.
        local_json::write(&state, &options.data)?;
        Ok(Self {
            state,
            clients,
            names,
            embedded,
            stage,
            health,
            supervisor,
            task_queue_url: task_queue,
            clock: options.clock,
            worker,
            runner,
            stop,
            tasks,
        })
    }

    /// Starts another worker in this process, which the caller stops.
    pub fn start_worker(&self, config: Config) -> LocalWorker {
        let (queue_url, clock) = (self.task_queue_url.clone(), self.clock.clone());
        LocalWorker::start(&self.stage, &self.clients, queue_url, config, clock, &self.supervisor)
    }

    /// What `/api/health` finds wrong.
    pub async fn health(&self, now: Millis) -> Vec<Finding> {
        let control = ControlTable::new(self.clients.dynamo.clone(), &self.names.control_table);
        self.health.report(&control, now).await.findings
    }

    /// Takes no more work, finishes what is in flight, and returns.
    pub async fn stop(self) {
        // First: the events with which their tasks and runs end still have to be saved.
        if let Some(worker) = self.worker {
            worker.stop().await;
        }
        if let Some(runner) = self.runner {
            runner.stop().await;
        }
        self.stop.send_replace(true);
        let deadline = tokio::time::Instant::now() + STOP_WITHIN;
        for task in self.tasks {
            let abort = task.abort_handle();
            match tokio::time::timeout_at(deadline, task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "a part of local mode panicked"),
                Err(_) => {
                    // A half-sent request would keep it open for ever. The queues redeliver what was not acknowledged.
                    tracing::warn!("a request or a batch did not finish in time");
                    abort.abort();
                }
            }
        }
        self.embedded.stop().await;
    }
}

/// Running work depends on the events of tasks, jobs and runs: the bus takes and the saver saves them first.
fn admission(names: &Names, max_waiting: usize) -> Admission {
    let is_urgent = |detail: &Value| {
        let text = |field: &str| detail[field].as_str().unwrap_or_default();
        let of_run = ["RUN", "STEP", "HOOK", "WAIT"].contains(&text("entityType"));
        of_run || EVENT_TYPES.contains(&text("eventType"))
    };
    Admission {
        queue: names.ingest_queue.clone(),
        max_waiting,
        max_waiting_urgent: max_waiting.saturating_mul(10),
        is_urgent: Arc::new(is_urgent),
    }
}

async fn listen(port: u16) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(("127.0.0.1", port)).await {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            anyhow::bail!("port {port} is in use: choose another with --port, or 0 for a free one")
        }
        other => other.with_context(|| format!("port {port} cannot be used")),
    }
}
