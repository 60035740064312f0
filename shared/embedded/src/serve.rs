//! Serves one loopback port: closes connections that bring no request, and refuses requests of web pages.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::cross_origin;
use crate::request_body::{self, Rest};

/// A port out of file descriptors looks again after this time.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

/// How long a client may be silent.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Between a connection, or the end of a request on it, and the end of the next request's head.
    pub head: Duration,
    /// Between two pieces of a body.
    pub body: Duration,
}

impl Default for ConnectionTimeouts {
    fn default() -> Self {
        Self { head: Duration::from_secs(60), body: Duration::from_secs(30) }
    }
}

/// Serves `app` until `stopped` says so; then finishes the requests that are under way. Requests that a web page of another
/// address may have sent are answered with 403.
pub async fn serve(
    listener: Arc<TcpListener>,
    app: Router,
    timeouts: ConnectionTimeouts,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            // A dropped sender stops the server too.
            _ = stopped.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, app.clone(), timeouts, stopped.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    app: Router,
    timeouts: ConnectionTimeouts,
    mut stopped: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "could not set TCP_NODELAY");
    }
    let service = service_fn(|request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(answer(app, request, timeouts.body).await) }
    });
    let mut builder = http1::Builder::new();
    let builder = builder.timer(TokioTimer::new()).header_read_timeout(timeouts.head);
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = served.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            _ = stopped.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(app: Router, request: Request<Incoming>, body_timeout: Duration) -> Response {
    let (parts, body) = request.into_parts();
    let (body, rest): (Body, Rest) = request_body::watched(body, body_timeout);
    let answer = match cross_origin::refusal(&parts.uri, &parts.headers) {
        Some(reason) => {
            drop(body);
            refused(&reason)
        }
        None => app.oneshot(Request::from_parts(parts, body)).await.unwrap_or_else(|never| match never {}),
    };
    rest.read_to_end().await;
    answer
}

/// An answer that clients of the API and AWS clients understand.
fn refused(reason: &str) -> Response {
    let body = json!({
        "type": "about:blank", "title": "Forbidden", "status": 403, "detail": reason,
        "__type": "AccessDeniedException", "message": reason,
    });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}
