//! Connections that bring no request, and requests that bring too much.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use ledgerline_embedded::{ConnectionTimeouts, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

struct Port {
    address: std::net::SocketAddr,
    _stop: watch::Sender<bool>,
}

/// A port with handlers that read a body and that do not, and little timeouts.
async fn port() -> Port {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new()
        .route(
            "/read",
            axum::routing::post(|body: axum::body::Body| async {
                axum::body::to_bytes(body, usize::MAX)
                    .await
                    .map_or(StatusCode::BAD_REQUEST, |_| StatusCode::OK)
            }),
        )
        .route("/refuse", axum::routing::post(|| async { StatusCode::PAYLOAD_TOO_LARGE }));
    let timeouts = ConnectionTimeouts { head: Duration::from_millis(200), body: Duration::from_millis(200) };
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(serve(Arc::new(listener), app, timeouts, stopped));
    Port { address, _stop: stop }
}

/// Sends the bytes and reads until the other side closes.
async fn exchange(port: &Port, sent: &[u8]) -> String {
    let mut stream = TcpStream::connect(port.address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
    read.expect("the connection is closed").unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let port = port().await;
    assert_eq!(exchange(&port, b"").await, "");
    exchange(&port, b"POST /read HTTP/1.1\r\nHost: loc").await;
}

#[tokio::test]
async fn a_body_that_stops_arriving_ends_the_request() {
    let port = port().await;
    let answer =
        exchange(&port, b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test]
async fn a_client_that_sends_twenty_megabytes_reads_why_they_are_refused() {
    let port = port().await;
    let mut request =
        b"POST /refuse HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 20000000\r\n\r\n"
            .to_vec();
    request.resize(request.len() + 20_000_000, b'x');
    let answer = exchange(&port, &request).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}
