//! Paths with ids that no record can have: the tables would refuse the key, and that is the caller's mistake.

use axum::{
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::problem::Problem;

/// Longer than every id and token.
const MAX_BYTES: usize = 512;

/// Answers 404 to a path with a part that is longer than every id.
pub(crate) async fn refuse(request: Request, next: Next) -> Response {
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

/// What the ids of a path are ids of.
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

/// How many bytes a part of a path has: `%41` is one.
fn decoded_bytes(part: &str) -> usize {
    part.len() - 2 * part.bytes().filter(|byte| *byte == b'%').count().min(part.len() / 3)
}
