//! The bar that shows which part of a run's time a step, hook or wait took.

use ledgerline_event::Millis;

use super::glyphs::Glyphs;
use crate::commands::canvas::{Ink, Line};

/// Maps the time from the beginning of a run to its end, or to now, to cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    begin: Millis,
    length: u64,
    cells: usize,
}

/// What a bar shows: first the entity waits, then work on it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Millis,
    /// `None`: no work on it has begun.
    pub(super) work_from: Option<Millis>,
    pub(super) until: Millis,
}

impl Scale {
    pub(super) fn new(begin: Millis, end: Millis, cells: usize) -> Self {
        Self { begin, length: end.get().saturating_sub(begin.get()).max(1), cells: cells.max(1) }
    }

    /// How long all of it is.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    /// Draws a span between both edges of the bar, at least one cell long.
    pub(super) fn draw(&self, line: Line, span: Span, ink: Ink, glyphs: &Glyphs) -> Line {
        let (first, last) = self.cells_of(span);
        let work = span.work_from.map_or(last, |from| self.floor(from).clamp(first, last.saturating_sub(1)));
        line.with(Ink::Faint, glyphs.edge)
            .with(Ink::Plain, " ".repeat(first))
            .with(Ink::Faint, glyphs.wait.repeat(work - first))
            .with(ink, glyphs.work.repeat(last - work))
            .with(Ink::Plain, " ".repeat(self.cells - last))
            .with(Ink::Faint, glyphs.edge)
    }

    /// The first cell of a span and the one after its last.
    fn cells_of(&self, span: Span) -> (usize, usize) {
        let first = self.floor(span.from).min(self.cells - 1);
        let last = self.position(span.until).div_ceil(self.length);
        (first, usize::try_from(last).unwrap_or(self.cells).clamp(first + 1, self.cells))
    }

    fn floor(&self, at: Millis) -> usize {
        usize::try_from(self.position(at) / self.length).unwrap_or(self.cells).min(self.cells)
    }

    /// The position of a moment, in units of which a cell has `length`.
    fn position(&self, at: Millis) -> u64 {
        let since = at.get().saturating_sub(self.begin.get());
        since.saturating_mul(u64::try_from(self.cells).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{
        canvas::{Canvas, columns},
        run::glyphs::Paper,
    };

    const BEGIN: u64 = 1_767_453_739_000;

    fn at(ms: u64) -> Millis {
        Millis::try_from(BEGIN + ms).unwrap()
    }

    fn drawn(scale: &Scale, from: u64, work_from: Option<u64>, until: u64) -> String {
        let span = Span { from: at(from), work_from: work_from.map(at), until: at(until) };
        let line = scale.draw(Line::default(), span, Ink::Plain, &Paper::PLAIN.glyphs);
        Canvas { width: usize::MAX, ..Paper::PLAIN.canvas }.paint(&line)
    }

    #[test]
    fn a_bar_lies_where_it_was_in_time() {
        let scale = Scale::new(at(0), at(100), 10);
        assert_eq!(drawn(&scale, 0, Some(0), 100), "|##########|");
        assert_eq!(drawn(&scale, 20, Some(50), 80), "|  ---###  |");
        assert_eq!(drawn(&scale, 20, None, 81), "|  ------- |");
        assert_eq!(drawn(&scale, 0, Some(0), 1), "|#         |", "a moment can be seen");
        assert_eq!(drawn(&scale, 100, Some(100), 100), "|         #|", "at the end too");
        assert_eq!(drawn(&scale, 40, Some(49), 50), "|    #     |", "work is seen before waiting");
    }

    #[test]
    fn a_run_without_a_length_has_bars_too() {
        assert_eq!(drawn(&Scale::new(at(5), at(5), 4), 5, Some(5), 5), "|#   |");
        assert_eq!(drawn(&Scale::new(at(5), at(0), 1), 0, None, 9), "|-|");
    }

    #[test]
    fn a_bar_is_as_long_as_its_scale_and_never_empty() {
        for (end, cells) in [(0, 0), (0, 7), (5, 3), (7, 1), (100, 9), (9, 100)] {
            let scale = Scale::new(at(0), at(end), cells);
            for (from, until) in
                (0..=end + 2).flat_map(|from| [0, from, end, end + 9].map(|until| (from, until)))
            {
                for work in [None, Some(0), Some(from), Some(until), Some(end + 99)] {
                    let bar = drawn(&scale, from, work, until);
                    assert_eq!(columns(&bar), cells.max(1) + 2, "{bar}");
                    assert_eq!(bar.contains('#'), work.is_some(), "{bar}");
                    assert!(bar.contains(['#', '-']), "{bar}");
                }
            }
        }
    }
}
