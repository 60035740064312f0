//! S3: buckets and objects as rows of the store, behind s3s, which speaks the REST protocol.
//!
//! Rows rather than files: a key is any string of up to 1,024 bytes, `..` and all, and file names are not.

mod listing;
mod objects;
mod strip_signature;

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Request, request::Parts};
use axum::response::Response;
use s3s::service::{S3Service, S3ServiceBuilder};

use crate::Clock;
use crate::answer::AwsError;
use crate::store::Store;

/// The object store.
pub(crate) struct S3(S3Service);

impl S3 {
    pub(crate) fn new(store: Arc<Store>, clock: Clock, region: String) -> Self {
        Self(S3ServiceBuilder::new(objects::Objects { store, clock, region }).build())
    }

    /// Carries out one request.
    pub(crate) async fn handle(&self, mut parts: Parts, body: Bytes) -> Result<Response, AwsError> {
        let body = strip_signature::strip(&mut parts, body)?;
        let answer = self.0.call(Request::from_parts(parts, s3s::Body::from(body))).await;
        let answer = answer.map_err(|error| AwsError::internal(format!("{error:?}")))?;
        Ok(answer.map(Body::new))
    }
}
