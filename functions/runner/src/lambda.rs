//! The runner as a Lambda function, which the run queue and the schedule call.

use std::time::Duration;

use anyhow::Context;
use aws_lambda_events::event::sqs::{SqsBatchResponse, SqsEvent};
use ledgerline_lambda::{Environment, Invocation, serve as serve_invocations};
use ledgerline_ledger::{optional, system_clock};
use ledgerline_workflow::{Runner, Workflows};
use serde::Deserialize;

use crate::{Handler, args::options_from};

/// The part of an invocation's time that is left for the steps that have begun.
const RESERVE: Duration = Duration::from_secs(60);

pub(crate) async fn serve(workflows: Workflows) -> anyhow::Result<()> {
    let environment = Environment::read().await.map_err(anyhow::Error::new)?;
    let metrics = environment.metrics("runner");
    let options = environment.stage_options(metrics.clone()).map_err(|error| anyhow::anyhow!(error))?;
    let runner_options = options_from(optional("LEDGERLINE_RUN_LEASE_SECONDS").as_deref())?;
    let runner = Runner::new(environment.stage(options)?, workflows, runner_options);
    if let Err(error) = runner.publish().await {
        tracing::warn!(%error, "could not publish the workflows; the schedule tries again");
    }
    let handler = &Handler { runner, metrics, clock: system_clock() };
    Box::pin(serve_invocations(|invocation| handle(handler, invocation)))
        .await
        .map_err(|error| anyhow::anyhow!(error))
}

/// Handles a batch of the run queue, or a tick of the schedule.
async fn handle(
    handler: &Handler,
    invocation: Invocation,
) -> Result<SqsBatchResponse, lambda_runtime::Error> {
    let deadline = invocation.deadline(RESERVE);
    if invocation.event.get("Records").is_some() {
        let batch =
            SqsEvent::deserialize(invocation.event).context("the records are no messages of a queue")?;
        return Ok(Box::pin(handler.handle(batch, Some(deadline))).await);
    }
    if invocation.event["source"] != "aws.events" {
        return Err("called with neither messages of the run queue nor a tick of the schedule".into());
    }
    let swept = handler.tick(deadline).await?;
    tracing::info!(sent_again = swept.sent_again, timers = swept.timers, "swept");
    Ok(SqsBatchResponse::default())
}
