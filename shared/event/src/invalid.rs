/// A value that breaks the contract of an event, and the field it was found in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    /// The field as it is spelt in JSON.
    pub field: &'static str,
    /// What is wrong with it, as a person would say it.
    pub reason: String,
}

impl Invalid {
    /// An error about `field`.
    pub fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self { field, reason: reason.into() }
    }
}
