//! From an invocation to visits of tenants. A record of the stream names a tenant with new events; the drainers read
//! the events themselves from the table.

use std::{collections::BTreeMap, time::Duration};

use ledgerline_drains::Swept;
use ledgerline_event::{Name, keys::parse_pk};
use ledgerline_lambda::Invocation;
use ledgerline_outbox::ComponentError;
use ledgerline_stage::Stage;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

/// The part of the invocation's time that is left for releasing leases and sending alerts.
const RESERVE: Duration = Duration::from_secs(10);
/// How long a wake-up of the stream drains at most, because the next wake-ups wait behind it. The sweep drains the
/// backlog.
const WAKE_UP_BUDGET: Duration = Duration::from_secs(30);

/// Translates wake-ups into visits of tenants.
#[derive(Clone, Debug)]
pub struct Handler {
    /// The components of the stage.
    pub stage: Stage,
}

/// The part of a stream record that names its tenant.
#[derive(Deserialize)]
struct StreamRecord {
    dynamodb: Change,
}

#[derive(Deserialize)]
struct Change {
    #[serde(rename = "Keys")]
    keys: Keys,
    /// How the answer names the record if it comes again.
    #[serde(rename = "SequenceNumber", default)]
    sequence_number: String,
}

#[derive(Deserialize)]
struct Keys {
    #[serde(rename = "PK")]
    pk: Text,
}

#[derive(Deserialize)]
struct Text {
    #[serde(rename = "S")]
    text: String,
}

/// The tenants that a batch of stream records is about, each with its first record; `None` if it is no such batch. If a
/// record cannot be read, it wakes no drainer; the next round visits its tenant.
fn tenants(event: &Value) -> Option<BTreeMap<Name, String>> {
    let records = event.get("Records")?.as_array()?;
    let mut tenants = BTreeMap::new();
    for record in records {
        let record = StreamRecord::deserialize(record).inspect_err(|error| {
            tracing::warn!(%error, "a stream record without the keys of an event");
        });
        let Ok(StreamRecord { dynamodb: Change { keys, sequence_number } }) = record else { continue };
        let tenant = parse_pk(&keys.pk.text).ok().and_then(|tenant| Name::stored("PK", tenant).ok());
        if let Some(tenant) = tenant {
            tenants.entry(tenant).or_insert(sequence_number);
        }
    }
    Some(tenants)
}

/// The answer to a batch: the records of tenants that are neither drained nor marked come again, and those behind them.
fn failures(tenants: &BTreeMap<Name, String>, swept: &Swept) -> Value {
    let failed = swept.unmarked.iter().filter_map(|tenant| tenants.get(tenant));
    let failed: Vec<Value> = failed.map(|record| json!({ "itemIdentifier": record })).collect();
    json!({ "batchItemFailures": failed })
}

impl Handler {
    /// Drains the tenants that a batch of the stream names, and answers which of its records come again; sweeps on
    /// anything else, which is the schedule.
    pub async fn handle(&self, invocation: Invocation) -> Result<Value, ComponentError> {
        let deadline = invocation.deadline(RESERVE);
        let (swept, answer) = match tenants(&invocation.event) {
            Some(tenants) => {
                let deadline = deadline.min(Instant::now() + WAKE_UP_BUDGET);
                let swept = self.stage.sweep.wake(tenants.keys().cloned().collect(), Some(deadline)).await?;
                let answer = failures(&tenants, &swept);
                (swept, answer)
            }
            None => (self.stage.sweep.sweep(Some(deadline)).await?, Value::Null),
        };
        tracing::info!(visited = swept.visited, failed_visits = swept.trouble, "invocation finished");
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_the_stream_names_its_tenants_once() {
        let record = |pk: &str| {
            json!({
                "eventID": "1", "eventName": "INSERT", "eventVersion": "1.1", "eventSource": "aws:dynamodb",
                "awsRegion": "us-east-1", "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/events-dev/stream/x",
                "dynamodb": {
                    "ApproximateCreationDateTime": 1_767_453_739, "SequenceNumber": "1", "SizeBytes": 26,
                    "StreamViewType": "KEYS_ONLY",
                    "Keys": { "PK": { "S": pk }, "SK": { "S": "TIMESTAMP#1767453739640#EVENT#x" } },
                },
            })
        };
        let batch = json!({ "Records": [record("TENANT#b"), record("TENANT#a"), record("TENANT#b"), record("x"), {}] });
        let found = tenants(&batch).unwrap();
        let names: Vec<String> = found.keys().map(ToString::to_string).collect();
        assert_eq!(names, ["a", "b"]);
        let unmarked = found.keys().take(1).cloned().collect();
        let answer = failures(&found, &Swept { unmarked, ..Swept::default() });
        assert_eq!(answer, json!({ "batchItemFailures": [{ "itemIdentifier": "1" }] }));
        assert_eq!(tenants(&json!({ "source": "aws.scheduler", "detail-type": "Scheduled Event" })), None);
    }
}
