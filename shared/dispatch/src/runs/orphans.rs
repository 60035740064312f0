//! Runs whose runner is known to be gone: breaking its leases saves the wait until they expire.

use ledgerline_ledger::control::keys::{self, DUE_SHARDS};

use super::RunRecord;
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number, text},
};

/// Every lease expires within this time.
const LEASE_MAX_MS: u64 = 15 * 60_000;

impl Dispatch {
    /// Takes every run away from its runner; the next sweep sends these runs to the runners. Call only when
    /// no other process is running. Answers how many runs were held.
    pub async fn break_run_leases(&self) -> Result<usize, DispatchError> {
        let mut broken = 0;
        for shard in 0..DUE_SHARDS {
            let until = self.now().plus(LEASE_MAX_MS);
            for key in self.control.all_due(&keys::run_due_shard(shard), until).await? {
                if key.sk != keys::RUN {
                    continue;
                }
                let update = self
                    .control
                    .update(&key)
                    .update_expression("SET dueShard = :dueShard, dueAt = :now REMOVE leaseOwner, leaseUntil")
                    .condition_expression("attribute_exists(leaseOwner)")
                    .expression_attribute_values(":dueShard", text(&keys::run_due_shard_of(&key)))
                    .expression_attribute_values(":now", number(self.now().get()));
                if let Answer::Done(_) = conditionally::<RunRecord>(update).await? {
                    broken += 1;
                }
            }
        }
        Ok(broken)
    }
}
