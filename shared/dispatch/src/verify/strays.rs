//! Rows and jobs that are listed, and that no event knows. Lists are the only place where they can be found: nothing
//! else leads to a task that the ledger does not have.

use std::collections::BTreeMap;

use ledgerline_event::{JobState, Name, catalogue::TaskState};
use ledgerline_ledger::control::{
    Item,
    keys::{self, ControlKey},
};

use super::{
    difference::{Difference, Standing, What},
    fold::Folded,
    job_rows::JobRows,
};
use crate::{Dispatch, DispatchError, JobRecord, tasks::SummaryRow};

/// Rows of one read.
const PAGE: i32 = 1_000;

/// Rows and jobs that are listed and that no event knows so far.
#[derive(Default)]
pub(super) struct Strays {
    pub(super) rows: BTreeMap<Name, SummaryRow>,
    pub(super) jobs: BTreeMap<Name, JobRows>,
    /// Differences that are certain at once.
    pub(super) differences: Vec<Difference>,
}

impl Strays {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.jobs.is_empty() && self.differences.is_empty()
    }

    /// Something of another tenant is in a list of this one. It is not ours to touch.
    fn of_another(&mut self, entity_type: &'static str, key: ControlKey, list: &str) {
        self.differences.push(Difference {
            entity_type,
            entity_id: key.pk,
            difference: What::RowOfAnother,
            standing: Standing::Fault,
            detail: format!("is in {list}, which belongs to this tenant"),
        });
    }
}

impl Dispatch {
    /// Everything that is in the lists of a tenant and not in its ledger.
    pub(super) async fn strays(&self, tenant: &Name, folded: &Folded) -> Result<Strays, DispatchError> {
        let mut strays = Strays::default();
        for state in [TaskState::Pending, TaskState::Processing, TaskState::Completed, TaskState::Failed] {
            let list = keys::tasks_in(tenant, state.as_str());
            let mut before = None;
            loop {
                let (rows, next) = self.control.listed(&list, before, PAGE).await?;
                for key in rows.iter().filter_map(key_of) {
                    self.look_at_row(tenant, &list, key, folded, &mut strays).await?;
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
                let (rows, next) = self.control.listed(&list, before, PAGE).await?;
                for key in rows.iter().filter_map(key_of) {
                    self.look_at_job(tenant, &list, key, folded, &mut strays).await?;
                }
                before = next;
                if before.is_none() {
                    break;
                }
            }
        }
        Ok(strays)
    }

    async fn look_at_row(
        &self,
        tenant: &Name,
        list: &str,
        key: ControlKey,
        folded: &Folded,
        strays: &mut Strays,
    ) -> Result<(), DispatchError> {
        let id = key.pk.strip_prefix(&keys::task(tenant, ""));
        let id = id.and_then(|id| Name::stored("requestId", id).ok());
        if id.as_ref().is_some_and(|id| folded.tasks.contains_key(id) || strays.rows.contains_key(id)) {
            return Ok(());
        }
        // The list lags behind the row.
        let row = self.control.get::<SummaryRow>(&key).await?;
        let Some(row) = row.filter(|row| row.list_in.as_deref() == Some(list)) else { return Ok(()) };
        match id {
            Some(id) => drop(strays.rows.insert(id, row)),
            None => strays.of_another("TASK", key, list),
        }
        Ok(())
    }

    async fn look_at_job(
        &self,
        tenant: &Name,
        list: &str,
        key: ControlKey,
        folded: &Folded,
        strays: &mut Strays,
    ) -> Result<(), DispatchError> {
        let id = key.pk.strip_prefix(&keys::job_partition(tenant, ""));
        let Some(id) = id.and_then(|id| Name::stored("jobId", id).ok()) else {
            let job = self.control.get::<JobRecord>(&key).await?;
            if job.is_some_and(|job| job.list_in.as_deref() == Some(list)) {
                strays.of_another("JOB", key, list);
            }
            return Ok(());
        };
        if !folded.jobs.contains_key(&id) && !strays.jobs.contains_key(&id) {
            let (id, rows) = Box::pin(self.job_rows_of(tenant, &id, None)).await?;
            strays.jobs.insert(id, rows);
        }
        Ok(())
    }
}

fn key_of(row: &Item) -> Option<ControlKey> {
    let text = |name: &str| row.get(name)?.as_s().ok().cloned();
    Some(ControlKey { pk: text("PK")?, sk: text("SK")? })
}
