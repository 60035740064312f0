//! As the function that the run queue and the schedule call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::{LambdaEvent, service_fn};
use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls};
use ledgerline_ledger::{
    Clients, Names, optional, required, system_clock,
    telemetry::{Metrics, init_logs},
};
use ledgerline_workflow::{Runner, Workflows};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{Handler, args::lease_of};

/// Left of an invocation's time for the steps that were begun before it was too late to begin more.
const RESERVE: Duration = Duration::from_secs(60);

pub(crate) async fn serve(workflows: Workflows) -> anyhow::Result<()> {
    init_logs();
    let stage = required("STAGE")?;
    let names = Names {
        control_table: required("CONTROL_TABLE")?,
        bus: required("EVENT_BUS")?,
        payload_bucket: required("PAYLOAD_BUCKET")?,
        ..Names::of_stage(&stage)
    };
    let clients = Clients::from_environment().await;
    let metrics = Metrics::new(&stage, "workflow-runner");
    let options = DispatchOptions {
        queues: QueueUrls {
            tasks: required("TASK_QUEUE_URL")?,
            task_dead_letters: required("TASK_DEAD_LETTER_QUEUE_URL")?,
            runs: required("RUN_QUEUE_URL")?,
        },
        drainers: Drainers::parse("")?,
        slack: None,
        metrics: metrics.clone(),
        ledger_flag: format!("--stage {stage}"),
        clock: system_clock(),
    };
    let options_of_runner = lease_of(optional("LEDGERLINE_RUN_LEASE_SECONDS").as_deref())?;
    let runner = Runner::new(Dispatch::new(&clients, &names, options)?, workflows, options_of_runner);
    if let Err(error) = runner.publish().await {
        tracing::warn!(%error, "could not tell which workflows there are; the schedule tries again");
    }
    let handler = &Handler { runner, metrics, clock: system_clock() };
    let service = service_fn(|event: LambdaEvent<Value>| async move {
        handle(handler, event.payload, Some(deadline(event.context.deadline))).await
    });
    Box::pin(lambda_runtime::run(service)).await.map_err(|error| anyhow::anyhow!(error))
}

/// A batch of the run queue, or a tick of the schedule.
async fn handle(
    handler: &Handler,
    event: Value,
    deadline: Option<Instant>,
) -> Result<SqsBatchResponse, lambda_runtime::Error> {
    if event.get("Records").is_some() {
        let batch = SqsEvent::deserialize(event).context("the records are no messages of a queue")?;
        return Ok(Box::pin(handler.handle(batch, deadline)).await);
    }
    if event["source"] != "aws.events" {
        return Err("called with neither messages of the run queue nor a tick of the schedule".into());
    }
    let swept = handler.tick(deadline.unwrap_or_else(Instant::now)).await?;
    tracing::info!(sent_again = swept.sent_again, timers = swept.timers, "swept");
    Ok(SqsBatchResponse::default())
}

/// When to begin nothing more, by the invocation's end in epoch milliseconds.
fn deadline(ends_at: u64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_millis(ends_at).saturating_sub(now);
    Instant::now() + left.saturating_sub(RESERVE.min(left / 4))
}
