//! Notes how tasks of a job ended and counts it in the job, in one transaction, each end once.

use ledgerline_event::Name;
use ledgerline_outbox::ComponentError;
use ledgerline_store::{EndsCount, JobEnd, JobRecords, RequestRetry, back_off};

/// The most ends that one transaction counts.
const AT_ONCE: usize = 40;

/// An end, and whether the job counts the task as active.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub(super) end: JobEnd,
    pub(super) was_active: bool,
}

/// Counts ends that are not counted yet. What was counted before stays as it is.
pub(super) async fn count_ends(
    records: &JobRecords,
    tenant: &Name,
    job_id: &Name,
    ends: Vec<Counted>,
) -> Result<(), ComponentError> {
    for chunk in ends.chunks(AT_ONCE) {
        let mut rest: Vec<&Counted> = chunk.iter().collect();
        let mut retries = RequestRetry::default();
        while !rest.is_empty() {
            let together: Vec<_> = rest.iter().map(|counted| (&counted.end, counted.was_active)).collect();
            match records.count_ends(tenant, job_id, &together).await? {
                EndsCount::Applied => break,
                EndsCount::JobMissing => {
                    // The ends are noted: if the job is created again, it counts them.
                    tracing::error!(%tenant, %job_id, "tasks ended whose job has no record");
                    for counted in rest.drain(..) {
                        records.note_end(tenant, job_id, &counted.end).await?;
                    }
                }
                EndsCount::CountedBefore(positions) => {
                    let mut position = 0;
                    rest.retain(|_| {
                        position += 1;
                        !positions.contains(&(position - 1))
                    });
                }
                EndsCount::Busy(why) => back_off(&mut retries, why).await?,
            }
        }
    }
    Ok(())
}
