/// An environment variable that must be set and is not.
#[derive(Debug, thiserror::Error)]
#[error("the environment variable {0} is not set")]
pub struct MissingVariable(pub &'static str);

/// The value of an environment variable that must be there.
pub fn required(name: &'static str) -> Result<String, MissingVariable> {
    optional(name).ok_or(MissingVariable(name))
}

/// The value of an environment variable, if it is set and not empty.
pub fn optional(name: &'static str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
