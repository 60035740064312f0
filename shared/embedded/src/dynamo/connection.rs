//! The one connection to dynoxide's server. The server insists on a TCP listener; no other client may reach it, since it
//! checks neither hosts nor signatures. So its listener is polled until it has accepted our connection, and never again: the
//! kernel completes the handshake of another client, and no thread ever reads what that client sends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use dynoxide::Database;
use futures::future::BoxFuture;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// A connection that is open.
pub(super) struct Connection {
    sender: SendRequest<Body>,
    /// Dropping it would end the connection; polling it would accept others.
    _server: BoxFuture<'static, ()>,
}

impl Connection {
    /// Opens the connection; to be called on the runtime that is to serve it.
    pub(super) async fn open(database: Database) -> Result<Self, String> {
        let listener = TcpListener::bind(address()).await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut server: BoxFuture<'static, ()> = Box::pin(dynoxide::server::serve_on(listener, database));
        let (mut sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the tables ended");
            }
        });
        let hello = Request::get("/").header("host", "tables").body(Body::empty());
        let hello = hello.map_err(|error| error.to_string())?;
        tokio::select! {
            () = &mut server => Err("the table store did not start".to_owned()),
            answer = sender.send_request(hello) => match answer {
                Ok(_) => Ok(Self { sender, _server: server }),
                Err(error) => Err(error.to_string()),
            },
        }
    }

    /// Whether requests can still be sent.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends one request and reads its whole answer.
    pub(super) async fn send(&mut self, request: Request<Body>) -> Result<Response<Bytes>, String> {
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let answer = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = answer.into_parts();
        let body =
            axum::body::to_bytes(Body::new(body), usize::MAX).await.map_err(|error| error.to_string())?;
        Ok(Response::from_parts(head, body))
    }
}

/// A free port. Where every address of 127.0.0.0/8 is there, one of them by chance: the port cannot be found in the
/// millisecond in which it accepts.
fn address() -> SocketAddr {
    let ip = match cfg!(target_os = "linux") {
        true => Ipv4Addr::new(127, fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255)),
        false => Ipv4Addr::LOCALHOST,
    };
    SocketAddr::new(IpAddr::V4(ip), 0)
}
