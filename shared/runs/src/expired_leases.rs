//! Leases of runners that are known to have ended: breaking them saves the wait until they expire.

use crate::RunSweep;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{Conditional, keys::DUE_SHARDS};

/// Every lease expires within this time.
const LEASE_MAX_MS: u64 = 15 * 60_000;

impl RunSweep {
    /// Breaks every lease on a run; the next sweep enqueues these runs. Call only when
    /// no other process is running. Returns how many runs were held.
    pub async fn expire_run_leases(&self) -> Result<usize, ComponentError> {
        let mut broken = 0;
        for shard in 0..DUE_SHARDS {
            let until = self.emitter.now().plus(LEASE_MAX_MS);
            for key in self.due.all_due_runs(shard, until).await? {
                let broken_now = self.runs.records.break_lease(&key, self.emitter.now()).await?;
                if let Conditional::Done(_) = broken_now {
                    broken += 1;
                }
            }
        }
        Ok(broken)
    }
}
