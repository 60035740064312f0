//! Waiting for the end of a run. A waiter polls the run, and is notified at once if the run ends in this process.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ledgerline_event::Name;
use ledgerline_ledger::control::keys;
use tokio::{sync::Notify, time::Instant};

use super::RunRecord;
use crate::{Dispatch, DispatchError};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A waiter learns at most this late that a run has ended in another process.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The waiters in this process, by the run that they wait for.
#[derive(Default)]
pub(crate) struct Ends(Mutex<HashMap<String, Arc<Notify>>>);

impl Ends {
    fn bell(&self, run: &str) -> Arc<Notify> {
        let mut bells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop the bells that no waiter holds any more.
        if bells.len() > 100 {
            bells.retain(|_, bell| Arc::strong_count(bell) > 1);
        }
        bells.entry(run.to_owned()).or_default().clone()
    }

    /// Notifies the waiters of a run that has ended.
    pub(super) fn ring(&self, tenant: &str, run_id: &str) {
        let run = keys::run_partition(tenant, run_id);
        let bell = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
        if let Some(bell) = bell {
            bell.notify_waiters();
        }
    }
}

impl Dispatch {
    /// Waits until a run has ended, or for as long as `within`. It polls the run, ever more rarely.
    pub async fn wait_for_run(
        &self,
        tenant: &Name,
        run_id: &str,
        within: Duration,
    ) -> Result<RunRecord, DispatchError> {
        let until = Instant::now() + within;
        let mut pause = FIRST_PAUSE;
        loop {
            let bell = self.run_ends.bell(&keys::run_partition(tenant, run_id));
            let mut rung = pin!(bell.notified());
            // From here on this waiter hears the bell, so it does not miss an end that comes after the read.
            rung.as_mut().enable();
            let run = self.known_run(tenant, run_id).await?;
            if run.state.is_terminal() || Instant::now() >= until {
                return Ok(run);
            }
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep_until(until.min(Instant::now() + pause)) => {}
            }
            pause = (pause * 5 / 4).min(LONGEST_PAUSE);
        }
    }
}
