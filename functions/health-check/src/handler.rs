//! From a tick of the schedule to a check. What the tick says does not matter.

use ledgerline_dispatch::{Dispatch, DispatchError, HealthChecked, Thresholds};

/// What the function needs.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Handler {
    pub dispatch: Dispatch,
    pub thresholds: Thresholds,
}

impl Handler {
    /// Checks every tenant that has tasks under way.
    pub async fn handle(&self) -> Result<HealthChecked, DispatchError> {
        let checked = self.dispatch.check_health(&self.thresholds).await?;
        let tasks = &checked.tasks;
        tracing::info!(
            tenants = checked.tenants,
            processing = tasks.total_processing,
            warning = tasks.warning,
            critical = tasks.critical,
            overtime = tasks.overtime,
            given_back = checked.given_back,
            trouble = checked.trouble,
            "checked"
        );
        Ok(checked)
    }
}
