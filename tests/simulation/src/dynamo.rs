//! DynamoDB, called in the process: the JSON of the wire in, the JSON of the wire out.

use dynoxide::{
    Database, DynoxideError,
    actions::{query::QueryRequest, scan::ScanRequest},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::request::{Request, Response, Service};

/// Carries out one operation. A query or scan without a limit of its own gets `page` as one: AWS ends a page after
/// a megabyte, which histories of this size would never see.
pub(crate) fn serve(database: &Database, request: &Request, page: Option<usize>) -> Response {
    let body = request.body();
    let served = match request.operation.as_str() {
        "PutItem" => run(body, |request| database.put_item(request)),
        "GetItem" => run(body, |request| database.get_item(request)),
        "UpdateItem" => run(body, |request| database.update_item(request)),
        "DeleteItem" => run(body, |request| database.delete_item(request)),
        "Query" => run(body, |mut request: QueryRequest| {
            request.limit = request.limit.or(page);
            database.query(request)
        }),
        "Scan" => run(body, |mut request: ScanRequest| {
            request.limit = request.limit.or(page);
            database.scan(request)
        }),
        "BatchGetItem" => run(body, |request| database.batch_get_item(request)),
        "BatchWriteItem" => run(body, |request| database.batch_write_item(request)),
        "TransactGetItems" => run(body, |request| database.transact_get_items(request)),
        "TransactWriteItems" => run(body, |request| database.transact_write_items(request)),
        "CreateTable" => run(&without_stream(body), |request| database.create_table(request)),
        "UpdateTable" => run(&without_stream(body), |request| database.update_table(request)),
        "DescribeTable" => run(body, |request| database.describe_table(request)),
        "UpdateTimeToLive" => run(body, |request| database.update_time_to_live(request)),
        "DescribeTimeToLive" => run(body, |request| database.describe_time_to_live(request)),
        other => {
            let said = format!("The operation {other} is not available here.");
            return Response::error(Service::Dynamo, 400, "UnknownOperationException", &said);
        }
    };
    match served {
        Ok(body) => Response::json(200, body),
        Err(error) => Response::json(error.status_code(), error.to_json()),
    }
}

fn run<Q: DeserializeOwned, A: Serialize>(
    body: &[u8],
    operation: impl FnOnce(Q) -> dynoxide::Result<A>,
) -> dynoxide::Result<Vec<u8>> {
    let unreadable = |error: serde_json::Error| DynoxideError::SerializationException(error.to_string());
    let answer = operation(serde_json::from_slice(body).map_err(unreadable)?)?;
    serde_json::to_vec(&answer).map_err(unreadable)
}

/// Without the stream: nothing reads it here, and keeping one makes every write slower.
fn without_stream(body: &[u8]) -> Vec<u8> {
    let mut table: Value = serde_json::from_slice(body).expect("the SDK sends JSON");
    if let Some(table) = table.as_object_mut() {
        table.remove("StreamSpecification");
    }
    table.to_string().into_bytes()
}
