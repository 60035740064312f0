//! Wires the handler of dead letters to the control table, the queues and the bus.

use ledgerline_lambda::{Environment, serve_queue};
use ledgerline_ledger::system_clock;
use task_dlq::Handler;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    let environment = Environment::read().await?;
    let metrics = environment.metrics("task-dlq");
    let stage = environment.stage(environment.stage_options(metrics.clone())?)?;
    let handler = &Handler { stage, metrics, clock: system_clock() };
    serve_queue(|batch| handler.handle(batch)).await
}
