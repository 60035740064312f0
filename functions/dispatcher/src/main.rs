//! Wires the dispatcher to its tables, bus and queues.

use std::time::Duration;

use dispatcher::Handler;
use lambda_runtime::{LambdaEvent, service_fn};
use ledgerline_dispatch::DispatchOptions;
use ledgerline_lambda::{Environment, deadline};
use serde_json::Value;
use tokio::time::Instant;

/// Left of the invocation's time for releasing leases and sending alerts.
const RESERVE: Duration = Duration::from_secs(10);
/// A wake-up of the stream holds up those behind it: a backlog is for the sweep.
const WAKE_UP: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    let environment = Environment::read().await?.with_events_table()?;
    let options = DispatchOptions {
        drainers: environment.drainers()?,
        slack: Some(environment.slack()?),
        ..environment.dispatch_options(environment.metrics("dispatcher"))?
    };
    let handler = &Handler { dispatch: environment.dispatch(options)? };
    let service = service_fn(|event: LambdaEvent<Value>| async move {
        let mut deadline = deadline(event.context.deadline, RESERVE);
        if dispatcher::tenants(&event.payload).is_some() {
            deadline = deadline.min(Instant::now() + WAKE_UP);
        }
        let (swept, answer) = handler.handle(&event.payload, Some(deadline)).await?;
        tracing::info!(visited = swept.visited, trouble = swept.trouble, "done");
        Ok::<_, lambda_runtime::Error>(answer)
    });
    lambda_runtime::run(service).await
}
