//! The body of a request as a server hands it on: it ends with an error when the client falls silent, and what a handler has
//! not read is read after it. A connection that is closed with bytes unread loses the answer too.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use futures::future::poll_fn;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

/// How much of a body is read that its handler does not want: more than any client here sends by mistake.
const MAX_REST_BYTES: usize = 64 * 1024 * 1024;

/// A body, and the way to what will be left of it.
pub(crate) fn watched(body: Incoming, timeout: Duration) -> (Body, Rest) {
    let slot = Slot::default();
    let rest = Rest { slot: slot.clone(), timeout };
    if body.is_end_stream() {
        return (Body::empty(), rest);
    }
    let silence = Box::pin(tokio::time::sleep(timeout));
    (Body::new(Watched { body: Some(body), slot, timeout, silence }), rest)
}

/// Where a body goes that was dropped before its end.
type Slot = Arc<Mutex<Option<Incoming>>>;

struct Watched {
    body: Option<Incoming>,
    slot: Slot,
    timeout: Duration,
    silence: Pin<Box<Sleep>>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        match Pin::new(body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                this.silence.as_mut().reset(Instant::now() + this.timeout);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.body = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                this.body = None;
                Poll::Ready(None)
            }
            Poll::Pending => match this.silence.as_mut().poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    this.body = None;
                    Poll::Ready(Some(Err("the body stopped arriving".into())))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
    }
}

/// What a handler leaves of a body.
pub(crate) struct Rest {
    slot: Slot,
    timeout: Duration,
}

impl Rest {
    /// Reads and forgets it, up to a bound in bytes and in time.
    pub(crate) async fn read_to_end(self) {
        let left = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut body) = left else { return };
        let read = async {
            let mut bytes = 0;
            while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                bytes += frame.data_ref().map_or(0, Bytes::len);
                if bytes > MAX_REST_BYTES {
                    return;
                }
            }
        };
        // A client that is slower loses the answer to what it should not have sent.
        let _ = tokio::time::timeout(self.timeout, read).await;
    }
}
