//! Runs whose runner is known to be gone: nobody has to wait until its leases end.

use ledgerline_ledger::control::keys::{self, DUE_SHARDS};

use super::RunRecord;
use crate::{
    Dispatch, DispatchError,
    conditional::{Answer, conditionally, number, text},
};

/// The end of any lease is nearer than this.
const LEASE_MAX_MS: u64 = 15 * 60_000;

impl Dispatch {
    /// Takes every run away from whoever has it; the next sweep sends them to the runners. For a process that knows that
    /// it is the only one. Answers how many there were.
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
