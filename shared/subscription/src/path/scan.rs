//! Scans the text of a JSONPath before the library parses it: finds strings that are not closed, paths that cost too much,
//! whether the path is singular, and the names of top-level fields.
//!
//! The library's parser panics at a truncated escape and takes time exponential in nested brackets, so neither may reach it.

use std::ops::Range;

/// How deep brackets and parentheses may nest.
const NESTING: usize = 8;
/// How many `..` a path may have: each visits all that is below all that was found.
const DESCENTS: usize = 3;
/// The most combinations of selectors: the product of the lengths of a path's selector lists.
const SELECTORS: usize = 64;

/// One step of a singular path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Name(String),
    /// From the end if negative.
    Index(i64),
}

/// An error, and the byte before which it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) reason: String,
}

/// The result of a scan.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The path has names and indexes only.
    pub(crate) singular: bool,
    /// How often filters refer to the root `$`.
    pub(crate) inner_roots: usize,
    /// The names directly below a `$`: their bytes, and the names themselves.
    pub(crate) top_names: Vec<(Range<usize>, String)>,
}

/// Scans `text`, which begins with `$`.
pub(crate) fn scan(text: &str) -> Result<Scan, Fault> {
    let mut scan = Scan { singular: true, ..Scan::default() };
    // Each open bracket, and how many selectors it lists.
    let mut open: Vec<(char, usize)> = Vec::new();
    let (mut descents, mut roots, mut product) = (0, 0, 1_usize);
    // The depth of the bracket that directly follows a `$`.
    let mut top_bracket: Option<usize> = None;
    let mut rest = Cursor { text, at: 0 };
    while let Some((at, c)) = rest.next() {
        match c {
            '\'' | '"' => {
                let value = rest.string(at, c)?;
                let alone = matches!(text[..at].trim_end().chars().last(), Some('[' | ','))
                    && matches!(rest.after_blanks(), Some(',' | ']'));
                if alone && top_bracket == Some(open.len()) {
                    scan.top_names.push((at..rest.at, value));
                }
            }
            '$' => {
                roots += 1;
                rest.skip_blanks();
                match rest.peek() {
                    Some('[') => top_bracket = Some(open.len() + 1),
                    Some('.') => scan.top_names.extend(rest.dot_name()),
                    _ => {}
                }
            }
            '[' | '(' => {
                open.push((c, 1));
                if open.len() > NESTING {
                    return Err(fault(at, format!("nests more than {NESTING} brackets")));
                }
            }
            ']' | ')' => {
                if top_bracket == Some(open.len()) {
                    top_bracket = None;
                }
                match open.pop() {
                    Some(('[', selectors)) if c == ']' => product = product.saturating_mul(selectors),
                    Some(('(', _)) if c == ')' => {}
                    _ => return Err(fault(at, format!("has a `{c}` that closes nothing"))),
                }
            }
            ',' => {
                scan.singular = false;
                if let Some((_, selectors)) = open.last_mut() {
                    *selectors += 1;
                }
            }
            '.' if rest.peek() == Some('.') => {
                rest.next();
                scan.singular = false;
                descents += 1;
                if descents > DESCENTS {
                    return Err(fault(at, format!("has more than {DESCENTS} `..`")));
                }
            }
            '*' | '?' | ':' => scan.singular = false,
            _ => {}
        }
    }
    if let Some((bracket, _)) = open.last() {
        let expected = if *bracket == '[' { ']' } else { ')' };
        return Err(fault(text.len(), format!("ends where a `{expected}` is missing")));
    }
    if product > SELECTORS {
        return Err(fault(0, format!("lists {product} combinations of selectors; {SELECTORS} are allowed")));
    }
    scan.inner_roots = roots - 1;
    Ok(scan)
}

/// The steps of a path that is valid and singular.
pub(crate) fn steps(text: &str) -> Option<Vec<Step>> {
    let mut rest = Cursor { text, at: 1 };
    let mut steps = Vec::new();
    loop {
        rest.skip_blanks();
        match rest.peek() {
            None => return Some(steps),
            Some('.') => steps.push(Step::Name(rest.dot_name()?.1)),
            Some('[') => {
                rest.next();
                rest.skip_blanks();
                let (at, c) = rest.next()?;
                let step = match c {
                    '\'' | '"' => Step::Name(rest.string(at, c).ok()?),
                    _ => {
                        let end = at + text[at..].find(|c: char| c != '-' && !c.is_ascii_digit())?;
                        rest.at = end;
                        Step::Index(text[at..end].parse().ok()?)
                    }
                };
                steps.push(step);
                rest.skip_blanks();
                rest.next().filter(|(_, c)| *c == ']')?;
            }
            Some(_) => return None,
        }
    }
}

fn fault(at: usize, reason: impl Into<String>) -> Fault {
    Fault { at, reason: reason.into() }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<(usize, char)> {
        let (at, c) = (self.at, self.peek()?);
        self.at += c.len_utf8();
        Some((at, c))
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.text[self.at..].trim_start_matches([' ', '\t', '\r', '\n']).len();
    }

    fn after_blanks(&self) -> Option<char> {
        self.text[self.at..].trim_start_matches([' ', '\t', '\r', '\n']).chars().next()
    }

    /// The name after a dot that is not the first of two.
    fn dot_name(&mut self) -> Option<(Range<usize>, String)> {
        let name = &self.text[self.at + 1..];
        let end = name.find(|c: char| c.is_ascii() && !c.is_ascii_alphanumeric() && c != '_');
        let name = &name[..end.unwrap_or(name.len())];
        if name.is_empty() {
            return None;
        }
        let range = self.at + 1..self.at + 1 + name.len();
        self.at = range.end;
        Some((range, name.to_owned()))
    }

    /// The string that `quote` opened at `start`.
    fn string(&mut self, start: usize, quote: char) -> Result<String, Fault> {
        let mut value = String::new();
        while let Some((at, c)) = self.next() {
            match c {
                _ if c == quote => return Ok(value),
                '\\' => value.push(self.escape(at, quote)?),
                _ if c < ' ' => return Err(fault(at, "has a control character")),
                _ => value.push(c),
            }
        }
        Err(fault(start, "begins a text that is not closed"))
    }

    fn escape(&mut self, at: usize, quote: char) -> Result<char, Fault> {
        let wrong = || fault(at, "has an escape that JSON does not know");
        let (_, c) = self.next().ok_or_else(wrong)?;
        Ok(match c {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '/' | '\\' => c,
            _ if c == quote => c,
            'u' => {
                let first = self.hex().ok_or_else(wrong)?;
                let unit = if (0xD800..0xDC00).contains(&first) {
                    let rest = self.text[self.at..].strip_prefix("\\u").ok_or_else(wrong)?;
                    self.at = self.text.len() - rest.len();
                    vec![first, self.hex().ok_or_else(wrong)?]
                } else {
                    vec![first]
                };
                char::decode_utf16(unit).next().and_then(Result::ok).ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        })
    }

    fn hex(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.chars().all(|c| c.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    }
}
