//! JSON bodies: at most 1 MB, no unknown fields, and errors that name the field.

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{FromRequest, Request},
    http::StatusCode,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

const MAX_BYTES: usize = 1 << 20;

/// A body that is a `T`. A handler takes it as its last argument, after the caller's key: the API reads no body of an unknown caller.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        parse(&bytes(request.into_body()).await?).map(Self)
    }
}

/// The same where every field is optional: an empty body means `{}`.
pub(crate) struct JsonBodyOrDefault<T>(pub(crate) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for JsonBodyOrDefault<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = bytes(request.into_body()).await?;
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(T::default()));
        }
        parse(&bytes).map(Self)
    }
}

/// Any JSON; an empty body means `null`.
pub(crate) async fn read_any(body: Body) -> Result<Value, Problem> {
    let bytes = bytes(body).await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&bytes).map_err(|error| Problem::bad_request(format!("the body: {error}")))
}

async fn bytes(body: Body) -> Result<Bytes, Problem> {
    to_bytes(body, MAX_BYTES).await.map_err(|error| {
        let too_large =
            std::error::Error::source(&error).is_some_and(|source| source.to_string().contains("limit"));
        match too_large {
            true => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is over {MAX_BYTES} bytes"))
            }
            false => Problem::bad_request("the body could not be read to its end"),
        }
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // serde would also accept a list for a struct, field by field.
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        Some(_) => return Err(Problem::bad_request("the body is not a JSON object")),
        None => return Err(Problem::bad_request("the body is empty; a JSON object is expected")),
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let hint = match inner.to_string().contains("unknown field `tenantId`") {
            true => " (the tenant is that of the key)",
            false => "",
        };
        match path.as_str() {
            "." => Problem::bad_request(format!("{inner}{hint}")),
            path => Problem::bad_request(format!("{path}: {inner}{hint}")),
        }
    })?;
    json.end().map_err(|error| Problem::bad_request(format!("after the JSON object: {error}")))?;
    Ok(value)
}
