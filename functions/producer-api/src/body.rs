//! JSON bodies: at most 1 MB, no unknown fields, and errors that name the field.

use axum::{
    body::{Body, Bytes, to_bytes},
    http::StatusCode,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;

const MAX_BYTES: usize = 1 << 20;

/// Reads a body of the form `T`. Callers are known by then: a stranger's body is never read.
pub(crate) async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Problem> {
    parse(&bytes(body).await?)
}

/// The same where everything may be left out: no body at all is as good as `{}`.
pub(crate) async fn read_or_default<T: DeserializeOwned + Default>(body: Body) -> Result<T, Problem> {
    let bytes = bytes(body).await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    parse(&bytes)
}

/// Any JSON at all; no body is as good as `null`.
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
    // serde would also take a list for a struct, field by field.
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
