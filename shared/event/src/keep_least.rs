//! Merging what two histories of the same task or job know.

/// Keeps the lesser of two values that may be unknown. The result does not depend on the order or repetition of merges.
pub(crate) fn keep_least<T: Clone + Ord>(own: &mut Option<T>, other: &Option<T>) {
    if let Some(value) = other.as_ref().filter(|value| own.as_ref().is_none_or(|own| *value < own)) {
        *own = Some(value.clone());
    }
}
