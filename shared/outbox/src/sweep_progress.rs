//! The order in which a sweep visits everything, and how far it has come.

/// Rotates `sorted`, which is in the order of `name`, so that it begins with the first element after `after`.
pub fn rotate_after<T>(mut sorted: Vec<T>, after: Option<&str>, name: impl Fn(&T) -> &str) -> Vec<T> {
    let first = after.map_or(0, |after| sorted.partition_point(|one| name(one) <= after));
    sorted.rotate_left(first);
    sorted
}

/// The steps of a sweep, which are finished in any order. The next sweep resumes after the last step before which all are
/// finished.
#[derive(Debug)]
pub struct SweepProgress<T> {
    steps: Vec<T>,
    finished: Vec<bool>,
    passed: usize,
}

impl<T> SweepProgress<T> {
    /// The progress of these steps, none of them finished.
    pub fn new(steps: Vec<T>) -> Self {
        Self { finished: vec![false; steps.len()], steps, passed: 0 }
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[T] {
        &self.steps
    }

    /// Finishes a step.
    pub fn finish(&mut self, step: usize) {
        self.finished[step] = true;
        while self.finished.get(self.passed) == Some(&true) {
            self.passed += 1;
        }
    }

    /// The step after which the next sweep resumes: the last one up to which all are finished.
    pub fn resume_after(&self) -> Option<&T> {
        self.steps[..self.passed].last()
    }

    /// Whether every step is finished.
    pub fn is_complete(&self) -> bool {
        self.passed == self.steps.len()
    }
}

/// The order that takes one step of each sequence in turn, so that a long one does not hold up the others, as pairs of
/// sequence and step. `lengths` are the numbers of steps.
pub fn round_robin(lengths: &[usize]) -> Vec<(usize, usize)> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let steps = (0..longest).flat_map(|step| {
        let has_step = lengths.iter().enumerate().filter(move |(_, length)| step < **length);
        has_step.map(move |(sequence, _)| (sequence, step))
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_begins_after_its_cursor_and_comes_around_to_it() {
        let names = || vec!["a", "b", "c", "d"];
        let from = |after| rotate_after(names(), after, |name| name);
        assert_eq!(from(None), ["a", "b", "c", "d"]);
        assert_eq!(from(Some("b")), ["c", "d", "a", "b"]);
        assert_eq!(from(Some("bb")), ["c", "d", "a", "b"]);
        assert_eq!(from(Some("d")), ["a", "b", "c", "d"]);
        assert_eq!(rotate_after(Vec::<&str>::new(), Some("b"), |name| name), Vec::<&str>::new());
    }

    #[test]
    fn a_slow_step_holds_back_the_cursor_and_not_the_steps_after_it() {
        let mut progress = SweepProgress::new(vec!["a", "b", "c"]);
        progress.finish(1);
        progress.finish(2);
        assert_eq!((progress.resume_after(), progress.is_complete()), (None, false));
        progress.finish(0);
        assert_eq!((progress.resume_after(), progress.is_complete()), (Some(&"c"), true));
        assert!(SweepProgress::<&str>::new(Vec::new()).is_complete());
    }

    #[test]
    fn sequences_take_turns() {
        assert_eq!(round_robin(&[2, 0, 3]), [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]);
    }
}
