//! JSON that crosses between code and log.

use ledgerline_event::Invalid;
use serde::{Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::Error;

/// `value` as a `T`; the error names the field inside of `what` that does not fit.
pub(crate) fn read<'de, T: DeserializeOwned>(what: &str, value: impl Deserializer<'de>) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { what.to_owned() } else { format!("{what}.{path}") };
        Error::fatal(format!("{place}: {}", error.inner()))
    })
}

/// `value` as JSON.
pub(crate) fn write(what: &str, value: &(impl Serialize + ?Sized)) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| Error::fatal(format!("{what}: {error}")))
}

/// The error of a value that the code gave wrongly.
pub(crate) fn bad_input(invalid: &Invalid) -> Error {
    Error::fatal(invalid.to_string()).code("bad_input")
}
