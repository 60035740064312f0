//! What the watches of tasks, jobs and runs have in common: Ctrl-C leaves them, and a few polls may get no answer.

use std::process::ExitCode;

use ledgerline_outbox::ComponentError;

/// The exit code of a program that was ended by Ctrl-C.
const INTERRUPTED: u8 = 130;
/// How many polls in a row may get no answer before the watch gives up.
const MAX_FAILED_POLLS: u32 = 10;

/// Watches until `watch` ends or the user interrupts it; then prints `how_to_return`.
pub(super) async fn until_interrupted(
    watch: impl Future<Output = anyhow::Result<ExitCode>>,
    how_to_return: String,
) -> anyhow::Result<ExitCode> {
    tokio::select! {
        ended = watch => ended,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            eprintln!("\n{how_to_return}");
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// Counts polls without an answer. What is watched goes on without the watch, so a few of them do no harm.
#[derive(Default)]
pub(super) struct FailedPolls(u32);

impl FailedPolls {
    /// The answer of a poll; `None`: there was none, poll again.
    pub(super) fn tolerate<T>(
        &mut self,
        answer: Result<T, ComponentError>,
    ) -> Result<Option<T>, ComponentError> {
        match answer {
            Ok(answer) => {
                self.0 = 0;
                Ok(Some(answer))
            }
            Err(ComponentError::Store(error)) if self.0 < MAX_FAILED_POLLS => {
                tracing::warn!(%error, "no answer; polling again");
                self.0 += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
