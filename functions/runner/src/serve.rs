//! The one call that a program with workflows makes.

use ledgerline_workflow::Workflows;

use crate::{lambda, process};

/// Why a runner did not start, or ended.
pub type ServeError = anyhow::Error;

/// Executes runs of `workflows` until it is stopped: on Lambda as the function that the run queue calls, anywhere else
/// as a process, whose command line says where the runs are (`--help`).
///
/// Call it once, from `main`: it sets up the log unless there is one, and reads the command line.
pub async fn serve(workflows: Workflows) -> Result<(), ServeError> {
    if std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
        return Box::pin(lambda::serve(workflows)).await;
    }
    Box::pin(process::serve(workflows)).await
}
