//! One comparison, from the first read to the list of differences.
//!
//! The ledger grows while it is compared, and the order of the reads keeps that from looking like a fault. First comes
//! the cursor of `jobs`: everything up to there must be in the rows. Then the time line is read, then the rows. Rows
//! that do not agree become suspects, and everything that was saved meanwhile is read for them: nothing else can be in
//! a row. So a right row holds at least what was settled at the beginning and at most what the ledger has at the end. A
//! row that does not is wrong, however busy its task is.

use futures::{FutureExt, StreamExt, stream};
use ledgerline_event::{Millis, Name};

use crate::Verify;
use crate::{
    Difference,
    claims::overdue_claims,
    difference::{Mode, Verified},
    fold::{Folded, SettledUpTo},
    job_rows::JobRows,
    jobs,
    orphans::Orphans,
    records::StoredTask,
    rows,
};
use ledgerline_drains::JOBS_DRAINER;
use ledgerline_outbox::ComponentError;

/// What was saved or sent this recently may still be on its way to the next reader.
pub(crate) const RECENT_MS: u64 = 60_000;
/// Tasks whose rows are read in one go: three rows each, and DynamoDB takes a hundred keys.
pub(crate) const TASKS_AT_ONCE: usize = 33;
/// The most reads at the same time.
pub(crate) const MAX_CONCURRENT: usize = 8;

/// How far a comparison is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VerifyProgress {
    /// The time line is read: so many events, up to this time.
    Events { read: u64, at: Millis },
    /// Rows and records are compared.
    Tasks { compared: u64, of: u64 },
    /// The same for jobs.
    Jobs { compared: u64, of: u64 },
    /// And for runs.
    Runs { compared: u64, of: u64 },
}

/// Receives the progress of a comparison.
pub(crate) type Progress<'a> = &'a mut (dyn FnMut(VerifyProgress) + Send);

/// Entities that differ from the ledger at first sight.
#[derive(Default)]
pub(crate) struct Suspects {
    tasks: Vec<(Name, StoredTask)>,
    jobs: Vec<(Name, JobRows)>,
    orphans: Orphans,
}

impl Verify {
    /// Compares what is stored of a tenant's tasks, jobs and runs with its ledger.
    pub async fn verify(
        &self,
        tenant: &Name,
        mode: Mode,
        progress: Progress<'_>,
    ) -> Result<Verified, ComponentError> {
        let now = self.emitter.now();
        let settled = self.settled(tenant, now).await?;
        let mut folded = Folded::default();
        self.fold_ledger(tenant, "", &settled, &mut folded, progress).await?;
        let (tasks, jobs, events) = (folded.tasks.len() as u64, folded.jobs.len() as u64, folded.events);

        let mut suspects = Suspects {
            tasks: self.suspect_tasks(tenant, &folded, now, progress).await?,
            jobs: self.suspect_jobs(tenant, &folded, now, progress).await?,
            orphans: Box::pin(self.orphans(tenant, &folded)).await?,
        };
        let mut differences = Box::pin(overdue_claims(&self.claims, &self.rows, tenant, now)).await?;
        let (runs, of_runs) = Box::pin(self.compare_runs(tenant, &folded, now, mode, progress)).await?;
        differences.extend(of_runs);
        if !suspects.is_empty() {
            self.fold_since(tenant, &settled, &mut folded).await?;
            differences.append(&mut suspects.orphans.differences);
            differences.extend(Box::pin(self.judge_tasks(tenant, suspects.tasks, &folded, now, mode)).await?);
            differences.extend(Box::pin(self.judge_jobs(tenant, suspects.jobs, &folded, now, mode)).await?);
            differences
                .extend(Box::pin(self.judge_orphans(tenant, suspects.orphans, &folded, now, mode)).await?);
        }
        differences.sort();
        Ok(Verified { tasks, jobs, runs, events, differences })
    }

    /// Tasks whose rows or records are not what the ledger has told so far.
    async fn suspect_tasks(
        &self,
        tenant: &Name,
        folded: &Folded,
        now: Millis,
        progress: Progress<'_>,
    ) -> Result<Vec<(Name, StoredTask)>, ComponentError> {
        let ids: Vec<&Name> = folded.tasks.keys().collect();
        let reads = ids.chunks(TASKS_AT_ONCE).map(|some| self.task_rows(tenant, some, folded).boxed());
        let mut reads = stream::iter(reads).buffer_unordered(MAX_CONCURRENT);
        let (mut suspects, mut compared) = (Vec::new(), 0);
        while let Some(read) = reads.next().await {
            for (id, rows) in read? {
                compared += 1;
                if !rows.differences(tenant, &id, folded, now).is_empty() {
                    suspects.push((id, rows));
                }
            }
            progress(VerifyProgress::Tasks { compared, of: ids.len() as u64 });
        }
        Ok(suspects)
    }

    /// Jobs that are not what the ledger has told so far.
    async fn suspect_jobs(
        &self,
        tenant: &Name,
        folded: &Folded,
        now: Millis,
        progress: Progress<'_>,
    ) -> Result<Vec<(Name, JobRows)>, ComponentError> {
        let reads = folded.jobs.iter().map(|(id, job)| self.job_rows_of(tenant, id, Some(job)).boxed());
        let of = folded.jobs.len() as u64;
        let mut reads = stream::iter(reads).buffer_unordered(MAX_CONCURRENT);
        let (mut suspects, mut compared) = (Vec::new(), 0);
        while let Some(read) = reads.next().await {
            let (id, rows) = read?;
            compared += 1;
            if !jobs::differences(tenant, &id, &rows, folded, now).is_empty() {
                suspects.push((id, rows));
            }
            progress(VerifyProgress::Jobs { compared, of });
        }
        Ok(suspects)
    }

    async fn judge_tasks(
        &self,
        tenant: &Name,
        suspects: Vec<(Name, StoredTask)>,
        folded: &Folded,
        now: Millis,
        mode: Mode,
    ) -> Result<Vec<Difference>, ComponentError> {
        let mut differences = Vec::new();
        for (id, rows) in suspects {
            for mut difference in rows.differences(tenant, &id, folded, now) {
                if difference.is_rebuilt_in(mode) {
                    let made = self.rebuild_row(tenant, &id, rows.summary.as_ref(), folded, now).await?;
                    difference.rebuilt(made);
                }
                differences.push(difference);
            }
        }
        Ok(differences)
    }

    async fn judge_jobs(
        &self,
        tenant: &Name,
        suspects: impl IntoIterator<Item = (Name, JobRows)>,
        folded: &Folded,
        now: Millis,
        mode: Mode,
    ) -> Result<Vec<Difference>, ComponentError> {
        let mut differences = Vec::new();
        for (id, rows) in suspects {
            for mut difference in jobs::differences(tenant, &id, &rows, folded, now) {
                if let (true, Some(record)) = (difference.is_rebuilt_in(mode), &rows.record) {
                    difference.rebuilt(self.relist_job(tenant, record).await?);
                }
                differences.push(difference);
            }
        }
        Ok(differences)
    }

    /// Rows and jobs that were listed though no event was about them. If there is such an event by now, the row is only
    /// as new as that event, and no fault.
    async fn judge_orphans(
        &self,
        tenant: &Name,
        orphans: Orphans,
        folded: &Folded,
        now: Millis,
        mode: Mode,
    ) -> Result<Vec<Difference>, ComponentError> {
        let mut differences = Vec::new();
        for (id, row) in orphans.rows {
            let Some(mut difference) = rows::orphan(&id, &row, folded, now) else { continue };
            if difference.is_rebuilt_in(mode) {
                difference.rebuilt(self.delete_row(tenant, &id, &row).await?);
            }
            differences.push(difference);
        }
        differences.extend(self.judge_jobs(tenant, orphans.jobs, folded, now, mode).await?);
        Ok(differences)
    }

    /// Which events `jobs` must have handled by now.
    async fn settled(&self, tenant: &Name, now: Millis) -> Result<SettledUpTo, ComponentError> {
        let drainer = Name::new("drainerId", JOBS_DRAINER)?;
        let record = self.drains.drain_state(tenant, &drainer).await?.unwrap_or_default();
        let undrained = self.late_arrivals.events_after(tenant, &record.late_cursor).await?;
        Ok(SettledUpTo {
            cursor: record.cursor,
            late_cursor: record.late_cursor,
            undrained: undrained.into_iter().collect(),
            saved_before: now.minus(RECENT_MS),
        })
    }
}

impl Suspects {
    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.jobs.is_empty() && self.orphans.is_empty()
    }
}
