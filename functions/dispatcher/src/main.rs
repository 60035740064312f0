//! Wires the dispatcher to its tables, bus and queues.

use dispatcher::Handler;
use ledgerline_lambda::{Environment, serve};
use ledgerline_stage::StageOptions;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    let environment = Environment::read().await?.with_events_table()?;
    let options = StageOptions {
        drainers: environment.drainers()?,
        slack: Some(environment.slack()?),
        ..environment.stage_options(environment.metrics("dispatcher"))?
    };
    let handler = &Handler { stage: environment.stage(options)? };
    serve(|invocation| handler.handle(invocation)).await
}
