//! Where tests inject faults: real stores never throttle, conflict or lose an answer on demand.

use std::sync::Arc;

use axum::body::Bytes;
use futures::future::BoxFuture;

use crate::Service;

/// One request, as the gateway understood it.
#[derive(Clone, Debug)]
pub struct Call {
    /// The service addressed.
    pub service: Service,
    /// The operation, such as `PutItem`.
    pub operation: String,
    /// The request's body.
    pub body: Bytes,
}

/// When an interceptor is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing has happened yet.
    Before,
    /// The request has been carried out; the client has not been answered.
    After {
        /// The HTTP status about to be answered.
        status: u16,
    },
}

/// What to do with a request, or with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass it on.
    Proceed,
    /// Answer with this error. After the request was carried out its writes stay, and only the answer is lost.
    Fail {
        /// The HTTP status.
        status: u16,
        /// The AWS error type, such as `ProvisionedThroughputExceededException`.
        code: String,
    },
}

/// Called around every request; awaiting in it delays the request or its answer.
pub type Interceptor = Arc<dyn Fn(Call, Moment) -> BoxFuture<'static, Verdict> + Send + Sync>;
