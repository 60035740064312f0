//! Waiting for the end of a run. A waiter polls the run, and is notified at once if the run ends in this process.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ledgerline_event::Name;
use ledgerline_store::keys;
use tokio::{sync::Notify, time::Instant};

use super::RunRecord;
use crate::Runs;
use ledgerline_outbox::ComponentError;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A waiter learns at most this late that a run has ended in another process.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The waiters in this process, by the run that they wait for.
#[derive(Default)]
pub(crate) struct CompletionNotifier(Mutex<HashMap<String, Arc<Notify>>>);

impl CompletionNotifier {
    fn notifier(&self, run: &str) -> Arc<Notify> {
        let mut notifiers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop the notifiers that no waiter holds any more.
        if notifiers.len() > 100 {
            notifiers.retain(|_, notifier| Arc::strong_count(notifier) > 1);
        }
        notifiers.entry(run.to_owned()).or_default().clone()
    }

    /// Notifies the waiters of a run that has ended.
    pub(crate) fn notify(&self, tenant: &str, run_id: &str) {
        let run = keys::run_partition(tenant, run_id);
        let notifier = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
        if let Some(notifier) = notifier {
            notifier.notify_waiters();
        }
    }
}

impl Runs {
    /// Waits until a run has ended, or for as long as `within`. It polls the run, ever more rarely.
    pub async fn wait_for_run(
        &self,
        tenant: &Name,
        run_id: &str,
        within: Duration,
    ) -> Result<RunRecord, ComponentError> {
        let until = Instant::now() + within;
        let mut pause = FIRST_PAUSE;
        loop {
            let notifier = self.logs.completions.notifier(&keys::run_partition(tenant, run_id));
            let mut notified = pin!(notifier.notified());
            // From here on this waiter is registered, so it does not miss an end that comes after the read.
            notified.as_mut().enable();
            let run = self.logs.known_run(tenant, run_id).await?;
            if run.state.is_terminal() || Instant::now() >= until {
                return Ok(run);
            }
            tokio::select! {
                () = notified => {}
                () = tokio::time::sleep_until(until.min(Instant::now() + pause)) => {}
            }
            pause = (pause * 5 / 4).min(LONGEST_PAUSE);
        }
    }
}
