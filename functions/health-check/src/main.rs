//! Wires the check to the control table, the bus, the task queue and the webhook's parameter.

use health_check::Handler;
use lambda_runtime::{LambdaEvent, service_fn};
use ledgerline_alert::Slack;
use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls, Thresholds};
use ledgerline_ledger::{
    Clients, Names, required, system_clock,
    telemetry::{Metrics, init_logs},
};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    init_logs();
    let stage = required("STAGE")?;
    let names = Names {
        control_table: required("CONTROL_TABLE")?,
        bus: required("EVENT_BUS")?,
        payload_bucket: required("PAYLOAD_BUCKET")?,
        ..Names::of_stage(&stage)
    };
    let thresholds = Thresholds::of_seconds(
        ("HEALTH_WARNING_SECONDS", &required("HEALTH_WARNING_SECONDS")?),
        ("HEALTH_CRITICAL_SECONDS", &required("HEALTH_CRITICAL_SECONDS")?),
        ("HEALTH_OVERTIME_SECONDS", &required("HEALTH_OVERTIME_SECONDS")?),
    )?;
    let clients = Clients::from_environment().await;
    let options = DispatchOptions {
        queues: QueueUrls {
            tasks: required("TASK_QUEUE_URL")?,
            task_dead_letters: required("TASK_DEAD_LETTER_QUEUE_URL")?,
            runs: required("RUN_QUEUE_URL")?,
        },
        drainers: Drainers::parse("")?,
        slack: Some(Slack::new(clients.ssm.clone(), required("SLACK_WEBHOOK_PARAMETER")?)),
        metrics: Metrics::new(&stage, "health-check"),
        ledger_flag: format!("--stage {stage}"),
        clock: system_clock(),
    };
    let handler = &Handler { dispatch: Dispatch::new(&clients, &names, options)?, thresholds };
    let service = service_fn(|_: LambdaEvent<Value>| async move {
        handler.handle().await?;
        Ok::<_, lambda_runtime::Error>(())
    });
    lambda_runtime::run(service).await
}
