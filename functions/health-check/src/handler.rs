//! From a tick of the schedule to a check. The handler ignores the content of the tick.

use ledgerline_jobs::{HealthChecked, Thresholds};
use ledgerline_outbox::ComponentError;
use ledgerline_stage::Stage;

/// Checks tasks against the thresholds.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Handler {
    pub stage: Stage,
    pub thresholds: Thresholds,
}

impl Handler {
    /// Checks every tenant that has tasks under way.
    pub async fn handle(&self) -> Result<HealthChecked, ComponentError> {
        let checked = self.stage.health.check_health(&self.thresholds).await?;
        let tasks = &checked.tasks;
        tracing::info!(
            tenants = checked.tenants,
            processing = tasks.total_processing,
            warning = tasks.warning,
            critical = tasks.critical,
            overtime = tasks.overtime,
            given_back = checked.given_back,
            errors = checked.trouble,
            "health check finished"
        );
        Ok(checked)
    }
}
