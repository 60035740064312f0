//! The functions' own handlers, each called with the messages of its queue or by the clock.

use std::{pin::Pin, sync::Arc};

use ledgerline_alert::Slack;
use ledgerline_embedded::Embedded;
use ledgerline_event::Name;
use ledgerline_jobs::Thresholds;
use ledgerline_ledger::{Clients, Names, Saver, telemetry::Metrics};
use ledgerline_stage::Stage;
use ledgerline_store::{ControlTable, FailedDeliveries, Payloads, StoreError};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    LocalOptions, TENANT,
    periodic::{First, run_every},
    queue_poller::QueuePoller,
    supervisor::Supervisor,
    wiring,
};

/// Batches of one function at the same time: enough to keep the store busy.
const CONCURRENCY: usize = 4;

/// The function without which nothing is saved.
pub(super) const SAVER: &str = "save-event-to-dynamo";

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts a poller for every event source, and the health check, which runs by the clock.
pub(super) async fn start(
    embedded: &Embedded,
    clients: &Clients,
    names: &Names,
    options: &LocalOptions,
    stage: &Stage,
    supervisor: &Supervisor,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let control = ControlTable::new(clients.dynamo.clone(), &names.control_table);
    let dead_letters = clients.sqs.get_queue_url().queue_name(&names.dead_letter_queue).send().await;
    let dead_letters = dead_letters.map_err(|error| StoreError::new("GetQueueUrl", error))?;
    let save = Arc::new(save_event_to_dynamo::Handler {
        saver: Saver::new(
            clients.dynamo.clone(),
            &names.events_table,
            control.clone(),
            options.retention_days,
        ),
        sqs: clients.sqs.clone(),
        dead_letter_queue_url: dead_letters.queue_url.unwrap_or_default(),
        metrics: Metrics::silent(),
        clock: options.clock.clone(),
    });
    let alert = Arc::new(eventbridge_dlq_alert::Handler {
        failed_deliveries: FailedDeliveries::new(control),
        payloads: Payloads::new(clients.s3.clone(), &names.payload_bucket),
        slack: Slack::new(clients.ssm.clone(), names.slack_webhook_parameter.clone()),
        operator_tenant: Name::new("tenant", TENANT)?,
        ledger_flag: "--local".into(),
        metrics: Metrics::silent(),
        clock: options.clock.clone(),
    });
    let task_dlq = Arc::new(task_dlq::Handler {
        stage: stage.clone(),
        metrics: Metrics::silent(),
        clock: options.clock.clone(),
    });
    let health = health_check::Handler { stage: stage.clone(), thresholds: Thresholds::default() };

    let wiring = wiring(names);
    let run = |name: String, start: Box<dyn Fn() -> BoxFuture + Send>| {
        supervisor.run(name, stopped.clone(), |stop| *stop, start)
    };
    let (every, until) = (wiring.health_every, stopped.clone());
    let check: Box<dyn Fn() -> BoxFuture + Send> = Box::new(move || {
        let health = health.clone();
        let check = move || {
            let health = health.clone();
            async move { health.handle().await }
        };
        Box::pin(run_every(every, First::AfterPeriod, "the check of running tasks", check, until.clone()))
    });
    let mut pollers = vec![run("health-check".into(), check)];
    for source in wiring.sources {
        // The receivers of this queue's messages died with the previous process. Only a program with its own runner may
        // still be alive: the queue redelivers the message of its run, and the runner that receives it finds the run
        // held.
        embedded.queues().release(&source.queue)?;
        // The runner polls by itself, for as many messages as it has free slots.
        if source.function == "runner" {
            continue;
        }
        // With a batching window, one poller collects the whole batch.
        let concurrency = if source.window_seconds == 0 { CONCURRENCY } else { 1 };
        for number in 1..=concurrency {
            let (save, alert, task_dlq) = (save.clone(), alert.clone(), task_dlq.clone());
            let poller =
                QueuePoller { queues: embedded.queues(), source: source.clone(), stopped: stopped.clone() };
            let start: Box<dyn Fn() -> BoxFuture + Send> = match source.function {
                SAVER => Box::new(move || {
                    let save = save.clone();
                    Box::pin(poller.clone().run(move |batch| {
                        let handler = save.clone();
                        async move { handler.handle(batch).await }
                    }))
                }),
                "eventbridge-dlq-alert" => Box::new(move || {
                    let alert = alert.clone();
                    Box::pin(poller.clone().run(move |batch| {
                        let handler = alert.clone();
                        async move { handler.handle(batch).await }
                    }))
                }),
                "task-dlq" => Box::new(move || {
                    let task_dlq = task_dlq.clone();
                    Box::pin(poller.clone().run(move |batch| {
                        let handler = task_dlq.clone();
                        async move { handler.handle(batch).await }
                    }))
                }),
                other => anyhow::bail!("no function is called {other}"),
            };
            pollers.push(run(format!("{}-{number}", source.function), start));
        }
    }
    Ok(pollers)
}
