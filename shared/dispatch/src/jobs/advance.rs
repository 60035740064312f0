//! Moving tasks on to the next parent that they wait for, until there is none.

use std::collections::{BTreeMap, BTreeSet};

use ledgerline_event::{Event, Name};
use ledgerline_ledger::control::{item, keys};
use serde::Serialize;

use super::{
    record::{JobNode, Outcome, kept_until},
    start::Ready,
};
use crate::{Dispatch, DispatchError};

/// A task on its way past its parents.
struct Moving {
    node: JobNode,
    /// Everything before this one is completed.
    next: usize,
    /// How many parents are looked at next: twice as many as last time, so that looking in vain costs no more than
    /// what was passed.
    look: usize,
}

#[derive(Serialize)]
struct Wait {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<ledgerline_event::Seconds>,
}

impl Dispatch {
    /// Moves each of `tasks` on, from the parent at the given position, and starts those that wait for nothing.
    pub(crate) async fn advance(
        &self,
        job_id: &Name,
        tasks: Vec<(JobNode, usize)>,
        cause: &Event,
    ) -> Result<(), DispatchError> {
        let tenant = &cause.tenant_id;
        let mut moving: Vec<Moving> =
            tasks.into_iter().map(|(node, next)| Moving { node, next, look: 1 }).collect();
        let mut ready = Vec::new();
        while !moving.is_empty() {
            let looked: BTreeSet<&str> = moving.iter().flat_map(Moving::looked_at).collect();
            let completed = self.completed(tenant, job_id, looked).await?;
            let mut waiting: Vec<Moving> = Vec::new();
            let mut on = Vec::new();
            for mut task in std::mem::take(&mut moving) {
                let window = task.looked_at().count();
                let passed = task.looked_at().take_while(|parent| completed.contains(*parent)).count();
                task.next += passed;
                task.look = task.look.saturating_mul(2);
                match (passed < window, task.next == task.node.depends_on.len()) {
                    (true, _) => waiting.push(task),
                    (false, true) => ready.push(Ready { node: task.node, generation: 1 }),
                    (false, false) => on.push(task),
                }
            }
            // The mark first, and only then the look: the parent writes its outcome first, and only then looks for marks.
            let marks = waiting.iter().map(|task| {
                let parent = &task.node.depends_on[task.next];
                item(
                    &keys::job_wait(tenant, job_id, parent, &task.node.task_id),
                    &Wait { ttl: kept_until(cause.ttl) },
                )
            });
            self.control.put_all(marks.collect::<Result<_, _>>()?).await?;
            let parents: BTreeSet<&str> =
                waiting.iter().map(|task| task.node.depends_on[task.next].as_str()).collect();
            let completed = self.completed(tenant, job_id, parents).await?;
            for mut task in waiting {
                if !completed.contains(task.node.depends_on[task.next].as_str()) {
                    continue;
                }
                task.next += 1;
                task.look = 1;
                match task.next == task.node.depends_on.len() {
                    true => ready.push(Ready { node: task.node, generation: 1 }),
                    false => on.push(task),
                }
            }
            moving = on;
        }
        Box::pin(self.start_tasks(job_id, ready, cause)).await
    }

    /// Those of some tasks that are completed.
    pub(super) async fn completed(
        &self,
        tenant: &Name,
        job_id: &Name,
        tasks: BTreeSet<&str>,
    ) -> Result<BTreeSet<String>, DispatchError> {
        let ends = self.ends(tenant, job_id, tasks).await?;
        let completed = ends.into_iter().filter(|end| end.outcome == Outcome::Completed && end.counted);
        Ok(completed.map(|end| end.task_id.to_string()).collect())
    }

    /// Who waits for any of these tasks, with the position after the one that was waited for.
    pub(crate) async fn waiting_for(
        &self,
        tenant: &Name,
        job_id: &Name,
        parents: &[&Name],
    ) -> Result<Vec<(JobNode, usize)>, DispatchError> {
        let mut children: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for parents in parents.chunks(16) {
            let marks = parents.iter().map(|parent| async move {
                let beginning = keys::job_waits(parent);
                let rows: Vec<Mark> = self.job_rows(tenant, job_id, &beginning).await?;
                let children =
                    rows.into_iter().filter_map(|row| row.sk.strip_prefix(&beginning).map(str::to_owned));
                Ok::<_, DispatchError>((parent.as_str(), children.collect::<Vec<_>>()))
            });
            for (parent, found) in futures::future::try_join_all(marks).await? {
                for child in found {
                    children.entry(child).or_default().push(parent);
                }
            }
        }
        let nodes = self.nodes(tenant, job_id, children.keys().map(String::as_str)).await?;
        let with_position = nodes.into_iter().map(|node| {
            let parents = &children[node.task_id.as_str()];
            // It came to a parent only when all before it were completed.
            let position = node.depends_on.iter().rposition(|parent| parents.contains(&parent.as_str()));
            let next = position.map_or(0, |position| position + 1);
            (node, next)
        });
        Ok(with_position.collect())
    }
}

#[derive(serde::Deserialize)]
struct Mark {
    #[serde(rename = "SK")]
    sk: String,
}

impl Moving {
    fn looked_at(&self) -> impl Iterator<Item = &str> {
        self.node.depends_on[self.next..].iter().take(self.look).map(String::as_str)
    }
}
