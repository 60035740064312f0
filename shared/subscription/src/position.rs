//! The position of an error in a text: line, column, and the line with a caret under the position.

/// How many characters of a long line are shown on each side of the position.
const AROUND: usize = 60;

/// The line of `text` that holds the character `offset` (from 0), with a caret under it:
/// two lines, each after a line break. A text that ends too early has the caret behind it.
pub(crate) fn caret(text: &str, offset: usize) -> String {
    let (line, column) = line_and_column(text, offset);
    let chars: Vec<char> = text.lines().nth(line - 1).unwrap_or_default().chars().collect();
    let at = (column - 1).min(chars.len());
    let (from, to) = (at.saturating_sub(AROUND), (at + AROUND).min(chars.len()));
    // A control character would move the caret aside.
    let shown = |c: &char| if c.is_control() { ' ' } else { *c };
    let line: String = chars[from..to].iter().map(shown).collect();
    format!("\n  {line}\n  {:>width$}", '^', width = at - from + 1)
}

/// Line and column, both from 1 and in characters, of the character `offset` (from 0).
pub(crate) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let (mut line, mut column) = (1, 1);
    for c in text.chars().take(offset) {
        (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
    }
    (line, column)
}

/// How many characters precede the byte `at`, which need not be the first byte of a character.
pub(crate) fn chars_before(text: &str, at: usize) -> usize {
    text.char_indices().take_while(|(byte, _)| *byte < at).count()
}

/// The first character of the first `word` in `text` that is neither inside another word nor inside quotes.
pub(crate) fn of_word(text: &str, word: &str) -> usize {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let rest = &text[at..];
        let ends = |rest: &str| !rest.starts_with(part_of_name);
        if quote.is_none() && !part_of_name(before) && rest.strip_prefix(word).is_some_and(ends) {
            return chars_before(text, at);
        }
        quote = match quote {
            None if c == '"' || c == '\'' => Some(c),
            Some(open) if open == c && before != '\\' => None,
            same => same,
        };
        before = c;
    }
    0
}

/// The first character of the field `name` of `of`, as in `of.name` or `of["name"]`; that of `of` if the field is not found.
pub(crate) fn of_field(text: &str, of: &str, name: &str) -> usize {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let follows = text[at..].strip_prefix(of).filter(|_| !part_of_name(before) && before != '.');
        before = c;
        let Some(rest) = follows.map(str::trim_start).and_then(|rest| rest.strip_prefix(['.', '['])) else {
            continue;
        };
        let rest = rest.trim_start_matches(['?', ' ', '\n', '\t', '\r']).trim_start_matches(['"', '\'', '`']);
        if rest.strip_prefix(name).is_some_and(|after| !after.starts_with(part_of_name)) {
            return chars_before(text, text.len() - rest.len());
        }
    }
    of_word(text, of)
}

/// The first character that is no white space.
pub(crate) fn of_beginning(text: &str) -> usize {
    text.chars().take_while(|c| c.is_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_under_the_character() {
        assert_eq!(caret("ab > > c", 5), "\n  ab > > c\n       ^");
        assert_eq!(caret("one\nzwei ß !", 9), "\n  zwei ß !\n       ^");
        assert_eq!(caret("$.a[", 4), "\n  $.a[\n      ^");
        assert_eq!(caret("", 0), "\n  \n  ^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let text = format!("{}!{}", "x".repeat(500), "y".repeat(500));
        let shown = caret(&text, 500);
        let lines: Vec<&str> = shown.lines().skip(1).collect();
        assert_eq!(lines[0].chars().nth(lines[1].chars().count() - 1), Some('!'));
        assert!(lines[0].len() < 130);
    }

    #[test]
    fn a_word_is_found_where_it_stands_alone() {
        assert_eq!(of_word("events == 'event' && event", "event"), 21);
        assert_eq!(of_word("größe > a", "a"), 8);
        assert_eq!(of_word("b", "a"), 0);
    }

    #[test]
    fn a_field_is_found_where_it_is_asked_for() {
        assert_eq!(of_field("type(event.eventType) == string && event.type == 'x'", "event", "type"), 41);
        assert_eq!(of_field("x.event.type || event [ \"type\" ]", "event", "type"), 25);
        assert_eq!(of_field("event . ?type", "event", "type"), 9);
        assert_eq!(of_field("1 < event", "event", "type"), 4);
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(line_and_column("ä\nöü!", 4), (2, 3));
        assert_eq!(chars_before("äb", 2), 1);
        assert_eq!(chars_before("äb", 3), 2);
    }
}
