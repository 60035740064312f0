//! Globs over event types: `*` matches any characters, dots included, `?` matches one character, and every other character
//! matches itself.

/// Whether `glob` matches the whole `text`.
pub fn matches(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut g, mut t) = (0, 0);
    // Where to continue after the last `*` when a later character does not match.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob.get(g) {
            Some('*') => {
                retry = Some((g + 1, t));
                g += 1;
            }
            Some('?') => (g, t) = (g + 1, t + 1),
            Some(c) if *c == text[t] => (g, t) = (g + 1, t + 1),
            _ => match retry {
                Some((after_star, from)) => {
                    retry = Some((after_star, from + 1));
                    (g, t) = (after_star, from + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

/// Whether `text` has no wildcard, so that it names one event type.
pub fn is_literal(text: &str) -> bool {
    !text.contains(['*', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_cross_dots_and_question_marks_are_one_character() {
        for (glob, text, expected) in [
            ("price.*", "price.changed", true),
            ("price.*", "price", false),
            ("*", "a.b.c", true),
            ("*", "", true),
            ("a?c", "aüc", true),
            ("a?c", "ac", false),
            ("*.b*c", "a.b.b.xc", true),
            ("*.b*c", "a.b.b.xcd", false),
            ("[a]", "a", false),
            ("a**b", "ab", true),
        ] {
            assert_eq!(matches(glob, text), expected, "{glob} ~ {text}");
        }
    }
}
