//! Wires the alert to the dead-letter queue, the control table and the webhook's parameter.

use eventbridge_dlq_alert::Handler;
use ledgerline_alert::Slack;
use ledgerline_event::Name;
use ledgerline_lambda::serve_queue;
use ledgerline_ledger::{
    Clients, required, system_clock,
    telemetry::{Metrics, init_logs},
};
use ledgerline_store::{ControlTable, FailedDeliveries, Payloads};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    init_logs();
    let clients = Clients::from_environment().await;
    let handler = &Handler {
        failed_deliveries: FailedDeliveries::new(ControlTable::new(
            clients.dynamo,
            required("CONTROL_TABLE")?,
        )),
        payloads: Payloads::new(clients.s3, required("PAYLOAD_BUCKET")?),
        slack: Slack::new(clients.ssm, required("SLACK_WEBHOOK_PARAMETER")?),
        operator_tenant: Name::new("OPERATOR_TENANT", required("OPERATOR_TENANT")?)?,
        ledger_flag: format!("--stage {}", required("STAGE")?),
        metrics: Metrics::new(&required("STAGE")?, "eventbridge-dlq-alert"),
        clock: system_clock(),
    };
    serve_queue(|batch| handler.handle(batch)).await
}
