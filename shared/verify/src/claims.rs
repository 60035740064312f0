//! Claims about tasks and jobs whose effects were not sent in time.

use ledgerline_event::{Millis, Name};
use ledgerline_store::{
    Claims, Rows,
    keys::{self, DUE_SHARDS},
};

use crate::{
    difference::{Difference, DifferenceKind, Standing},
    records::ClaimStatus,
};
use ledgerline_outbox::{ClaimState, ComponentError, RESUMED_AFTER_MS};

/// Claims of one shard that are looked at.
const LOOKED_AT: i32 = 1_000;
/// One that could not be sent waits this long for the next attempt, and is found all the same.
const POSTPONED_MS: u64 = 5 * 60_000;
/// Every sweep repeats what is due, and one comes every two minutes.
const SWEPT_MS: u64 = 5 * 60_000;

/// Claims that should have been finished by now.
pub(crate) async fn overdue_claims(
    claims: &Claims,
    rows: &Rows,
    tenant: &Name,
    now: Millis,
) -> Result<Vec<Difference>, ComponentError> {
    let task = keys::task(tenant, "");
    let job = keys::job_partition(tenant, "");
    let claim_of_job = keys::job_resume_claim(tenant, "", 0).pk;
    let mut differences = Vec::new();
    for shard in 0..DUE_SHARDS {
        for key in claims.due(&keys::due_shard(shard), now.plus(POSTPONED_MS), LOOKED_AT).await? {
            let of_task = key.pk.strip_prefix(&task);
            let of_job = key.pk.strip_prefix(&job).or_else(|| key.pk.strip_prefix(&claim_of_job));
            if of_task.or(of_job).is_none() {
                continue;
            }
            // The index lags behind the table.
            let Some(status) = rows.get::<ClaimStatus>(&key).await? else { continue };
            let pending = status.claimed_at.filter(|_| status.state == Some(ClaimState::Pending));
            let Some(claimed_at) = pending.filter(|at| at.plus(RESUMED_AFTER_MS) <= now) else {
                continue;
            };
            let standing = Standing::fault_unless(claimed_at.plus(RESUMED_AFTER_MS + SWEPT_MS) > now);
            let detail = format!("claimed at {}, and not sent yet: {}", claimed_at.to_rfc3339(), key.sk);
            differences.extend(
                of_task.map(|id| {
                    Difference::of_task(id, DifferenceKind::ClaimOverdue, standing, detail.clone())
                }),
            );
            differences.extend(
                of_job.map(|id| Difference::of_job(id, DifferenceKind::ClaimOverdue, standing, detail)),
            );
        }
    }
    Ok(differences)
}
