//! As the function that the run queue and the schedule call.

use std::time::Duration;

use anyhow::Context;
use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use lambda_runtime::{LambdaEvent, service_fn};
use ledgerline_lambda::{Environment, deadline};
use ledgerline_ledger::{optional, system_clock};
use ledgerline_workflow::{Runner, Workflows};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::{Handler, args::lease_of};

/// Left of an invocation's time for the steps that were begun before it was too late to begin more.
const RESERVE: Duration = Duration::from_secs(60);

pub(crate) async fn serve(workflows: Workflows) -> anyhow::Result<()> {
    let environment = Environment::read().await.map_err(anyhow::Error::new)?;
    let metrics = environment.metrics("workflow-runner");
    let options = environment.dispatch_options(metrics.clone()).map_err(|error| anyhow::anyhow!(error))?;
    let options_of_runner = lease_of(optional("LEDGERLINE_RUN_LEASE_SECONDS").as_deref())?;
    let runner = Runner::new(environment.dispatch(options)?, workflows, options_of_runner);
    if let Err(error) = runner.publish().await {
        tracing::warn!(%error, "could not tell which workflows there are; the schedule tries again");
    }
    let handler = &Handler { runner, metrics, clock: system_clock() };
    let service = service_fn(|event: LambdaEvent<Value>| async move {
        handle(handler, event.payload, Some(deadline(event.context.deadline, RESERVE))).await
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
