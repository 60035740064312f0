//! Jobs of any size in shapes that are hard in different ways.

use ledgerline_jobs::SubmittedJobTask;
use serde_json::{Map, json};

/// Tasks of one layer of a lattice.
const WIDTH: usize = 5;

/// How the tasks of a job depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each on the one before.
    Chain,
    /// All on the first.
    FanOut,
    /// The last on all others.
    FanIn,
    /// In layers of five, each on three of the layer before.
    Lattice,
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [Self::Chain, Self::FanOut, Self::FanIn, Self::Lattice];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::FanOut => "fan-out",
            Self::FanIn => "fan-in",
            Self::Lattice => "lattice",
        }
    }

    /// A job of `count` tasks, all of which are called `noop`.
    pub(crate) fn tasks(self, count: usize) -> Vec<SubmittedJobTask> {
        let task = |number| SubmittedJobTask {
            task_id: task_id(number),
            name: "noop".into(),
            depends_on: self.parents(number, count).into_iter().map(task_id).collect(),
            input: Map::from_iter([("storeId".to_owned(), json!("store-123"))]),
            timeout_ms: None,
            max_attempts: None,
        };
        (0..count).map(task).collect()
    }

    fn parents(self, number: usize, count: usize) -> Vec<usize> {
        match self {
            Self::Chain => number.checked_sub(1).into_iter().collect(),
            Self::FanOut => (0..number.min(1)).collect(),
            Self::FanIn if number + 1 == count => (0..number).collect(),
            Self::FanIn => Vec::new(),
            Self::Lattice if number < WIDTH => Vec::new(),
            Self::Lattice => {
                let before = (number / WIDTH - 1) * WIDTH;
                (0..3).map(|step| before + (number + step) % WIDTH).collect()
            }
        }
    }
}

/// The id of a job's `number`th task.
pub(crate) fn task_id(number: usize) -> String {
    format!("t{number:04}")
}

/// How many dependencies there are.
pub(crate) fn edges(tasks: &[SubmittedJobTask]) -> usize {
    tasks.iter().map(|task| task.depends_on.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_the_edges_that_their_names_say() {
        let edges_of_ten = Shape::ALL.map(|shape| edges(&shape.tasks(10)));
        assert_eq!(edges_of_ten, [9, 9, 9, 15]);
        let lattice = Shape::Lattice.tasks(100);
        assert_eq!(lattice[99].depends_on, ["t0094", "t0090", "t0091"]);
    }
}
