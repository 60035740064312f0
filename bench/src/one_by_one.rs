use anyhow::Context;
use regex::Regex;

/// The globs of a naive polling loop: each a regex of its own, compiled once, tried one after another.
pub(crate) struct OneByOne(Vec<Regex>);

impl OneByOne {
    /// Compiles the globs.
    pub(crate) fn new<'a>(globs: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Self> {
        let compile = |glob| Regex::new(&pattern(glob)).with_context(|| format!("compiling {glob}"));
        globs.into_iter().map(compile).collect::<anyhow::Result<_>>().map(Self)
    }

    /// The numbers of those that match.
    pub(crate) fn matching<'a>(&'a self, event_type: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.0.iter().enumerate().filter(|(_, regex)| regex.is_match(event_type)).map(|(number, _)| number)
    }
}

fn pattern(glob: &str) -> String {
    format!("^{}$", regex::escape(glob).replace(r"\*", ".*").replace(r"\?", "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text_and_a_dot_is_only_a_dot() {
        let globs = OneByOne::new(["price.*", "*", "price.changed", "*.changed", "pricexchanged"]).unwrap();
        assert_eq!(globs.matching("price.changed").collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(globs.matching("pricexchanged").collect::<Vec<_>>(), [1, 4]);
    }
}
