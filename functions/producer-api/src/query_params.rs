//! Parameters of a request's address: the id in its path, and the filters and paging of its query.

use axum::{
    extract::{FromRequestParts, Path, Query},
    http::request::Parts,
};
use ledgerline_event::Invalid;
use ledgerline_store::keys::is_failure_id;
use serde::{Deserialize, de::DeserializeOwned};

use crate::problem::Problem;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 500;

/// The id, type or token in the path of a request.
pub(crate) struct PathId(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(id) = Path::from_request_parts(parts, state).await?;
        Ok(Self(id))
    }
}

/// The query of a request, read as a `Q`.
pub(crate) struct QueryParams<Q>(pub(crate) Q);

impl<Q: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(params) = Query::from_request_parts(parts, state).await?;
        Ok(Self(params))
    }
}

/// Which page of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paging {
    limit: Option<usize>,
    pub(crate) cursor: Option<String>,
}

/// A page of the entities in one state.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateFilter<S> {
    pub(crate) state: Option<S>,
    limit: Option<usize>,
    pub(crate) cursor: Option<String>,
}

/// A page of the failed deliveries or parked starts that wait for an operator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenFilter {
    /// Also those that do not wait for an operator: redriven deliveries, and starts that are still retried.
    #[serde(default)]
    pub(crate) all: bool,
    limit: Option<usize>,
    cursor: Option<String>,
}

impl Paging {
    pub(crate) fn limit(&self) -> Result<usize, Invalid> {
        limit(self.limit)
    }
}

impl<S> StateFilter<S> {
    pub(crate) fn limit(&self) -> Result<usize, Invalid> {
        limit(self.limit)
    }
}

impl OpenFilter {
    pub(crate) fn limit(&self) -> Result<usize, Invalid> {
        limit(self.limit)
    }

    /// The ids of failed deliveries and of parked starts have the same form, and are the cursors.
    pub(crate) fn cursor(&self) -> Result<Option<&str>, Invalid> {
        match self.cursor.as_deref() {
            Some(cursor) if !is_failure_id(cursor) => Err(invalid_cursor()),
            cursor => Ok(cursor),
        }
    }
}

/// The number of items on a page.
pub(crate) fn limit(given: Option<usize>) -> Result<usize, Invalid> {
    match given.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        other => Err(Invalid::new("limit", format!("{other} is not between 1 and {MAX_LIMIT}"))),
    }
}

/// The error for a cursor that no list returned.
pub(crate) fn invalid_cursor() -> Invalid {
    Invalid::new("cursor", "is not one that a list gave")
}
