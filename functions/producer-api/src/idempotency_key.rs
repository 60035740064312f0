//! The header `Idempotency-Key`: another way to give the id that a body may have.

use axum::http::HeaderMap;
use ledgerline_event::{Invalid, Name};
use ledgerline_outbox::check_idempotency_key;

const HEADER: &str = "Idempotency-Key";

/// Reads the header.
pub(crate) fn read(headers: &HeaderMap) -> Result<Option<String>, Invalid> {
    let wrong = |reason: &str| Err(Invalid::new(HEADER, reason));
    let mut given = headers.get_all(HEADER).iter();
    let Some(first) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return wrong("is there more than once");
    }
    let Ok(key) = std::str::from_utf8(first.as_bytes()) else { return wrong("is not UTF-8") };
    check_idempotency_key(HEADER, key)?;
    Ok(Some(key.to_owned()))
}

/// Takes the key as the id that the body may have as `field`. Refuses a request that gives both, and different ones.
pub(crate) fn fill(headers: &HeaderMap, field: &'static str, id: &mut Option<String>) -> Result<(), Invalid> {
    match (read(headers)?, &id) {
        (None, _) => {}
        (Some(key), Some(given)) if key != *given => {
            let reason =
                format!("is `{key}`, and {field} in the body is `{given}`: they name the same thing");
            return Err(Invalid::new(HEADER, reason));
        }
        (Some(key), _) => *id = Some(key),
    }
    Ok(())
}

/// The same for an id that must pass `check`. The error names the header if the id came from there.
pub(crate) fn fill_id(
    headers: &HeaderMap,
    field: &'static str,
    id: &mut Option<String>,
    check: impl Fn(&'static str, String) -> Result<Name, Invalid>,
) -> Result<(), Invalid> {
    let from_body = id.is_some();
    fill(headers, field, id)?;
    match id {
        Some(key) if !from_body => check(HEADER, key.clone()).map(drop),
        _ => Ok(()),
    }
}
