//! Answers and errors in the shape AWS clients expect.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Service;

/// An AWS error: a status, a type and a message.
#[derive(Debug)]
pub(crate) struct AwsError {
    status: u16,
    code: String,
    message: String,
    /// The code of the older query protocol, which SDKs read for SQS.
    query_code: Option<String>,
}

impl AwsError {
    /// An error the caller can do something about.
    pub(crate) fn sender(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: 400, code: code.into(), message: message.into(), query_code: None }
    }

    /// An error of ours; SDKs retry it.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self {
            status: 500,
            code: "InternalServerError".to_owned(),
            message: message.into(),
            query_code: None,
        }
    }

    /// An error a test asked for.
    pub(crate) fn injected(status: u16, code: String) -> Self {
        let query_code = Some(format!("{code};{}", if status < 500 { "Sender" } else { "Receiver" }));
        Self { status, code, message: "injected by an interceptor".to_owned(), query_code }
    }

    /// The service has no such operation.
    pub(crate) fn unknown_operation(operation: &str) -> Self {
        Self::sender(
            "com.amazon.coral.service#UnknownOperationException",
            format!("The operation {operation} is not available here."),
        )
    }

    /// Whether the error has this code.
    pub(crate) fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// The same error with the query protocol's code alongside.
    pub(crate) fn with_query_code(mut self, code: &str) -> Self {
        self.query_code = Some(format!("{code};Sender"));
        self
    }

    /// The error on the wire.
    pub(crate) fn into_response(self, service: Service) -> Response {
        let body = match service {
            Service::S3 => format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code><Message>{}</Message></Error>",
                self.code, self.message
            ),
            _ => json!({"__type": self.code, "message": self.message}).to_string(),
        };
        let mut response = respond(self.status, service.content_type(), body);
        if service == Service::Sqs
            && let Some(code) = self.query_code.and_then(|code| HeaderValue::from_str(&code).ok())
        {
            response.headers_mut().insert("x-amzn-query-error", code);
        }
        response
    }
}

impl From<rusqlite::Error> for AwsError {
    fn from(error: rusqlite::Error) -> Self {
        AwsError::internal(format!("the store failed: {error}"))
    }
}

/// What a JSON operation answers.
pub(crate) type Answer = Result<Value, AwsError>;

/// Reads an operation's input.
pub(crate) fn input<T: DeserializeOwned>(body: &[u8]) -> Result<T, AwsError> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| {
        AwsError::sender("com.amazon.coral.service#SerializationException", error.to_string())
    })
}

/// An answer of a JSON service on the wire.
pub(crate) fn json_response(service: Service, answer: Answer) -> Response {
    match answer {
        Ok(Value::Null) => respond(200, service.content_type(), String::new()),
        Ok(value) => respond(200, service.content_type(), value.to_string()),
        Err(fault) => fault.into_response(service),
    }
}

/// A response with the headers that every AWS answer carries.
pub(crate) fn respond(status: u16, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        response.headers_mut().insert("x-amzn-requestid", id);
    }
    response
}
