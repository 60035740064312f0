//! Wires the saver to its queue, tables and dead-letter queue.

use ledgerline_lambda::serve_queue;
use ledgerline_ledger::{
    Saver, optional, required, sdk_config, system_clock,
    telemetry::{Metrics, init_logs},
};
use ledgerline_store::ControlTable;
use save_event_to_dynamo::Handler;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    init_logs();
    let config = sdk_config().await;
    let dynamo = aws_sdk_dynamodb::Client::new(&config);
    let retention_days = optional("RETENTION_DAYS").map_or(Ok(0), |days| days.parse::<u64>())?;
    let control = ControlTable::new(dynamo.clone(), required("CONTROL_TABLE")?);
    let handler = &Handler {
        saver: Saver::new(dynamo, required("EVENTS_TABLE")?, control, retention_days),
        sqs: aws_sdk_sqs::Client::new(&config),
        dead_letter_queue_url: required("DEAD_LETTER_QUEUE_URL")?,
        metrics: Metrics::new(&required("STAGE")?, "save-event-to-dynamo"),
        clock: system_clock(),
    };
    serve_queue(|batch| handler.handle(batch)).await
}
