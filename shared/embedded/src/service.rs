//! Which service and operation a request addresses.

use std::fmt;

use axum::http::{Method, request::Parts};

/// A service behind the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// Tables.
    DynamoDb,
    /// Queues.
    Sqs,
    /// Event buses.
    EventBridge,
    /// Parameters.
    Ssm,
    /// Buckets and objects.
    S3,
}

impl Service {
    /// The name by which AWS knows the service in endpoints and signatures.
    pub fn name(self) -> &'static str {
        match self {
            Service::DynamoDb => "dynamodb",
            Service::Sqs => "sqs",
            Service::EventBridge => "events",
            Service::Ssm => "ssm",
            Service::S3 => "s3",
        }
    }

    /// The media type of the service's answers.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Service::DynamoDb | Service::Sqs => "application/x-amz-json-1.0",
            Service::EventBridge | Service::Ssm => "application/x-amz-json-1.1",
            Service::S3 => "application/xml",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a request goes.
pub(crate) enum Route {
    /// An operation of a service we speak for.
    Operation(Service, String),
    /// A target header of a service we do not have.
    UnknownTarget(String),
}

/// Reads the target header; S3 is what has none.
pub(crate) fn route(parts: &Parts) -> Route {
    let Some(target) = parts.headers.get("x-amz-target") else {
        return Route::Operation(Service::S3, s3_operation(parts).to_owned());
    };
    let target = target.to_str().unwrap_or_default();
    let Some((prefix, operation)) = target.split_once('.') else {
        return Route::UnknownTarget(target.to_owned());
    };
    let service = match prefix {
        "DynamoDB_20120810" | "DynamoDBStreams_20120810" => Service::DynamoDb,
        "AmazonSQS" => Service::Sqs,
        "AWSEvents" => Service::EventBridge,
        "AmazonSSM" => Service::Ssm,
        _ => return Route::UnknownTarget(target.to_owned()),
    };
    Route::Operation(service, operation.to_owned())
}

/// The name of the S3 operation, for counting and for interceptors; s3s does its own routing.
fn s3_operation(parts: &Parts) -> &'static str {
    let path = parts.uri.path().trim_start_matches('/');
    let query = parts.uri.query().unwrap_or_default();
    let asks = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    let has_key = path.split_once('/').is_some_and(|(_, key)| !key.is_empty());
    match (&parts.method, has_key) {
        (&Method::GET, false) if path.is_empty() => "ListBuckets",
        (&Method::GET, false) if asks("location") => "GetBucketLocation",
        (&Method::GET, false) if asks("list-type") => "ListObjectsV2",
        (&Method::GET, false) => "ListObjects",
        (&Method::PUT, false) => "CreateBucket",
        (&Method::HEAD, false) => "HeadBucket",
        (&Method::DELETE, false) => "DeleteBucket",
        (&Method::POST, false) if asks("delete") => "DeleteObjects",
        (&Method::GET, true) => "GetObject",
        (&Method::PUT, true) if asks("uploadId") => "UploadPart",
        (&Method::PUT, true) => "PutObject",
        (&Method::HEAD, true) => "HeadObject",
        (&Method::DELETE, true) => "DeleteObject",
        (&Method::POST, true) if asks("uploads") => "CreateMultipartUpload",
        _ => "Unknown",
    }
}
