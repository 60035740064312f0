//! The records of one job, and whether they changed while they were read.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{JobEvent, Name, dag::task_entity};
use ledgerline_store::{
    JobListing, Repair, Row, StoreError,
    keys::{self, ControlKey},
};

use crate::Verify;
use crate::{fold::JobFold, records::ClaimStatus};
use ledgerline_drains::JOBS_DRAINER;
use ledgerline_jobs::{JobEnd, JobNode, JobRecord, TaskOutcome, TaskRecord};
use ledgerline_outbox::{ComponentError, Notice};

/// A job's records.
#[derive(Default)]
pub(crate) struct JobRows {
    pub(crate) record: Option<JobRecord>,
    /// The job as a claim: of its creation, or of its end.
    pub(crate) claim: Option<ClaimStatus>,
    pub(crate) nodes: BTreeMap<String, JobNode>,
    pub(crate) ends: BTreeMap<String, JobEnd>,
    /// Additions that were counted, by event.
    pub(crate) added: BTreeMap<String, ClaimStatus>,
    /// Tasks that were started and that the job has not seen end, by bare id.
    pub(crate) started: BTreeSet<String>,
    /// Those of them that the job counts as active.
    pub(crate) active: BTreeSet<String>,
    /// Events that the drainer `jobs` could not follow, and about which it emitted a notice.
    pub(crate) refused: BTreeSet<Name>,
    /// The claim of its last resume, if no event tells of that.
    pub(crate) resume: Option<ClaimStatus>,
    /// Whether the job changed while its records were read.
    pub(crate) moving: bool,
}

impl JobRows {
    /// The generation of a task whose end the job has counted; 0 if there is none.
    pub(crate) fn counted_generation(&self, task_id: &str) -> u32 {
        let counted = self.ends.get(task_id).filter(|end| end.counted);
        counted.map_or(0, |end| end.generation)
    }

    fn add(&mut self, row: Row) -> Result<(), StoreError> {
        let sk = row.key.sk.clone();
        let added = keys::job_addition("", "", "").sk;
        if let Some(task_id) = sk.strip_prefix(keys::NODES) {
            // The input may be large, and no check needs it.
            let node = JobNode { input: None, ..row.read()? };
            self.nodes.insert(task_id.to_owned(), node);
        } else if let Some(task_id) = sk.strip_prefix(keys::ENDS) {
            self.ends.insert(task_id.to_owned(), row.read()?);
        } else if let Some(event_id) = sk.strip_prefix(&added) {
            self.added.insert(event_id.to_owned(), row.read()?);
        } else if sk == keys::job("", "").sk {
            self.claim = Some(row.view()?);
            self.record = Some(row.read()?);
        }
        Ok(())
    }
}

impl Verify {
    /// Everything that is stored of a job.
    pub(crate) async fn job_rows_of(
        &self,
        tenant: &Name,
        id: &Name,
        job: Option<&JobFold>,
    ) -> Result<(Name, JobRows), ComponentError> {
        let mut rows = JobRows::default();
        let before = self.jobs.records.get(tenant, id).await?;
        let partition = keys::job_partition(tenant, id);
        self.rows.read_partition(&partition, |row| rows.add(row)).await?;
        self.read_started(tenant, id, job, &mut rows).await?;
        let events = job.map(|job| job.events.as_slice()).unwrap_or_default();
        for event in events {
            let followed = match event.kind {
                JobEvent::Created => {
                    rows.record.as_ref().is_some_and(|record| record.created_by == event.event_id)
                }
                JobEvent::TasksAdded => rows.added.contains_key(event.event_id.as_str()),
                JobEvent::Completed | JobEvent::FailureDetected | JobEvent::Resumed => true,
            };
            let notice = keys::notice_claim(tenant, &event.sk, JOBS_DRAINER, 0, "", Notice::Failed.claim());
            if !followed && self.outbox.claim_exists(&notice).await? {
                rows.refused.insert(event.event_id.clone());
            }
        }
        let resumes = events.iter().map(|event| event.history.generation()).fold(1, u32::max);
        if let Some(generation) = rows.record.as_ref().map(|job| job.generation).filter(|own| *own > resumes)
        {
            rows.resume = self.rows.get(&keys::job_resume_claim(tenant, id, generation)).await?;
        }
        let after = self.jobs.records.get(tenant, id).await?;
        rows.moving = before.as_ref().map(changing_fields) != after.as_ref().map(changing_fields);
        Ok((id.clone(), rows))
    }

    /// Which tasks have begun a generation that the job has not seen end.
    async fn read_started(
        &self,
        tenant: &Name,
        id: &Name,
        job: Option<&JobFold>,
        rows: &mut JobRows,
    ) -> Result<(), ComponentError> {
        let defined =
            job.into_iter().flat_map(|job| &job.events).flat_map(|event| event.history.tasks().keys());
        let tasks: BTreeSet<&String> = defined.chain(rows.nodes.keys()).chain(rows.ends.keys()).collect();
        // A completed task never begins again.
        let open = tasks.into_iter().filter(|task| {
            !rows.ends.get(*task).is_some_and(|end| end.counted && end.outcome == TaskOutcome::Completed)
        });
        let mut wanted: BTreeMap<(String, String), (ControlKey, &String)> = BTreeMap::new();
        for task in open {
            // One whose id is too long was refused, and has no record.
            let Ok(entity) = task_entity(id, task) else { continue };
            let generation = rows.counted_generation(task).saturating_add(1);
            let key = keys::task_record(tenant, &entity, generation);
            wanted.insert((key.pk.clone(), key.sk.clone()), (key, task));
        }
        let wanted_keys: Vec<ControlKey> = wanted.values().map(|(key, _)| key.clone()).collect();
        let (mut started, mut active) = (BTreeSet::new(), BTreeSet::new());
        for row in self.rows.get_all(&wanted_keys).await? {
            let key = (row.key.pk.clone(), row.key.sk.clone());
            let Some((_, task)) = wanted.get(&key) else { continue };
            if row.read::<TaskRecord>()?.in_job {
                active.insert((*task).clone());
            }
            started.insert((*task).clone());
        }
        (rows.started, rows.active) = (started, active);
        Ok(())
    }

    /// Puts a job into the list of its state.
    pub(crate) async fn relist_job(&self, tenant: &Name, job: &JobRecord) -> Result<Repair, ComponentError> {
        let listing = JobListing {
            job: &keys::job(tenant, &job.job_id),
            is_completed: job.completed_at.is_some(),
            failed: job.failed,
            active: job.active,
            list: &job.list(tenant),
            place: &place_of(job),
        };
        Ok(self.repairs.relist_job(listing).await?)
    }
}

/// Where in its list a job belongs.
pub(crate) fn place_of(job: &JobRecord) -> String {
    format!("{}#{}", job.created_at, job.job_id)
}

/// The fields that change whenever anything happens to a job: two reads compare them.
fn changing_fields(job: &JobRecord) -> impl PartialEq {
    let counts = (job.total, job.done, job.failed, job.active, job.generation);
    (counts, job.completed_at, job.list_in.clone(), job.laid_out)
}
