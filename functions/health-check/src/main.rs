//! Wires the check to the control table, the bus, the task queue and the webhook's parameter.

use health_check::Handler;
use lambda_runtime::{LambdaEvent, service_fn};
use ledgerline_dispatch::{DispatchOptions, Thresholds};
use ledgerline_lambda::Environment;
use ledgerline_ledger::required;
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    let environment = Environment::read().await?;
    let thresholds = Thresholds::of_seconds(
        ("HEALTH_WARNING_SECONDS", &required("HEALTH_WARNING_SECONDS")?),
        ("HEALTH_CRITICAL_SECONDS", &required("HEALTH_CRITICAL_SECONDS")?),
        ("HEALTH_OVERTIME_SECONDS", &required("HEALTH_OVERTIME_SECONDS")?),
    )?;
    let options = DispatchOptions {
        slack: Some(environment.slack()?),
        ..environment.dispatch_options(environment.metrics("health-check"))?
    };
    let handler = &Handler { dispatch: environment.dispatch(options)?, thresholds };
    let service = service_fn(|_: LambdaEvent<Value>| async move {
        handler.handle().await?;
        Ok::<_, lambda_runtime::Error>(())
    });
    lambda_runtime::run(service).await
}
