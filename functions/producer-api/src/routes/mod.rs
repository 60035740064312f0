//! One file per resource.

pub(crate) mod drainers;
pub(crate) mod failed;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod parked;
pub(crate) mod recent;
pub(crate) mod record;
pub(crate) mod subscriptions;
pub(crate) mod tasks;
pub(crate) mod workflows;

use ledgerline_event::Invalid;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 500;

/// How many items a list answers with.
fn limit(asked: Option<usize>) -> Result<usize, Invalid> {
    match asked.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        other => Err(Invalid::new("limit", format!("{other} is not between 1 and {MAX_LIMIT}"))),
    }
}
