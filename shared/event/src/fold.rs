//! What the folds of a task and of a job have in common.

use serde::de::DeserializeOwned;

use crate::Properties;

/// The lesser of two values that may be unknown; joining by it forgets order and repetition.
pub(crate) fn least<T: Clone + Ord>(own: &mut Option<T>, other: &Option<T>) {
    if let Some(value) = other.as_ref().filter(|value| own.as_ref().is_none_or(|own| *value < own)) {
        *own = Some(value.clone());
    }
}

/// The field, if it is there and of the kind that it should be.
pub(crate) fn read<T: DeserializeOwned>(properties: &Properties, field: &str) -> Option<T> {
    properties.get(field).and_then(|value| T::deserialize(value).ok())
}
