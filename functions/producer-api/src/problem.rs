//! Errors as callers see them: `application/problem+json`, with a `detail` that names the place.

use axum::{
    Json,
    extract::rejection::{PathRejection, QueryRejection},
    http::{Method, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use ledgerline_event::Invalid;
use ledgerline_ledger::{EmitError, QueryError};
use ledgerline_outbox::ComponentError;
use ledgerline_store::{Fault, KeyRefused, StoreError};
use serde_json::json;

/// An error answer.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    /// The state that forbids the request, for programs.
    state: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), state: None }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let mut body = json!({
            "type": "about:blank",
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some(state) = self.state {
            body["state"] = state.into();
        }
        let mut response = (self.status, Json(body)).into_response();
        response
            .headers_mut()
            .insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("application/problem+json"));
        response
    }
}

pub(crate) async fn no_such_route(uri: Uri) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()))
}

pub(crate) async fn no_such_method(method: Method, uri: Uri) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", uri.path()))
}

/// The error code of the bus while savers are behind.
const THROTTLED: &str = "ThrottlingException";

fn busy() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the ledger is busy; try again in a moment")
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::bad_request(invalid.to_string())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        let text = rejection.body_text();
        let detail = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
        Self::bad_request(detail)
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(format!("the path: {}", rejection.body_text()))
    }
}

impl From<ComponentError> for Problem {
    fn from(error: ComponentError) -> Self {
        match error {
            ComponentError::Invalid(invalid) | ComponentError::Emit(EmitError::Invalid(invalid)) => {
                invalid.into()
            }
            ComponentError::Unknown { .. } => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            ComponentError::Refused(reason) => Self::new(StatusCode::CONFLICT, reason),
            ComponentError::Illegal(illegal) => {
                Self { state: Some(illegal.state), ..Self::new(StatusCode::CONFLICT, illegal.to_string()) }
            }
            ComponentError::Store(error) if error.fault == Fault::Throttled => error.into(),
            ComponentError::Emit(EmitError::NotAccepted { code, .. }) if code == THROTTLED => busy(),
            ComponentError::Store(error)
                if matches!(error.fault, Fault::Conflict | Fault::ConditionFailed) =>
            {
                tracing::warn!(%error, "concurrent writes to one record; answered 503");
                let detail =
                    "too many concurrent changes to the same record; nothing was done, try again in a moment";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            }
            // A later sweep resumes what this request has claimed, so the answer cannot say that nothing happened.
            ComponentError::Store(_)
            | ComponentError::NotNotified(_)
            | ComponentError::Emit(_)
            | ComponentError::Alert(_) => {
                tracing::error!(%error, "an AWS request failed");
                let detail = "the ledger did not answer; what was asked for may have happened, or may still happen; \
                              check before retrying";
                Self::new(StatusCode::BAD_GATEWAY, detail)
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "an AWS request failed");
        match error.fault {
            Fault::Throttled => busy(),
            // What went wrong inside is for the log, not for callers.
            _ => Self::new(
                StatusCode::BAD_GATEWAY,
                "the ledger did not answer; nothing was recorded by this request",
            ),
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Cursor(_) => Self::bad_request(error.to_string()),
            QueryError::Store(error) => error.into(),
        }
    }
}

impl From<EmitError> for Problem {
    fn from(error: EmitError) -> Self {
        match error {
            EmitError::Invalid(invalid) => invalid.into(),
            EmitError::Overflow(error) => error.into(),
            EmitError::NotAccepted { code, .. } if code == THROTTLED => busy(),
            EmitError::NotAccepted { .. } => {
                tracing::error!(%error, "the bus did not accept an event");
                let detail = "the bus did not confirm the event; sending it again with the same idempotencyKey is safe";
                Self::new(StatusCode::BAD_GATEWAY, detail)
            }
        }
    }
}

impl From<KeyRefused> for Problem {
    fn from(refused: KeyRefused) -> Self {
        match refused {
            KeyRefused::Unknown | KeyRefused::Revoked(_) => {
                Self::new(StatusCode::UNAUTHORIZED, format!("Authorization: {refused}"))
            }
            KeyRefused::Store(error) => error.into(),
        }
    }
}
