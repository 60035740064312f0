//! Wires the router to API Gateway.

use ledgerline_ledger::{
    Clients, Names, required, system_clock,
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
    let api = Api::new(Clients::from_environment().await, names, metrics, system_clock())?;
    lambda_http::run(router(api)).await
}
