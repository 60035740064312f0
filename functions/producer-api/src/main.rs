//! Wires the router to API Gateway.

use ledgerline_dispatch::{Dispatch, DispatchOptions, Drainers, QueueUrls};
use ledgerline_ledger::{
    Clients, Names, optional, required, system_clock,
    telemetry::{Metrics, init_logs},
};
use producer_api::{Api, router};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    init_logs();
    let stage = required("STAGE")?;
    let names = Names {
        events_table: required("EVENTS_TABLE")?,
        control_table: required("CONTROL_TABLE")?,
        bus: required("EVENT_BUS")?,
        payload_bucket: required("PAYLOAD_BUCKET")?,
        ..Names::of_stage(&stage)
    };
    let metrics = Metrics::new(&stage, "producer-api");
    let clients = Clients::from_environment().await;
    let options = DispatchOptions {
        queues: QueueUrls {
            tasks: required("TASK_QUEUE_URL")?,
            task_dead_letters: required("TASK_DEAD_LETTER_QUEUE_URL")?,
            runs: required("RUN_QUEUE_URL")?,
        },
        drainers: Drainers::parse(&optional("DRAINERS").unwrap_or_default())?,
        slack: None,
        // What it drains counts where the alarms look.
        metrics: Metrics::new(&stage, "dispatcher"),
        ledger_flag: format!("--stage {stage}"),
        clock: system_clock(),
    };
    let dispatch = Dispatch::new(&clients, &names, options)?;
    let api = Api::new(clients, names, dispatch, metrics, system_clock())?;
    lambda_http::run(router(api)).await
}
