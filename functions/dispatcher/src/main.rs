//! Wires the dispatcher to its tables, bus and queues.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dispatcher::Handler;
use lambda_runtime::{LambdaEvent, service_fn};
use ledgerline_alert::Slack;
use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls};
use ledgerline_ledger::{
    Clients, Names, optional, required, system_clock,
    telemetry::{Metrics, init_logs},
};
use serde_json::Value;
use tokio::time::Instant;

/// Left of the invocation's time for letting go cleanly.
const RESERVE: Duration = Duration::from_secs(10);
/// A wake-up of the stream holds up those behind it: a backlog is for the sweep.
const WAKE_UP: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    init_logs();
    let stage = required("STAGE")?;
    let names = Names {
        events_table: required("EVENTS_TABLE")?,
        control_table: required("CONTROL_TABLE")?,
        bus: required("EVENT_BUS")?,
        payload_bucket: required("PAYLOAD_BUCKET")?,
        ..Names::of_stage(&stage)
    };
    let clients = Clients::from_environment().await;
    let options = DispatchOptions {
        queues: QueueUrls {
            tasks: required("TASK_QUEUE_URL")?,
            task_dead_letters: required("TASK_DEAD_LETTER_QUEUE_URL")?,
            runs: required("RUN_QUEUE_URL")?,
        },
        drainers: Drainers::parse(&optional("DRAINERS").unwrap_or_default())?,
        slack: Some(Slack::new(clients.ssm.clone(), required("SLACK_WEBHOOK_PARAMETER")?)),
        metrics: Metrics::new(&stage, "dispatcher"),
        ledger_flag: format!("--stage {stage}"),
        clock: system_clock(),
    };
    let handler = &Handler { dispatch: Dispatch::new(&clients, &names, options)? };
    let service = service_fn(|event: LambdaEvent<Value>| async move {
        let mut deadline = deadline(event.context.deadline);
        if dispatcher::tenants(&event.payload).is_some() {
            deadline = deadline.min(Instant::now() + WAKE_UP);
        }
        let (swept, answer) = handler.handle(&event.payload, Some(deadline)).await?;
        tracing::info!(visited = swept.visited, trouble = swept.trouble, "done");
        Ok::<_, lambda_runtime::Error>(answer)
    });
    lambda_runtime::run(service).await
}

/// When to stop, by the invocation's end in epoch milliseconds.
fn deadline(ends_at: u64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::now() + Duration::from_millis(ends_at).saturating_sub(now).saturating_sub(RESERVE)
}
