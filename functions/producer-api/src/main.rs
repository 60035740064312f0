//! Wires the router to API Gateway.

use ledgerline_lambda::Environment;
use ledgerline_ledger::system_clock;
use ledgerline_stage::StageOptions;
use producer_api::{Api, router};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_http::Error> {
    let environment = Environment::read().await?.with_events_table()?;
    let options = StageOptions {
        drainers: environment.drainers()?,
        // `/api/events/drain` reports metrics as `Function=dispatcher`, the dimension that the drain alarms read.
        ..environment.stage_options(environment.metrics("dispatcher"))?
    };
    let (stage, metrics) = (environment.stage(options)?, environment.metrics("producer-api"));
    let Environment { clients, names, .. } = environment;
    lambda_http::run(router(Api::new(clients, names, stage, metrics, system_clock())?)).await
}
