//! What every list is asked with.

use axum::extract::{Query, rejection::QueryRejection};
use ledgerline_event::Invalid;
use ledgerline_ledger::control::keys::is_failure_id;
use serde::Deserialize;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 500;

/// The query of a request, if it could be read.
pub(crate) type Asked<Q> = Result<Query<Q>, QueryRejection>;

/// Where to go on, and how far.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paging {
    limit: Option<usize>,
    pub(super) cursor: Option<String>,
}

/// The same, for entities in one state.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InState<S> {
    pub(super) state: Option<S>,
    limit: Option<usize>,
    pub(super) cursor: Option<String>,
}

/// The same, for failed deliveries and parked starts that wait for an operator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Open {
    /// Also those that do not wait for an operator: redriven deliveries, and starts that are still retried.
    #[serde(default)]
    pub(super) all: bool,
    limit: Option<usize>,
    cursor: Option<String>,
}

impl Paging {
    pub(super) fn limit(&self) -> Result<usize, Invalid> {
        limit(self.limit)
    }
}

impl<S> InState<S> {
    pub(super) fn limit(&self) -> Result<usize, Invalid> {
        limit(self.limit)
    }
}

impl Open {
    pub(super) fn limit(&self) -> Result<usize, Invalid> {
        limit(self.limit)
    }

    /// The ids of failed deliveries and of parked starts have the same form, and are the cursors.
    pub(super) fn cursor(&self) -> Result<Option<&str>, Invalid> {
        match self.cursor.as_deref() {
            Some(cursor) if !is_failure_id(cursor) => Err(foreign_cursor()),
            cursor => Ok(cursor),
        }
    }
}

/// How many items a list answers with.
pub(super) fn limit(asked: Option<usize>) -> Result<usize, Invalid> {
    match asked.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        other => Err(Invalid::new("limit", format!("{other} is not between 1 and {MAX_LIMIT}"))),
    }
}

/// A cursor that was made up.
pub(super) fn foreign_cursor() -> Invalid {
    Invalid::new("cursor", "is not one that a list gave")
}
