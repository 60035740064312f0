//! The functions' own handlers, called with the messages of their queues as Lambda would call them.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent, SqsMessage, SqsMessageAttribute};
use ledgerline_alert::Slack;
use ledgerline_dispatch::{Dispatch, Thresholds};
use ledgerline_embedded::{Embedded, Queues, Receive, Received};
use ledgerline_event::Name;
use ledgerline_ledger::{
    Clients, Names, Payloads, Saver, StoreError, control::ControlTable, telemetry::Metrics,
};
use tokio::{sync::watch, task::JoinHandle};

use super::{EventSource, LocalOptions, TENANT, supervise::Supervisor, wiring};

/// A person at a terminal does not wait as long as a batch may on AWS.
const LONGEST_WINDOW: Duration = Duration::from_secs(1);
const LONG_POLL: Duration = Duration::from_secs(20);
/// Batches of one function at the same time: enough to keep the store busy.
const CONCURRENCY: usize = 4;
/// What one receive answers at most.
const RECEIVE_MAX: usize = 10;

/// The function without which nothing is saved.
pub(super) const SAVER: &str = "save-event-to-dynamo";

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts a poller for every event source, and what runs by the clock.
pub(super) async fn start(
    embedded: &Embedded,
    clients: &Clients,
    names: &Names,
    options: &LocalOptions,
    dispatch: &Dispatch,
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
        control,
        payloads: Payloads::new(clients.s3.clone(), &names.payload_bucket),
        slack: Slack::new(clients.ssm.clone(), names.slack_webhook_parameter.clone()),
        operator_tenant: Name::new("tenant", TENANT)?,
        ledger_flag: "--local".into(),
        metrics: Metrics::silent(),
        clock: options.clock.clone(),
    });
    let task_dlq = Arc::new(task_dlq::Handler {
        dispatch: dispatch.clone(),
        metrics: Metrics::silent(),
        clock: options.clock.clone(),
    });
    let health = health_check::Handler { dispatch: dispatch.clone(), thresholds: Thresholds::default() };

    let wiring = wiring(names);
    let run = |name: String, start: Box<dyn Fn() -> BoxFuture + Send>| {
        supervisor.run(name, stopped.clone(), |stop| *stop, start)
    };
    let (every, until) = (wiring.health_every, stopped.clone());
    let check: Box<dyn Fn() -> BoxFuture + Send> =
        Box::new(move || Box::pin(check_health(health.clone(), every, until.clone())));
    let mut pollers = vec![run("health-check".into(), check)];
    for source in wiring.sources {
        // The receivers of this queue's messages died with the previous process. Only a program with its own runner
        // may still be alive: the message of its run is delivered once more, and the runner that gets it finds the
        // run held.
        embedded.queues().release(&source.queue)?;
        // The workflow runner polls by itself, for as many messages as it has free slots.
        if source.function == "workflow-runner" {
            continue;
        }
        // With a batching window, one poller collects the whole batch.
        let concurrency = if source.window_seconds == 0 { CONCURRENCY } else { 1 };
        for number in 1..=concurrency {
            let (save, alert, task_dlq) = (save.clone(), alert.clone(), task_dlq.clone());
            let poller =
                Poller { queues: embedded.queues(), source: source.clone(), stopped: stopped.clone() };
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

/// Checks the tasks that are being worked on as often as on AWS.
async fn check_health(handler: health_check::Handler, every: Duration, mut stopped: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(every);
    // A machine that slept makes up for nothing: one check sees everything.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        let handler = handler.clone();
        match tokio::spawn(async move { handler.handle().await }).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "running tasks could not be checked; the next minute tries again")
            }
            Err(error) => {
                tracing::error!(%error, "the check of running tasks crashed; the next minute tries again")
            }
        }
    }
}

#[derive(Clone)]
struct Poller {
    queues: Arc<Queues>,
    source: EventSource,
    stopped: watch::Receiver<bool>,
}

impl Poller {
    async fn run<F>(mut self, handle: impl Fn(SqsEvent) -> F)
    where
        F: Future<Output = SqsBatchResponse> + Send + 'static,
    {
        loop {
            let batch = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stop| *stop) => return,
                batch = receive(&self.queues, &self.source) => batch,
            };
            if batch.is_empty() {
                continue;
            }
            let mut event = SqsEvent::default();
            event.records = batch.iter().map(|message| record(message, &self.source.queue)).collect();
            // As on AWS, a handler that panics gives its batch back and nothing more.
            let answer = match tokio::spawn(handle(event)).await {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::error!(%error, function = self.source.function, "the function crashed; its messages come again");
                    continue;
                }
            };
            let failed = |message: &Received| {
                answer.batch_item_failures.iter().any(|failure| failure.item_identifier == message.message_id)
            };
            for message in batch.iter().filter(|message| !failed(message)) {
                if let Err(error) = self.queues.delete(&self.source.queue, &message.receipt) {
                    tracing::warn!(%error, queue = self.source.queue, "a handled message will come again");
                }
            }
        }
    }
}

/// A batch: as much as there is, up to the batch size, waiting a little for more if the source says so.
async fn receive(queues: &Queues, source: &EventSource) -> Vec<Received> {
    let mut batch = Vec::new();
    let window = Duration::from_secs(source.window_seconds).min(LONGEST_WINDOW);
    let mut until: Option<Instant> = None;
    while batch.len() < source.batch_size {
        let wait = match until {
            None => LONG_POLL,
            Some(end) => end.saturating_duration_since(Instant::now()),
        };
        let max = RECEIVE_MAX.min(source.batch_size - batch.len());
        let received =
            queues.receive(&source.queue, Receive { max, wait: Some(wait), visibility_seconds: None }).await;
        match received {
            Ok(messages) if messages.is_empty() => break,
            Ok(messages) => batch.extend(messages),
            Err(error) => {
                tracing::error!(%error, queue = source.queue, "cannot receive");
                tokio::time::sleep(Duration::from_secs(1)).await;
                break;
            }
        }
        let end = *until.get_or_insert_with(|| Instant::now() + window);
        if Instant::now() >= end {
            break;
        }
    }
    batch
}

fn record(message: &Received, queue: &str) -> SqsMessage {
    let mut record = SqsMessage::default();
    record.message_id = Some(message.message_id.clone());
    record.receipt_handle = Some(message.receipt.clone());
    record.body = Some(message.body.clone());
    record.attributes = [
        ("SentTimestamp", message.sent_at.to_string()),
        ("ApproximateReceiveCount", message.receives.to_string()),
        ("ApproximateFirstReceiveTimestamp", message.first_received_at.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let optional =
        [("MessageGroupId", &message.group), ("DeadLetterQueueSourceArn", &message.dead_letter_source)];
    for (name, value) in optional {
        if let Some(value) = value {
            record.attributes.insert(name.to_owned(), value.clone());
        }
    }
    for (name, value) in &message.attributes {
        let mut attribute = SqsMessageAttribute::default();
        attribute.string_value = value.string_value.clone();
        attribute.data_type = Some(value.data_type.clone());
        record.message_attributes.insert(name.clone(), attribute);
    }
    record.event_source = Some("aws:sqs".into());
    record.event_source_arn = Some(format!("arn:aws:sqs:{}:000000000000:{queue}", super::REGION));
    record
}
