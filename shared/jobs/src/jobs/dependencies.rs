//! How a task moves past its parents, one after the other: it waits at the first that is not completed.

use std::collections::BTreeSet;

use ledgerline_store::{JobEnd, JobNode, TaskOutcome};

/// A task on its way past its parents.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moving {
    node: JobNode,
    /// Everything before this one is completed.
    next: usize,
    /// How many parents are looked at next: twice as many each time, so that the parents looked at in vain are not many
    /// more than those already passed.
    look: usize,
}

/// Where a task stands after some of its parents were looked at.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Every parent is completed: it starts.
    Start(JobNode),
    /// Its next parent is not completed.
    Wait(Moving),
    /// What was looked at is completed, and there is more.
    Move(Moving),
}

impl Moving {
    /// A task at the parent with this position.
    pub(super) const fn new(node: JobNode, next: usize) -> Self {
        Self { node, next, look: 1 }
    }

    /// The task.
    pub(super) const fn node(&self) -> &JobNode {
        &self.node
    }

    /// The parent that it comes to next.
    pub(super) fn parent(&self) -> Option<&str> {
        self.node.depends_on.get(self.next).map(String::as_str)
    }

    /// The parents that are looked at next.
    pub(super) fn looked_at(&self) -> impl Iterator<Item = &str> {
        self.node.depends_on[self.next..].iter().take(self.look).map(String::as_str)
    }

    /// Moves past the parents looked at, up to the first that is not completed.
    pub(super) fn pass(mut self, completed: &BTreeSet<String>) -> Step {
        let window = self.looked_at().count();
        let passed = self.looked_at().take_while(|parent| completed.contains(*parent)).count();
        self.next += passed;
        self.look = self.look.saturating_mul(2);
        if passed < window { Step::Wait(self) } else { self.start_or_move() }
    }

    /// Looks once more at the parent where the task waits, after the mark that the task waits there is put.
    pub(super) fn pass_mark(mut self, completed: &BTreeSet<String>) -> Step {
        match self.parent() {
            Some(parent) if !completed.contains(parent) => Step::Wait(self),
            Some(_) | None => {
                self.next += 1;
                self.look = 1;
                self.start_or_move()
            }
        }
    }

    fn start_or_move(self) -> Step {
        if self.next >= self.node.depends_on.len() { Step::Start(self.node) } else { Step::Move(self) }
    }
}

/// The position after the last of `ended` that a task waited for: it came to a parent only when all before it were
/// completed.
pub(super) fn position_after(node: &JobNode, ended: &[&str]) -> usize {
    let position = node.depends_on.iter().rposition(|parent| ended.contains(&parent.as_str()));
    position.map_or(0, |position| position + 1)
}

/// The tasks that are completed, by their ends.
pub(super) fn completed_of(ends: Vec<JobEnd>) -> BTreeSet<String> {
    let completed = ends.into_iter().filter(|end| end.outcome == TaskOutcome::Completed && end.counted);
    completed.map(|end| end.task_id.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parents: &[&str]) -> JobNode {
        let node = serde_json::json!({
            "taskId": "child", "name": "n", "dependsOn": parents, "addedBy": "evnt_1",
        });
        serde_json::from_value(node).unwrap()
    }

    fn set(tasks: &[&str]) -> BTreeSet<String> {
        tasks.iter().map(|task| (*task).to_owned()).collect()
    }

    /// Moves a task as far as it comes while no further parent completes; returns the parent where it waits.
    fn settle(mut moving: Moving, completed: &BTreeSet<String>) -> Option<String> {
        loop {
            let step = match moving.pass(completed) {
                Step::Wait(waiting) => waiting.pass_mark(completed),
                step => step,
            };
            match step {
                Step::Start(_) => return None,
                Step::Wait(waiting) => return waiting.parent().map(str::to_owned),
                Step::Move(on) => moving = on,
            }
        }
    }

    #[test]
    fn a_task_without_parents_starts() {
        assert_eq!(Moving::new(node(&[]), 0).pass(&set(&[])), Step::Start(node(&[])));
    }

    #[test]
    fn a_parent_that_ends_between_the_look_and_the_mark_is_passed() {
        let Step::Wait(waiting) = Moving::new(node(&["a", "b"]), 0).pass(&set(&[])) else { panic!("waits") };
        assert_eq!(waiting.parent(), Some("a"));
        assert_eq!(waiting.clone().pass_mark(&set(&["a"])), Step::Move(Moving::new(node(&["a", "b"]), 1)));
        assert!(matches!(waiting.pass_mark(&set(&["b"])), Step::Wait(_)));
    }

    #[test]
    fn for_every_set_of_completed_parents_a_task_waits_at_the_first_that_is_not_and_starts_after_all() {
        let parents = ["a", "b", "c", "d", "e", "f"];
        for completed in 0_u32..1 << parents.len() {
            let is_completed = |position: usize| completed & (1 << position) != 0;
            let done: Vec<&str> =
                (0..parents.len()).filter(|at| is_completed(*at)).map(|at| parents[at]).collect();
            let first_open =
                (0..parents.len()).find(|at| !is_completed(*at)).map(|at| parents[at].to_owned());
            assert_eq!(settle(Moving::new(node(&parents), 0), &set(&done)), first_open, "{done:?}");
        }
    }

    #[test]
    fn a_task_goes_on_after_the_last_parent_that_it_waited_for() {
        let node = node(&["a", "b", "c"]);
        assert_eq!(position_after(&node, &["b"]), 2);
        assert_eq!(position_after(&node, &["b", "a"]), 2);
        assert_eq!(position_after(&node, &["x"]), 0);
    }

    #[test]
    fn only_counted_completions_let_a_child_pass() {
        let end = |task: &str, outcome: &str, counted: bool| -> JobEnd {
            let end = serde_json::json!({
                "taskId": task, "outcome": outcome, "generation": 1, "eventSk": "x", "counted": counted,
            });
            serde_json::from_value(end).unwrap()
        };
        let ends = vec![end("a", "completed", true), end("b", "failed", true), end("c", "completed", false)];
        assert_eq!(completed_of(ends), set(&["a"]));
    }
}
