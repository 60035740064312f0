//! Wires the end of tasks to their dead letters, the control table and the bus.

use aws_lambda_events::event::sqs::SqsEvent;
use lambda_runtime::{LambdaEvent, service_fn};
use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls};
use ledgerline_ledger::{
    Clients, Names, required, system_clock,
    telemetry::{Metrics, init_logs},
};
use task_dlq::Handler;

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
    let metrics = Metrics::new(&stage, "task-dlq");
    let clients = Clients::from_environment().await;
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
    let dispatch = Dispatch::new(&clients, &names, options)?;
    let handler = &Handler { dispatch, metrics, clock: system_clock() };
    let service = service_fn(|event: LambdaEvent<SqsEvent>| async move {
        Ok::<_, std::convert::Infallible>(handler.handle(event.payload).await)
    });
    lambda_runtime::run(service).await
}
