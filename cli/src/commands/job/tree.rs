//! Lays out the DAG of a job as a tree: each task stands beneath the parent with the longest path before it, so that the depth
//! of a task is the number of steps before it.

use std::collections::HashMap;

use ledgerline_jobs::JobTaskDetails;

/// Deeper branches are drawn at this depth.
const DEEPEST: usize = 8;

/// One line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The index of the task.
    pub(super) task: usize,
    /// The lines that lead to it.
    pub(super) branch: String,
}

/// The tasks as a tree, from the top.
pub(super) fn tree(tasks: &[JobTaskDetails]) -> Vec<Row> {
    let above = nearest_parents(tasks);
    let mut beneath: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
    let mut roots = Vec::new();
    for (task, parent) in above.iter().enumerate() {
        match parent {
            Some(parent) => beneath[*parent].push(task),
            None => roots.push(task),
        }
    }
    let mut rows = Vec::with_capacity(tasks.len());
    // The tasks left to draw, each with the branches that lead to it: whether a branch continues below.
    let mut left: Vec<(usize, Vec<bool>)> = roots.into_iter().rev().map(|root| (root, vec![])).collect();
    while let Some((task, goes_on)) = left.pop() {
        rows.push(Row { task, branch: branch(&goes_on) });
        let children = &beneath[task];
        for (position, child) in children.iter().enumerate().rev() {
            let mut goes_on = goes_on.clone();
            goes_on.push(position + 1 < children.len());
            if goes_on.len() > DEEPEST {
                goes_on.remove(0);
            }
            left.push((*child, goes_on));
        }
    }
    rows
}

fn branch(goes_on: &[bool]) -> String {
    let Some((own, before)) = goes_on.split_last() else { return String::new() };
    let before: String = before.iter().map(|goes_on| if *goes_on { "│  " } else { "   " }).collect();
    format!("{before}{}", if *own { "├─ " } else { "└─ " })
}

/// For each task the parent with the most steps before it, of several the last one.
fn nearest_parents(tasks: &[JobTaskDetails]) -> Vec<Option<usize>> {
    let index_of: HashMap<&str, usize> =
        tasks.iter().enumerate().map(|(index, task)| (task.task_id.as_str(), index)).collect();
    // A parent that is not here yet does not count.
    let parents: Vec<Vec<usize>> = tasks
        .iter()
        .map(|task| task.depends_on.iter().filter_map(|id| index_of.get(id.as_str()).copied()).collect())
        .collect();
    let mut children = vec![Vec::new(); tasks.len()];
    for (task, parents) in parents.iter().enumerate() {
        for parent in parents {
            children[*parent].push(task);
        }
    }
    let mut waiting: Vec<usize> = parents.iter().map(Vec::len).collect();
    let mut depth = vec![0_usize; tasks.len()];
    let mut nearest = vec![None; tasks.len()];
    let mut free: Vec<usize> = (0..tasks.len()).filter(|task| waiting[*task] == 0).collect();
    while let Some(task) = free.pop() {
        for child in &children[task] {
            depth[*child] = depth[*child].max(depth[task] + 1);
            waiting[*child] -= 1;
            if waiting[*child] == 0 {
                nearest[*child] =
                    parents[*child].iter().copied().max_by_key(|parent| (depth[*parent], *parent));
                free.push(*child);
            }
        }
    }
    nearest
}

#[cfg(test)]
mod tests {
    use ledgerline_event::Name;

    use super::*;

    fn tasks(edges: &[(&str, &[&str])]) -> Vec<JobTaskDetails> {
        let task = |(id, parents): &(&str, &[&str])| JobTaskDetails {
            task_id: Name::new("taskId", *id).unwrap(),
            name: "n".into(),
            depends_on: parents.iter().map(|parent| (*parent).to_owned()).collect(),
            state: None,
            summary: None,
        };
        edges.iter().map(task).collect()
    }

    fn drawn(edges: &[(&str, &[&str])]) -> Vec<String> {
        let tasks = tasks(edges);
        tree(&tasks).iter().map(|row| format!("{}{}", row.branch, tasks[row.task].task_id)).collect()
    }

    #[test]
    fn a_task_stands_beneath_its_last_parent() {
        let diamond: &[(&str, &[&str])] =
            &[("a", &[]), ("b", &[]), ("c", &["a"]), ("d", &["a"]), ("e", &["c", "d"]), ("f", &["a", "b"])];
        assert_eq!(drawn(diamond), ["a", "├─ c", "└─ d", "   └─ e", "b", "└─ f"]);
        assert_eq!(drawn(&[("x", &["gone"]), ("y", &["x"])]), ["x", "└─ y"], "a parent may come later");
    }

    #[test]
    fn every_task_is_drawn_once_and_deep_ones_no_further_in() {
        let ids: Vec<String> = (0..2_000).map(|n| format!("{n:04}")).collect();
        let parents: Vec<Vec<&str>> =
            (0..2_000).map(|n| if n == 0 { vec![] } else { vec![ids[n - 1].as_str()] }).collect();
        let chain: Vec<(&str, &[&str])> =
            ids.iter().zip(&parents).map(|(id, parents)| (id.as_str(), parents.as_slice())).collect();
        let rows = drawn(&chain);
        assert_eq!(rows.len(), 2_000);
        assert!(rows.iter().all(|row| row.chars().count() <= 3 * DEEPEST + 4), "{:?}", rows.last());
    }
}
