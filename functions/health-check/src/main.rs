//! Wires the check to the control table, the bus, the task queue and the webhook's parameter.

use health_check::Handler;
use ledgerline_jobs::Thresholds;
use ledgerline_lambda::{Environment, serve};
use ledgerline_ledger::required;
use ledgerline_stage::StageOptions;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    let environment = Environment::read().await?;
    let thresholds = Thresholds::of_seconds(
        ("HEALTH_WARNING_SECONDS", &required("HEALTH_WARNING_SECONDS")?),
        ("HEALTH_CRITICAL_SECONDS", &required("HEALTH_CRITICAL_SECONDS")?),
        ("HEALTH_OVERTIME_SECONDS", &required("HEALTH_OVERTIME_SECONDS")?),
    )?;
    let options = StageOptions {
        slack: Some(environment.slack()?),
        ..environment.stage_options(environment.metrics("health-check"))?
    };
    let handler = &Handler { stage: environment.stage(options)?, thresholds };
    serve(|_| async { handler.handle().await.map(drop) }).await
}
