//! What happened, step by step: a hash of it always, the lines themselves with `LEDGERLINE_TRACE=1`.

use std::{
    fmt::Arguments,
    hash::{DefaultHasher, Hash, Hasher},
};

pub(crate) struct Trace {
    hasher: DefaultHasher,
    printed: bool,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self { hasher: DefaultHasher::new(), printed: std::env::var_os("LEDGERLINE_TRACE").is_some() }
    }

    pub(crate) fn line(&mut self, line: Arguments<'_>) {
        let line = line.to_string();
        line.hash(&mut self.hasher);
        if self.printed {
            println!("{line}");
        }
    }

    /// Equal for equal histories.
    pub(crate) fn hash(&self) -> u64 {
        self.hasher.finish()
    }
}
