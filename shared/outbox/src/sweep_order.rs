//! The way of a sweep around everything that it visits: where it begins, and how far it is.

/// What comes after a place, and then what comes before it. `sorted` is in the order of `name`.
pub fn around<T>(mut sorted: Vec<T>, after: Option<&str>, name: impl Fn(&T) -> &str) -> Vec<T> {
    let first = after.map_or(0, |after| sorted.partition_point(|one| name(one) <= after));
    sorted.rotate_left(first);
    sorted
}

/// Steps that are finished in any order. The place to go on from is behind all those that are finished without a gap.
#[derive(Debug)]
pub struct Course<T> {
    steps: Vec<T>,
    finished: Vec<bool>,
    passed: usize,
}

impl<T> Course<T> {
    /// A course of these steps, none of them finished.
    pub fn new(steps: Vec<T>) -> Self {
        Self { finished: vec![false; steps.len()], steps, passed: 0 }
    }

    /// Its steps.
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

    /// The last step before the first gap.
    pub fn place(&self) -> Option<&T> {
        self.steps[..self.passed].last()
    }

    /// Whether every step is finished.
    pub fn is_over(&self) -> bool {
        self.passed == self.steps.len()
    }
}

/// One step of each course in turn, so that a long one does not hold up the others.
pub fn in_turn(lengths: &[usize]) -> Vec<(usize, usize)> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let steps = (0..longest).flat_map(|step| {
        let has_step = lengths.iter().enumerate().filter(move |(_, length)| step < **length);
        has_step.map(move |(course, _)| (course, step))
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_begins_after_its_place_and_comes_around_to_it() {
        let names = || vec!["a", "b", "c", "d"];
        let from = |after| around(names(), after, |name| name);
        assert_eq!(from(None), ["a", "b", "c", "d"]);
        assert_eq!(from(Some("b")), ["c", "d", "a", "b"]);
        assert_eq!(from(Some("bb")), ["c", "d", "a", "b"]);
        assert_eq!(from(Some("d")), ["a", "b", "c", "d"]);
        assert_eq!(around(Vec::<&str>::new(), Some("b"), |name| name), Vec::<&str>::new());
    }

    #[test]
    fn a_slow_step_keeps_the_place_and_not_the_steps_behind_it() {
        let mut course = Course::new(vec!["a", "b", "c"]);
        course.finish(1);
        course.finish(2);
        assert_eq!((course.place(), course.is_over()), (None, false));
        course.finish(0);
        assert_eq!((course.place(), course.is_over()), (Some(&"c"), true));
        assert!(Course::<&str>::new(Vec::new()).is_over());
    }

    #[test]
    fn courses_take_turns() {
        assert_eq!(in_turn(&[2, 0, 3]), [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]);
    }
}
