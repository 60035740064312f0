//! Requests of clients in this process, by calls into dynoxide's library. What it refuses is left to its server, which
//! words the refusals: a request that failed has changed nothing.

use axum::response::Response;
use dynoxide::{Database, DynoxideError};
use serde::{Serialize, de::DeserializeOwned};

use crate::Service;
use crate::answer::respond;

/// Carries out one of the operations that ledgers live on; `None` leaves it to the server.
pub(super) fn execute(database: &Database, operation: &str, body: &[u8]) -> Option<Response> {
    match operation {
        "GetItem" => run(body, |request| database.get_item(request)),
        "PutItem" => run(body, |request| database.put_item(request)),
        "UpdateItem" => run(body, |request| database.update_item(request)),
        "DeleteItem" => run(body, |request| database.delete_item(request)),
        "Query" => run(body, |request| database.query(request)),
        "BatchGetItem" => run(body, |request| database.batch_get_item(request)),
        "BatchWriteItem" => run(body, |request| database.batch_write_item(request)),
        "TransactWriteItems" => run(body, |request| database.transact_write_items(request)),
        _ => None,
    }
}

fn run<Q: DeserializeOwned, A: Serialize>(
    body: &[u8],
    operation: impl FnOnce(Q) -> dynoxide::Result<A>,
) -> Option<Response> {
    let (status, answer) = match operation(serde_json::from_slice(body).ok()?) {
        Ok(answer) => (200, serde_json::to_string(&answer).ok()?),
        Err(error) if is_left_to_server(&error) => return None,
        Err(error) => (error.status_code(), error.to_json()),
    };
    Some(respond(status, Service::DynamoDb.content_type(), answer))
}

/// Whether the request was refused, and not in the course of business.
fn is_left_to_server(error: &DynoxideError) -> bool {
    let is_ordinary = matches!(
        error,
        DynoxideError::ConditionalCheckFailedException(..) | DynoxideError::TransactionCanceledException(..)
    );
    !is_ordinary && (400..500).contains(&error.status_code())
}
