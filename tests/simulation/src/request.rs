//! One request as it left an actor, and what may come back.

use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use serde_json::{Value, json};

use super::services::queue_name;

/// A service of AWS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// DynamoDB.
    Dynamo,
    /// EventBridge.
    Events,
    /// SQS.
    Sqs,
    /// Parameters of Systems Manager.
    Ssm,
    /// S3.
    S3,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Dynamo => "dynamodb",
            Self::Events => "events",
            Self::Sqs => "sqs",
            Self::Ssm => "ssm",
            Self::S3 => "s3",
        }
    }

    fn of_target(target: &str) -> Option<Self> {
        match target {
            "DynamoDB_20120810" => Some(Self::Dynamo),
            "AWSEvents" => Some(Self::Events),
            "AmazonSQS" => Some(Self::Sqs),
            "AmazonSSM" => Some(Self::Ssm),
            _ => None,
        }
    }
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// The service that it is sent to.
    pub service: Service,
    /// The operation, as AWS calls it.
    pub operation: String,
    /// S3 only: bucket and key.
    pub(crate) path: String,
    /// S3 only: whether the object must not be there yet.
    pub(crate) if_absent: bool,
    /// What it is about, for the trace and for an order that does not depend on hashing.
    pub about: String,
    body: SdkBody,
}

impl Request {
    pub(crate) fn of(request: HttpRequest) -> Self {
        let target = request.headers().get("x-amz-target").and_then(|target| target.split_once('.'));
        let path = path(request.uri()).to_owned();
        let (service, operation) = match target {
            Some((service, operation)) => match Service::of_target(service) {
                Some(service) => (service, operation.to_owned()),
                None => panic!("nothing here answers {service}.{operation}"),
            },
            None => (Service::S3, s3_operation(request.method(), &path).to_owned()),
        };
        let if_absent = request.headers().get("if-none-match") == Some("*");
        let body = request.into_body();
        let text = body.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
        let about = match service {
            Service::Dynamo => {
                texts(text, |name| matches!(name, "PK" | "SK") || name.starts_with(':')).join(" ")
            }
            Service::S3 => path.clone(),
            Service::Sqs => about_queue(text),
            Service::Events | Service::Ssm => String::new(),
        };
        Self { service, operation, path, if_absent, about: without_ids(&about), body }
    }

    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.service.name(), self.operation)
    }

    pub(crate) fn writes_one_item(&self) -> bool {
        matches!(self.operation.as_str(), "PutItem" | "UpdateItem" | "DeleteItem")
    }

    pub(crate) fn changes_table(&self) -> bool {
        self.writes_one_item() || matches!(self.operation.as_str(), "BatchWriteItem" | "TransactWriteItems")
    }

    /// Whether it creates or configures a table or a queue.
    pub(crate) fn provisions(&self) -> bool {
        matches!(self.operation.as_str(), "CreateTable" | "UpdateTable" | "UpdateTimeToLive" | "CreateQueue")
    }

    pub(crate) fn body(&self) -> &[u8] {
        self.body.bytes().expect("requests are whole in memory")
    }

    /// The body.
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.body()).expect("a request to a JSON service is text")
    }
}

/// What comes after the host and before any query.
fn path(uri: &str) -> &str {
    let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    path.split('?').next().unwrap_or_default()
}

fn s3_operation(method: &str, path: &str) -> &'static str {
    match (method, path.contains('/')) {
        ("PUT", true) => "PutObject",
        ("PUT", false) => "CreateBucket",
        ("GET", true) => "GetObject",
        ("HEAD", true) => "HeadObject",
        _ => "Unknown",
    }
}

/// The queue, and the receipts if there are any. Not the bodies: ids in them are drawn afresh in every run.
fn about_queue(body: &str) -> String {
    let input: Value = serde_json::from_str(body).unwrap_or_default();
    let queue = input["QueueUrl"].as_str().map(queue_name).or(input["QueueName"].as_str());
    let entries = input["Entries"].as_array().into_iter().flatten();
    let receipts = std::iter::once(&input).chain(entries).filter_map(|entry| entry["ReceiptHandle"].as_str());
    queue.into_iter().chain(receipts).collect::<Vec<_>>().join(" ")
}

/// The `PK`s and `SK`s in a request.
pub(crate) fn item_keys(body: &str) -> Vec<&str> {
    texts(body, |name| matches!(name, "PK" | "SK"))
}

/// The text values of the names that are wanted, sorted: a map of attributes leaves the SDK in any order.
fn texts(body: &str, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
    const MIDDLE: &str = "\":{\"S\":\"";
    let mut found = Vec::new();
    for (at, _) in body.match_indices(MIDDLE) {
        if wanted(body[..at].rsplit('"').next().unwrap_or_default()) {
            let value = &body[at + MIDDLE.len()..];
            found.push(&value[..value.find('"').unwrap_or(value.len())]);
        }
    }
    found.sort_unstable();
    found
}

/// The text with `*` for each ULID after a prefix: these are drawn afresh in every run.
fn without_ids(text: &str) -> String {
    const ULID: usize = 26;
    let mut pieces = text.split('_');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain.push('_');
        match piece.as_bytes().get(..ULID) {
            Some(id) if id.iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()) => {
                plain.push('*');
                plain.push_str(&piece[ULID..]);
            }
            _ => plain.push_str(piece),
        }
    }
    plain
}

/// The answer that an actor gets.
#[derive(Debug)]
pub(crate) enum Reply {
    Response(Response),
    TimedOut,
    ConnectionLost,
}

/// An answer on the wire.
#[derive(Debug)]
pub struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type", "application/x-amz-json-1.0".to_owned())];
        Self { status, headers, body: body.into() }
    }

    pub(crate) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    /// An error in the form of the service.
    pub fn error(service: Service, status: u16, code: &str, message: &str) -> Self {
        match service {
            Service::S3 => {
                let body = format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>"
                );
                let headers = vec![("content-type", "application/xml".to_owned())];
                Self { status, headers, body: body.into_bytes() }
            }
            Service::Dynamo | Service::Events | Service::Sqs | Service::Ssm => {
                Self::json(status, json!({ "__type": code, "message": message }).to_string())
            }
        }
    }
}
