/// A value that breaks a rule, and its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    /// The field as it is spelt in JSON.
    pub field: &'static str,
    /// What is wrong with it, in words that follow the field's name.
    pub reason: String,
}

impl Invalid {
    /// An error about `field`.
    pub fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self { field, reason: reason.into() }
    }
}
