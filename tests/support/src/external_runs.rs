//! External runs: runs that the test drives over HTTP, event by event.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    api::{Caller, all},
    until,
};

/// An id of a step, hook or wait; one of the same number is the same.
pub fn id(kind: &str, number: u32) -> String {
    format!("{kind}_01M7J3H2F8R3VED7N46ETP2{number:03}")
}

/// Appends an event to a run.
pub async fn append(
    caller: &Caller<'_>,
    run: &str,
    event_type: &str,
    correlation_id: Option<&str>,
    data: Value,
) -> (u16, Value) {
    let mut event = json!({"eventType": event_type, "eventData": data});
    if let Some(id) = correlation_id {
        event["correlationId"] = id.into();
    }
    caller.post(&format!("/api/runs/{run}/events"), event).await
}

/// Appends an event that is possible.
pub async fn appended(
    caller: &Caller<'_>,
    run: &str,
    event_type: &str,
    correlation_id: Option<&str>,
    data: Value,
) -> Value {
    let (status, answer) = append(caller, run, event_type, correlation_id, data).await;
    assert_eq!(status, 201, "{event_type}: {answer}");
    answer
}

/// Creates an external run and starts it.
pub async fn begun(caller: &Caller<'_>, run: &str) {
    appended(caller, run, "run_created", None, json!({"workflowName": "order", "input": {"n": 1}})).await;
    appended(caller, run, "run_started", None, json!({})).await;
}

/// The types of the events in a run's log.
pub async fn log(caller: &Caller<'_>, run: &str) -> Vec<String> {
    all(caller, &format!("/api/runs/{run}/events?limit=500"), "eventType").await
}

/// The events of a run that the ledger has, by their ids, as soon as there are so many.
pub async fn in_ledger(caller: &Caller<'_>, run: &str, count: usize) -> BTreeMap<String, Value> {
    until(&format!("the ledger has {count} events of {run}"), || async {
        let mut found = Vec::new();
        let mut next = "/api/events/recent?limit=500".to_owned();
        loop {
            let (status, page) = caller.get(&next).await;
            assert_eq!(status, 200, "{page}");
            let items = page["items"].as_array().unwrap().iter();
            found.extend(items.filter(|event| event["workflowRunId"] == run).cloned());
            let Some(cursor) = page["cursor"].as_str() else { break };
            next = format!("/api/events/recent?limit=500&cursor={cursor}");
        }
        let total = found.len();
        let by_id: BTreeMap<String, Value> =
            found.into_iter().map(|event| (event["eventId"].as_str().unwrap().to_owned(), event)).collect();
        assert_eq!(by_id.len(), total, "each once");
        Some(by_id).filter(|events| events.len() >= count)
    })
    .await
}
