//! What is stored of one job, read so that it can be told whether it moved meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{JobEvent, Name, dag::task_entity};
use ledgerline_ledger::{
    StoreError,
    control::{
        Item,
        keys::{self, ControlKey},
        read,
    },
};

use super::{fold::JobFold, records::Stamp};
use crate::{
    Dispatch, DispatchError, JOBS_DRAINER, JobRecord,
    conditional::{Answer, conditionally, number, text},
    jobs::{JobEnd, JobNode, Outcome},
    notice::Notice,
    tasks::TaskRecord,
};

/// A job's records.
#[derive(Default)]
pub(super) struct JobRows {
    pub(super) record: Option<JobRecord>,
    /// The job as a claim: of its creation, or of its end.
    pub(super) stamp: Option<Stamp>,
    pub(super) nodes: BTreeMap<String, JobNode>,
    pub(super) ends: BTreeMap<String, JobEnd>,
    /// Additions that were counted, by event.
    pub(super) added: BTreeMap<String, Stamp>,
    /// Tasks that were started and that the job has not seen end, by bare id.
    pub(super) started: BTreeSet<String>,
    /// Those of them that the job counts as active.
    pub(super) active: BTreeSet<String>,
    /// Events that could not be followed, and of which that was told.
    pub(super) refused: BTreeSet<Name>,
    /// The claim of its last resume, if no event tells of that.
    pub(super) resume: Option<Stamp>,
    /// Whether it changed while it was read.
    pub(super) moving: bool,
}

impl JobRows {
    /// The generation of a task whose end the job has counted; 0 if there is none.
    pub(super) fn counted_generation(&self, task_id: &str) -> u32 {
        let counted = self.ends.get(task_id).filter(|end| end.counted);
        counted.map_or(0, |end| end.generation)
    }

    fn take_in(&mut self, sk: &str, item: Item) -> Result<(), StoreError> {
        let added = keys::job_addition("", "", "").sk;
        if let Some(task_id) = sk.strip_prefix(keys::NODES) {
            // What a task is given is of no interest here, and may be large.
            let node = JobNode { input: None, ..read(item)? };
            self.nodes.insert(task_id.to_owned(), node);
        } else if let Some(task_id) = sk.strip_prefix(keys::ENDS) {
            self.ends.insert(task_id.to_owned(), read(item)?);
        } else if let Some(event_id) = sk.strip_prefix(&added) {
            self.added.insert(event_id.to_owned(), read(item)?);
        } else if sk == keys::job("", "").sk {
            self.stamp = Some(read(item.clone())?);
            self.record = Some(read(item)?);
        }
        Ok(())
    }
}

impl Dispatch {
    /// Everything that is stored of a job.
    pub(super) async fn job_rows_of(
        &self,
        tenant: &Name,
        id: &Name,
        job: Option<&JobFold>,
    ) -> Result<(Name, JobRows), DispatchError> {
        let mut rows = JobRows::default();
        let before = self.job_record(tenant, id).await?;
        let mut pages = self.control.partition(&keys::job_partition(tenant, id)).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| StoreError::new("Query", error))?;
            for item in page.items.unwrap_or_default() {
                let Some(sk) = item.get("SK").and_then(|sk| sk.as_s().ok()).cloned() else { continue };
                rows.take_in(&sk, item)?;
            }
        }
        self.read_started(tenant, id, job, &mut rows).await?;
        let told = job.map(|job| job.told.as_slice()).unwrap_or_default();
        for told in told {
            let followed = match told.kind {
                JobEvent::Created => {
                    rows.record.as_ref().is_some_and(|record| record.created_by == told.event_id)
                }
                JobEvent::TasksAdded => rows.added.contains_key(told.event_id.as_str()),
                JobEvent::Completed | JobEvent::FailureDetected | JobEvent::Resumed => true,
            };
            let notice = keys::notice_claim(tenant, &told.sk, JOBS_DRAINER, 0, "", Notice::Failed.claim());
            if !followed && self.claim_there(&notice).await? {
                rows.refused.insert(told.event_id.clone());
            }
        }
        let resumes = told.iter().map(|told| told.history.generation()).fold(1, u32::max);
        if let Some(generation) = rows.record.as_ref().map(|job| job.generation).filter(|own| *own > resumes)
        {
            rows.resume = self.control.get(&keys::job_resume_claim(tenant, id, generation)).await?;
        }
        let after = self.job_record(tenant, id).await?;
        rows.moving = before.as_ref().map(face) != after.as_ref().map(face);
        Ok((id.clone(), rows))
    }

    /// Which tasks have begun a generation that the job has not seen end.
    async fn read_started(
        &self,
        tenant: &Name,
        id: &Name,
        job: Option<&JobFold>,
        rows: &mut JobRows,
    ) -> Result<(), DispatchError> {
        let told = job.into_iter().flat_map(|job| &job.told).flat_map(|told| told.history.tasks().keys());
        let tasks: BTreeSet<&String> = told.chain(rows.nodes.keys()).chain(rows.ends.keys()).collect();
        // What is completed never begins again.
        let open = tasks.into_iter().filter(|task| {
            !rows.ends.get(*task).is_some_and(|end| end.counted && end.outcome == Outcome::Completed)
        });
        let mut wanted: BTreeMap<(String, String), &String> = BTreeMap::new();
        for task in open {
            // One whose id is too long was refused, and has no record.
            let Ok(entity) = task_entity(id, task) else { continue };
            let generation = rows.counted_generation(task).saturating_add(1);
            let ControlKey { pk, sk } = keys::task_record(tenant, &entity, generation);
            wanted.insert((pk, sk), task);
        }
        let wanted_keys: Vec<ControlKey> =
            wanted.keys().map(|(pk, sk)| ControlKey { pk: pk.clone(), sk: sk.clone() }).collect();
        let (mut started, mut active) = (BTreeSet::new(), BTreeSet::new());
        for item in self.control.get_all(&wanted_keys).await? {
            let text = |name: &str| item.get(name)?.as_s().ok().cloned();
            let task = text("PK").zip(text("SK")).and_then(|key| wanted.get(&key));
            let Some(task) = task.map(|task| (*task).clone()) else { continue };
            if read::<TaskRecord>(item)?.in_job {
                active.insert(task.clone());
            }
            started.insert(task);
        }
        (rows.started, rows.active) = (started, active);
        Ok(())
    }

    /// Puts a job into the list of its state, on condition that it is as it was read; `false` if it is not.
    pub(super) async fn relist_job(&self, tenant: &Name, job: &JobRecord) -> Result<bool, DispatchError> {
        let completed = match job.completed_at {
            None => "attribute_not_exists(completedAt)",
            Some(_) => "attribute_exists(completedAt)",
        };
        let update = self
            .control
            .update(&keys::job(tenant, &job.job_id))
            .update_expression("SET listIn = :list, listAt = :place")
            .condition_expression(format!("{completed} AND failed = :failed AND active = :active"))
            .expression_attribute_values(":list", text(&job.list(tenant)))
            .expression_attribute_values(":place", text(&place_of(job)))
            .expression_attribute_values(":failed", number(job.failed.into()))
            .expression_attribute_values(
                ":active",
                aws_sdk_dynamodb::types::AttributeValue::N(job.active.to_string()),
            );
        Ok(matches!(conditionally::<JobRecord>(update).await?, Answer::Done(_)))
    }
}

/// Where in its list a job belongs.
pub(super) fn place_of(job: &JobRecord) -> String {
    format!("{}#{}", job.created_at, job.job_id)
}

/// What changes with everything that happens to a job.
fn face(job: &JobRecord) -> impl PartialEq {
    let counts = (job.total, job.done, job.failed, job.active, job.generation);
    (counts, job.completed_at, job.list_in.clone(), job.laid_out)
}
