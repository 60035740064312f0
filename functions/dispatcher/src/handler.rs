//! From a wake-up to the tenants that it is about. The stream only says who has new events; what
//! they are is read from the table.

use std::collections::BTreeSet;

use ledgerline_dispatch::{Dispatch, DispatchError, Swept};
use ledgerline_event::{Name, keys::parse_pk};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

/// What the function needs.
#[derive(Clone, Debug)]
pub struct Handler {
    /// Drains.
    pub dispatch: Dispatch,
}

/// A record of the stream, as much of it as matters. Keys only.
#[derive(Deserialize)]
struct StreamRecord {
    dynamodb: Change,
}

#[derive(Deserialize)]
struct Change {
    #[serde(rename = "Keys")]
    keys: Keys,
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

/// The tenants that a batch of stream records is about; `None` if it is no such batch. A record that
/// cannot be read wakes nobody: the round that visits everybody makes up for it.
pub fn tenants(event: &Value) -> Option<BTreeSet<Name>> {
    let records = event.get("Records")?.as_array()?;
    let tenants = records.iter().filter_map(|record| {
        let record = StreamRecord::deserialize(record).inspect_err(|error| {
            tracing::warn!(%error, "a stream record without the keys of an event");
        });
        Name::new("PK", parse_pk(&record.ok()?.dynamodb.keys.pk.text).ok()?).ok()
    });
    Some(tenants.collect())
}

impl Handler {
    /// Drains whom a stream's batch names; sweeps on anything else, which is the schedule.
    pub async fn handle(&self, event: &Value, deadline: Option<Instant>) -> Result<Swept, DispatchError> {
        match tenants(event) {
            Some(tenants) => self.dispatch.wake(tenants, deadline).await,
            None => self.dispatch.sweep(deadline).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let names: Vec<String> = tenants(&batch).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(tenants(&json!({ "source": "aws.scheduler", "detail-type": "Scheduled Event" })), None);
    }
}
