use std::fmt;

/// Where the log of a run and its code disagree, from both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What the log has.
    pub log: String,
    /// What the code does instead.
    pub code: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} — {}", self.log, self.code)
    }
}
