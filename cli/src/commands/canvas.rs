//! Draws lines of coloured text that fit into a terminal, and redraws them in place.

use std::io::{self, IsTerminal, Write};

use unicode_width::UnicodeWidthChar;

/// How large a picture may be, and whether it has colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canvas {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) colours: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    Faint,
    Bold,
    Green,
    Red,
    Cyan,
    Yellow,
}

/// Lines on the terminal, which the next call replaces.
#[derive(Debug, Default)]
pub(super) struct Screen {
    lines: Vec<String>,
}

/// One line, not yet cut to its width.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Vec<(Ink, String)>);

impl Canvas {
    /// As much as there is, without colours: for files and pipes.
    pub(super) const ENDLESS: Self = Self { width: usize::MAX, height: usize::MAX, colours: false };

    /// The terminal that standard output is, if it is one.
    pub(super) fn of_terminal() -> Option<Self> {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return None;
        }
        let size = rustix::termios::tcgetwinsize(&stdout).ok();
        // Some terminals do not know.
        let known =
            |cells: Option<u16>, otherwise| cells.filter(|cells| *cells > 0).map_or(otherwise, usize::from);
        Some(Self {
            width: known(size.map(|size| size.ws_col), 80),
            height: known(size.map(|size| size.ws_row), 24),
            colours: std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
        })
    }

    /// The line as it is written.
    pub(super) fn paint(&self, line: &Line) -> String {
        let mut painted = String::new();
        let mut room = self.width;
        let whole = line.0.iter().map(|(_, text)| columns(text)).sum::<usize>() <= self.width;
        for (ink, text) in &line.0 {
            let text = if whole { text.clone() } else { beginning(text, &mut room) };
            match ink.code().filter(|_| self.colours && !text.trim().is_empty()) {
                Some(code) => painted.push_str(&format!("\u{1b}[{code}m{text}\u{1b}[0m")),
                None => painted.push_str(&text),
            }
            if !whole && room == 0 {
                break;
            }
        }
        painted.truncate(painted.trim_end().len());
        painted
    }
}

impl Screen {
    /// Draws lines in place of those of the last call.
    pub(super) fn draw(&mut self, lines: Vec<String>) -> io::Result<()> {
        if lines == self.lines {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(overwrite(self.lines.len(), &lines).as_bytes())?;
        self.lines = lines;
        stdout.flush()
    }
}

/// The text that overwrites `before` lines with new ones in a single write, so that nothing flickers.
fn overwrite(before: usize, lines: &[String]) -> String {
    let up = if before > 0 { format!("\u{1b}[{before}A") } else { String::new() };
    let lines: String = lines.iter().map(|line| format!("\r{line}\u{1b}[K\n")).collect();
    format!("{up}{lines}\u{1b}[J")
}

impl Ink {
    const fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Faint => Some("2"),
            Self::Bold => Some("1"),
            Self::Green => Some("32"),
            Self::Red => Some("31"),
            Self::Cyan => Some("36"),
            Self::Yellow => Some("33"),
        }
    }
}

impl Line {
    pub(super) fn with(mut self, ink: Ink, text: impl Into<String>) -> Self {
        self.0.push((ink, text.into()));
        self
    }
}

/// How many cells a text takes.
pub(super) fn columns(text: &str) -> usize {
    text.chars().map(|char| char.width().unwrap_or(0)).sum()
}

/// A text in a column of a table.
pub(super) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

/// Puts a text on one line, removes what would move the cursor, and cuts the text to a number of cells.
pub(super) fn tidy(text: &str, width: usize) -> String {
    let visible: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let joined = visible.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut room = width;
    if columns(&joined) <= width { joined } else { beginning(&joined, &mut room) }
}

/// As much of a text as there is room for, the last cell for the sign that something is missing.
fn beginning(text: &str, room: &mut usize) -> String {
    let mut kept = String::new();
    let all = columns(text);
    if all < *room {
        *room -= all;
        return text.to_owned();
    }
    for char in text.chars() {
        let width = char.width().unwrap_or(0);
        if width + 1 > *room {
            break;
        }
        *room -= width;
        kept.push(char);
    }
    *room = 0;
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_into_its_width_and_colours_take_no_room() {
        let line =
            Line::default().with(Ink::Green, "✓").with(Ink::Plain, " 価格 fetch ").with(Ink::Red, "no key");
        let paint = |width, colours| Canvas { width, height: 9, colours }.paint(&line);
        assert_eq!(paint(80, false), "✓ 価格 fetch no key");
        assert_eq!(paint(80, true), "\u{1b}[32m✓\u{1b}[0m 価格 fetch \u{1b}[31mno key\u{1b}[0m");
        for width in 1..=19 {
            let cut = paint(width, false);
            assert!(columns(&cut) <= width, "{width}: {cut}");
            assert_eq!(cut.ends_with('…'), width < 19, "{width}: {cut}");
        }
        assert_eq!(paint(8, false), "✓ 価格 …");
    }

    #[test]
    fn a_picture_takes_the_place_of_the_one_before() {
        let lines = ["j  running".to_owned(), "● a".to_owned()];
        assert_eq!(overwrite(0, &lines), "\rj  running\u{1b}[K\n\r● a\u{1b}[K\n\u{1b}[J");
        assert!(overwrite(3, &lines).starts_with("\u{1b}[3A\rj  running"));
    }

    #[test]
    fn a_text_cannot_move_the_cursor() {
        assert_eq!(tidy("a\n\tb\u{1b}[2Jc", 80), "a b [2Jc");
        assert_eq!(tidy("abcdef", 4), "abc…");
    }
}
