//! Rows and jobs that are listed, and that no event knows. Lists are the only place where they can be found: nothing
//! else leads to a task that the ledger does not have.

use std::collections::BTreeMap;

use ledgerline_event::{JobState, Name, catalogue::TaskState};
use ledgerline_store::{
    ListedKeys,
    keys::{self, ControlKey},
};

use crate::Verify;
use crate::{
    difference::{Difference, DifferenceKind, Standing},
    fold::Folded,
    job_rows::JobRows,
};
use ledgerline_jobs::{JobRecord, SummaryRow};
use ledgerline_outbox::ComponentError;

/// Rows of one read.
const PAGE: i32 = 1_000;

/// Rows and jobs that are listed and that no event knows so far.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(crate) rows: BTreeMap<Name, SummaryRow>,
    pub(crate) jobs: BTreeMap<Name, JobRows>,
    /// Differences that are certain at once.
    pub(crate) differences: Vec<Difference>,
}

impl Orphans {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.jobs.is_empty() && self.differences.is_empty()
    }

    /// Reports a row of another tenant in a list of this one. Verifying this tenant must not change it.
    fn of_other_tenant(&mut self, entity_type: &'static str, key: ControlKey, list: &str) {
        self.differences.push(Difference {
            entity_type,
            entity_id: key.pk,
            difference: DifferenceKind::RowOfOtherTenant,
            standing: Standing::Fault,
            detail: format!("is in {list}, which belongs to this tenant"),
        });
    }
}

impl Verify {
    /// Everything that is in the lists of a tenant and not in its ledger.
    pub(crate) async fn orphans(&self, tenant: &Name, folded: &Folded) -> Result<Orphans, ComponentError> {
        let mut orphans = Orphans::default();
        for state in [TaskState::Pending, TaskState::Processing, TaskState::Completed, TaskState::Failed] {
            let list = keys::tasks_in(tenant, state.as_str());
            let mut before = None;
            loop {
                let ListedKeys { keys, next } = self.rows.listed(&list, before, PAGE).await?;
                for key in keys {
                    self.look_at_row(tenant, &list, key, folded, &mut orphans).await?;
                }
                before = next;
                if before.is_none() {
                    break;
                }
            }
        }
        for state in [JobState::Running, JobState::Failing, JobState::Failed, JobState::Completed] {
            let list = keys::jobs_in(tenant, state.as_str());
            let mut before = None;
            loop {
                let ListedKeys { keys, next } = self.rows.listed(&list, before, PAGE).await?;
                for key in keys {
                    self.look_at_job(tenant, &list, key, folded, &mut orphans).await?;
                }
                before = next;
                if before.is_none() {
                    break;
                }
            }
        }
        Ok(orphans)
    }

    async fn look_at_row(
        &self,
        tenant: &Name,
        list: &str,
        key: ControlKey,
        folded: &Folded,
        orphans: &mut Orphans,
    ) -> Result<(), ComponentError> {
        let id = key.pk.strip_prefix(&keys::task(tenant, ""));
        let id = id.and_then(|id| Name::stored("requestId", id).ok());
        if id.as_ref().is_some_and(|id| folded.tasks.contains_key(id) || orphans.rows.contains_key(id)) {
            return Ok(());
        }
        // The list lags behind the row.
        let row = self.rows.get::<SummaryRow>(&key).await?;
        let Some(row) = row.filter(|row| row.list_in.as_deref() == Some(list)) else { return Ok(()) };
        match id {
            Some(id) => drop(orphans.rows.insert(id, row)),
            None => orphans.of_other_tenant("TASK", key, list),
        }
        Ok(())
    }

    async fn look_at_job(
        &self,
        tenant: &Name,
        list: &str,
        key: ControlKey,
        folded: &Folded,
        orphans: &mut Orphans,
    ) -> Result<(), ComponentError> {
        let id = key.pk.strip_prefix(&keys::job_partition(tenant, ""));
        let Some(id) = id.and_then(|id| Name::stored("jobId", id).ok()) else {
            let job = self.rows.get::<JobRecord>(&key).await?;
            if job.is_some_and(|job| job.list_in.as_deref() == Some(list)) {
                orphans.of_other_tenant("JOB", key, list);
            }
            return Ok(());
        };
        if !folded.jobs.contains_key(&id) && !orphans.jobs.contains_key(&id) {
            let (id, rows) = Box::pin(self.job_rows_of(tenant, &id, None)).await?;
            orphans.jobs.insert(id, rows);
        }
        Ok(())
    }
}
