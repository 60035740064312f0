//! The characters with which a run is drawn: blocks, or ASCII where the environment does not say UTF-8.

use crate::commands::canvas::{Canvas, Ink, tidy};

/// The characters of a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glyphs {
    completed: &'static str,
    failed: &'static str,
    running: &'static str,
    waiting: &'static str,
    over: &'static str,
    /// In a bar: work is under way.
    pub(super) work: &'static str,
    /// In a bar: it waits.
    pub(super) wait: &'static str,
    /// At both ends of a bar.
    pub(super) edge: &'static str,
    /// Marks a text that was cut.
    cut: char,
}

const BLOCKS: Glyphs = Glyphs {
    completed: "✓",
    failed: "✗",
    running: "●",
    waiting: "○",
    over: "·",
    work: "█",
    wait: "░",
    edge: "│",
    cut: '…',
};

const ASCII: Glyphs = Glyphs {
    completed: "+",
    failed: "x",
    running: ">",
    waiting: "o",
    over: ".",
    work: "#",
    wait: "-",
    edge: "|",
    cut: '~',
};

/// The symbol and colour of a run, step, hook or wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Completed,
    Failed,
    Running,
    Waiting,
    /// It ended without a result and without a failure: cancelled or abandoned.
    Over,
}

/// The canvas for a run, and its characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paper {
    pub(super) canvas: Canvas,
    pub(super) glyphs: Glyphs,
}

impl Paper {
    /// For a file or a pipe, whose reader may support neither colours nor Unicode.
    pub(super) const PLAIN: Self =
        Self { canvas: Canvas { width: 80, height: usize::MAX, colours: false }, glyphs: ASCII };

    /// The terminal that standard output is, if it is one.
    pub(super) fn of_terminal() -> Option<Self> {
        let glyphs = if has_unicode(|name| std::env::var(name).ok()) { BLOCKS } else { ASCII };
        Canvas::of_terminal().map(|canvas| Self { canvas, glyphs })
    }

    #[cfg(test)]
    pub(super) fn blocks(width: usize) -> Self {
        Self { canvas: Canvas { width, ..Self::PLAIN.canvas }, glyphs: BLOCKS }
    }

    /// Puts a text on one line and cuts it to a number of cells.
    pub(super) fn cut(&self, text: &str, width: usize) -> String {
        let whole = tidy(text, usize::MAX);
        let mut cut = tidy(&whole, width);
        if cut != whole {
            cut.pop();
            cut.push(self.glyphs.cut);
        }
        cut
    }
}

impl Look {
    pub(super) const fn ink(self) -> Ink {
        match self {
            Self::Completed => Ink::Green,
            Self::Failed => Ink::Red,
            Self::Running => Ink::Cyan,
            Self::Waiting => Ink::Yellow,
            Self::Over => Ink::Faint,
        }
    }

    pub(super) const fn symbol(self, glyphs: &Glyphs) -> &'static str {
        match self {
            Self::Completed => glyphs.completed,
            Self::Failed => glyphs.failed,
            Self::Running => glyphs.running,
            Self::Waiting => glyphs.waiting,
            Self::Over => glyphs.over,
        }
    }
}

/// Whether the environment says that it reads UTF-8.
fn has_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let said = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|said| !said.is_empty());
    said.is_some_and(|said| {
        let said = said.to_ascii_lowercase();
        said.contains("utf-8") || said.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_says_something_decides() {
        let says = |set: &'static [(&str, &str)]| {
            has_unicode(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(says(&[("LANG", "de_DE.UTF-8")]));
        assert!(says(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8"), ("LANG", "C")]));
        assert!(!says(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]));
        assert!(!says(&[]));
    }

    #[test]
    fn what_is_missing_is_marked_with_a_character_that_can_be_read() {
        assert_eq!(Paper::PLAIN.cut("charge  the\ncard", 80), "charge the card");
        assert_eq!(Paper::PLAIN.cut("charge the card", 8), "charge ~");
        assert_eq!(Paper::blocks(80).cut("charge the card", 8), "charge …");
        assert_eq!(Paper::PLAIN.cut("what…", 80), "what…");
    }
}
