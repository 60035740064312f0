//! Local mode: the embedded services, the functions' own handlers wired to them as
//! `template.yaml` wires them on AWS, and the HTTP API. One process, one folder.

mod abort_on_drop;
mod dispatcher;
mod functions;
mod provision;
mod runs;
mod state;
mod supervise;
mod visits;
mod vitals;
mod wiring;
mod worker;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use ledgerline_alert::Slack;
use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls};
use ledgerline_embedded::{Admission, Embedded, Hook, Patience, serve};
use ledgerline_event::{Name, catalogue::EVENT_TYPES};
use ledgerline_ledger::{
    Clients, Clock, Names, control::ControlTable, control::api_key::KeyScope, system_clock,
    telemetry::Metrics,
};
use ledgerline_workflow::Workflows;
use producer_api::{Api, HealthProbe};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

pub use ledgerline_ledger::LocalState;
pub use provision::{Parameters, provision};
pub use wiring::{EventSource, QueueWiring, RuleWiring, Wiring, wiring};

use crate::worker::Config;
use runs::LocalRunner;
use supervise::Supervisor;
pub(crate) use worker::LocalWorker;

/// The stage of local mode.
pub const STAGE: &str = "local";
/// The tenant of local mode.
pub const TENANT: &str = "local";
/// The region that local mode calls its own.
pub const REGION: &str = "us-east-1";

/// How long what is in flight may take to finish once stopping.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Events that may wait to be saved: some seconds of work, also for a slow disk.
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
    /// Workflows whose runs are executed in the same process. Without them that is up to programs of their own.
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
    pub hook: Option<Hook>,
    /// While so many events wait to be saved, no more are taken; ten times as many of the system's own.
    pub max_waiting: usize,
}

impl LocalOptions {
    /// A folder, and everything else as it comes: free ports, the system's clock.
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
            hook: None,
            max_waiting: MAX_WAITING,
        }
    }
}

/// Local mode, running.
pub struct Local {
    /// What `local.json` says.
    pub state: LocalState,
    /// Clients of the embedded services.
    pub clients: Clients,
    /// What everything is called.
    pub names: Names,
    /// The services themselves.
    pub embedded: Embedded,
    /// Drains.
    pub dispatch: Dispatch,
    /// Whether work can be done.
    pub(crate) health: HealthProbe,
    pub(crate) supervisor: Supervisor,
    worker: Option<LocalWorker>,
    runner: Option<LocalRunner>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Local {
    /// Starts everything; ready when this returns.
    pub async fn start(options: LocalOptions) -> anyhow::Result<Self> {
        // A mistake in the task file is told of before anything is started.
        let task_file = options.worker.as_deref().map(Config::read).transpose()?;
        let api_listener = listen(options.port).await?;
        let clock = options.clock.clone();
        let names = Names::of_stage(STAGE);
        let drainers = Drainers::parse(&options.drainers)?;
        let (hook, wake_ups) = dispatcher::waking(&names, options.hook.clone());
        let embedded = Embedded::start(ledgerline_embedded::Options {
            data: Some(options.data.clone()),
            port: options.aws_port,
            region: REGION.into(),
            clock: Arc::new(move || clock().get()),
            hook: Some(hook),
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

        let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
        let tenant = Name::new("tenant", TENANT)?;
        let api_key =
            state::kept_key(&options.data, &control, &tenant, KeyScope::Admin, (options.clock)()).await?;
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
        let dispatch = Dispatch::new(
            &clients,
            &names,
            DispatchOptions {
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
            functions::start(&embedded, &clients, &names, &options, &dispatch, &supervisor, stopped.clone())
                .await?;
        let Wiring { sweep_every, runs_every, .. } = wiring(&names);
        let (for_drains, clock) = (dispatch.clone(), options.clock.clone());
        let until = stopped.clone();
        tasks.push(supervisor.run(
            "dispatcher",
            stopped.clone(),
            |stop| *stop,
            move || {
                let (dispatch, wake_ups, clock) = (for_drains.clone(), wake_ups.clone(), clock.clone());
                dispatcher::run(dispatch, wake_ups, clock, sweep_every, until.clone())
            },
        ));
        // After the queues are released, and before the sweep: it sends what an earlier runner had.
        let runner = match options.workflows.clone() {
            Some(workflows) => {
                let (queues, clock) = (embedded.queues(), options.clock.clone());
                let queue = names.run_queue.clone();
                Some(LocalRunner::start(&dispatch, workflows, queues, queue, clock, &supervisor).await?)
            }
            None => None,
        };
        let (for_runs, until) = (dispatch.clone(), stopped.clone());
        tasks.push(supervisor.run(
            "run-sweep",
            stopped.clone(),
            |stop| *stop,
            move || runs::sweep(for_runs.clone(), runs_every, until.clone()),
        ));
        let (names_of_api, clock) = (names.clone(), options.clock.clone());
        let mut api = Api::new(clients.clone(), names_of_api, dispatch.clone(), Metrics::silent(), clock)?;
        let health = HealthProbe::with(vitals::of(&embedded, &names, &supervisor));
        api.health = health.clone();
        let (listener, router, until) = (Arc::new(api_listener), producer_api::router(api), stopped.clone());
        tasks.push(supervisor.run(
            "http-api",
            stopped,
            |stop| *stop,
            move || serve(listener.clone(), router.clone(), Patience::default(), until.clone()),
        ));

        let worker = task_file.map(|config| {
            LocalWorker::start(&dispatch, &clients, task_queue, config, options.clock.clone(), &supervisor)
        });

        // Last: a program that finds the file may call at once.
        state::write(&state, &options.data)?;
        Ok(Self {
            state,
            clients,
            names,
            embedded,
            dispatch,
            health,
            supervisor,
            worker,
            runner,
            stop,
            tasks,
        })
    }

    /// Takes no more work, finishes what is in flight, and returns.
    pub async fn stop(self) {
        // First: what their tasks and runs end with still has to be saved.
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
                Ok(Err(error)) => tracing::error!(%error, "a part of local mode ended badly"),
                Err(_) => {
                    // A half-sent request would keep it open for ever. What was not acknowledged comes again.
                    tracing::warn!("a request or a batch did not finish in time");
                    abort.abort();
                }
            }
        }
        self.embedded.stop().await;
    }
}

/// Events of tasks, jobs and runs keep running work going: they are taken and saved first.
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
