//! The progress of a rewind: a bar on a terminal, and elsewhere a line every few seconds.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};

use crate::times;

const PRINT_EVERY: Duration = Duration::from_secs(3);

/// How many events are handled again, of all that will be.
pub(super) struct Progress {
    all: u64,
    began: Instant,
    display: Display,
}

enum Display {
    Bar(ProgressBar),
    Lines { last: Instant },
}

impl Progress {
    pub(super) fn new(all: u64) -> Self {
        let display = match io::stderr().is_terminal() {
            true => Display::Bar(ProgressBar::new(all).with_style(style())),
            false => Display::Lines { last: Instant::now() },
        };
        Self { all, began: Instant::now(), display }
    }

    pub(super) fn at(&mut self, handled: u64) {
        let handled = handled.min(self.all);
        match &mut self.display {
            Display::Bar(bar) => bar.set_position(handled),
            Display::Lines { last } if last.elapsed() >= PRINT_EVERY => {
                *last = Instant::now();
                eprintln!("{}", line(handled, self.all, self.began.elapsed()));
            }
            Display::Lines { .. } => {}
        }
    }

    /// Shows that everything is handled; the next output begins on a new line.
    pub(super) fn complete(self) {
        match self.display {
            Display::Bar(bar) => {
                bar.finish();
                eprintln!();
            }
            Display::Lines { .. } => eprintln!("{}", line(self.all, self.all, self.began.elapsed())),
        }
    }

    /// Leaves the display as it is; the next output begins on a new line.
    pub(super) fn stop(self) {
        if let Display::Bar(bar) = self.display {
            bar.abandon();
            eprintln!();
        }
    }
}

fn style() -> ProgressStyle {
    let template = "{bar:40} {human_pos} of {human_len} events, {rate}/s, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("rate", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        // Nothing is left to say it to if this cannot be written.
        let _ = write!(text, "{:.0}", state.per_sec());
    })
}

fn line(handled: u64, all: u64, elapsed: Duration) -> String {
    let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let counts = format!("{} of {} events", HumanCount(handled), HumanCount(all));
    if handled == 0 {
        return counts;
    }
    let rate = handled.saturating_mul(1_000) / ms;
    let left = (all - handled).saturating_mul(ms) / handled;
    format!("{counts}, {}/s, {} left", HumanCount(rate), times::in_words(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long_yet() {
        let after = Duration::from_secs(4);
        assert_eq!(line(2_000, 10_000, after), "2,000 of 10,000 events, 500/s, 16s left");
        assert_eq!(line(0, 10_000, after), "0 of 10,000 events");
        assert_eq!(line(5, 5, after), "5 of 5 events, 1/s, 0ms left");
    }
}
