//! Refuses ids in paths that are longer than any record's: DynamoDB would refuse the key, and the caller would read that as a failure of
//! the ledger.

use axum::{
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::problem::Problem;

/// Longer than every id and token.
const MAX_BYTES: usize = 512;

/// Answers 404 to a path with a segment that is longer than every id.
pub(crate) async fn refuse_overlong_ids(request: Request, next: Next) -> Response {
    match request.uri().path().split('/').map(decoded_bytes).find(|bytes| *bytes > MAX_BYTES) {
        None => next.run(request).await,
        Some(bytes) => {
            let detail = match kind(request.uri().path()) {
                // The same words as for every other unknown token.
                "hooks" => "hooks: no hook has this token".to_owned(),
                what => format!("{what}: there is no id of {bytes} bytes"),
            };
            Problem::new(StatusCode::NOT_FOUND, detail).into_response()
        }
    }
}

/// What an id in this path names.
fn kind(path: &str) -> &'static str {
    match path.split('/').nth(2).unwrap_or_default() {
        "tasks" => "task",
        "jobs" => "job",
        "runs" => "run",
        "subscriptions" => "subscription",
        "workflows" => "workflow type",
        "parked" => "parked",
        "drainers" => "drainer",
        "hooks" => "hooks",
        _ => "path",
    }
}

/// The length of a segment in bytes: `%41` is one byte.
fn decoded_bytes(segment: &str) -> usize {
    segment.len() - 2 * segment.bytes().filter(|byte| *byte == b'%').count().min(segment.len() / 3)
}
