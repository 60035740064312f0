//! Moving tasks on to the next parent that they wait for, until there is none.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Event, Name};
use ledgerline_outbox::ComponentError;
use ledgerline_store::JobNode;

use super::{
    dependencies::{Moving, Step, completed_of, position_after},
    new_records::kept_until,
    start::Ready,
};
use crate::JobDriver;

impl JobDriver {
    /// Moves each of `tasks` past its completed parents, from the parent at the given position on, and starts those that
    /// wait for none.
    pub async fn advance(
        &self,
        job_id: &Name,
        tasks: Vec<(JobNode, usize)>,
        cause: &Event,
    ) -> Result<(), ComponentError> {
        let tenant = &cause.tenant_id;
        let mut moving: Vec<Moving> = tasks.into_iter().map(|(node, next)| Moving::new(node, next)).collect();
        let mut ready = Vec::new();
        while !moving.is_empty() {
            let next_parents: BTreeSet<&str> = moving.iter().flat_map(Moving::looked_at).collect();
            let completed = completed_of(self.records.ends(tenant, job_id, next_parents).await?);
            let mut waiting: Vec<Moving> = Vec::new();
            let mut moving_on = Vec::new();
            for task in std::mem::take(&mut moving) {
                match task.pass(&completed) {
                    Step::Start(node) => ready.push(Ready { node, generation: 1 }),
                    Step::Wait(task) => waiting.push(task),
                    Step::Move(task) => moving_on.push(task),
                }
            }
            // Put the marks, then read the outcomes: the end of a parent writes its outcome, and then reads the marks.
            let marks =
                waiting.iter().filter_map(|task| Some((task.parent()?, task.node().task_id.as_str())));
            self.records.put_waits(tenant, job_id, marks, kept_until(cause.ttl)).await?;
            let parents: BTreeSet<&str> = waiting.iter().filter_map(Moving::parent).collect();
            let completed = completed_of(self.records.ends(tenant, job_id, parents).await?);
            for task in waiting {
                match task.pass_mark(&completed) {
                    Step::Start(node) => ready.push(Ready { node, generation: 1 }),
                    Step::Wait(_) => {}
                    Step::Move(task) => moving_on.push(task),
                }
            }
            moving = moving_on;
        }
        Box::pin(self.start_tasks(job_id, ready, cause)).await
    }

    /// The tasks that wait for any of `parents`, each with the position after that parent.
    pub async fn waiting_for(
        &self,
        tenant: &Name,
        job_id: &Name,
        parents: &[&Name],
    ) -> Result<Vec<(JobNode, usize)>, ComponentError> {
        let mut children: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for parents in parents.chunks(16) {
            let marks = parents.iter().map(|parent| async move {
                let children = self.records.waiting_for(tenant, job_id, parent).await?;
                Ok::<_, ComponentError>((parent.as_str(), children))
            });
            for (parent, found) in futures::future::try_join_all(marks).await? {
                for child in found {
                    children.entry(child).or_default().push(parent);
                }
            }
        }
        let nodes = self.records.nodes(tenant, job_id, children.keys().map(String::as_str)).await?;
        let with_position = nodes.into_iter().map(|node| {
            let next = position_after(&node, &children[node.task_id.as_str()]);
            (node, next)
        });
        Ok(with_position.collect())
    }
}
