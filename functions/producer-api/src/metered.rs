use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use crate::Api;

/// Counts and logs every request.
pub(crate) async fn count(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), shown(request.uri().path()).to_owned());
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

/// A path as the log may show it, without a hook's token: every reader of the log could use the token.
fn shown(path: &str) -> &str {
    const HOOKS: &str = "/api/hooks/";
    if path.starts_with(HOOKS) { HOOKS } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_hook_is_not_logged() {
        assert_eq!(shown("/api/hooks/htok_7d9f0b4c2a1e48d6b3f5a7c9e1d3b5f7"), "/api/hooks/");
        assert_eq!(shown("/api/runs/r/events"), "/api/runs/r/events");
    }
}
