//! Logs and counts every request.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use crate::Api;

/// Passes a request on, then logs and counts it.
pub(crate) async fn log_and_count(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), without_token(request.uri().path()).to_owned());
    let began = (api.clock)();
    let response = next.run(request).await;
    let now = (api.clock)();
    let status = response.status();
    tracing::info!(%method, path, status = status.as_u16(), ms = now.get().saturating_sub(began.get()), "request");
    api.metrics.count(
        now,
        &[
            ("Requests", 1),
            ("ClientErrors", usize::from(status.is_client_error())),
            ("ServerErrors", usize::from(status.is_server_error())),
        ],
    );
    response
}

/// The path without a hook's token: every reader of the log could use the token.
fn without_token(path: &str) -> &str {
    const HOOKS: &str = "/api/hooks/";
    if path.starts_with(HOOKS) { HOOKS } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_hook_is_not_logged() {
        assert_eq!(without_token("/api/hooks/htok_7d9f0b4c2a1e48d6b3f5a7c9e1d3b5f7"), "/api/hooks/");
        assert_eq!(without_token("/api/runs/r/events"), "/api/runs/r/events");
    }
}
