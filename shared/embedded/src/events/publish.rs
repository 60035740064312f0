//! PutEvents: from entries to messages in queues, all committed before the answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Urgency,
    bus::{Buses, bus_name},
};
use crate::answer::{Answer, AwsError};
use crate::sqs::{ACCOUNT, AttributeValue, Outgoing, QueueError, queue_of_arn};

const MAX_ENTRIES: usize = 10;
/// What AWS answers when events come faster than they are taken.
pub(crate) const THROTTLED: &str = "ThrottlingException";
const TOO_MANY_WAIT: &str = "Rate exceeded: too many events wait to be saved. Send them again in a moment.";
/// Less than the message that a queue takes: the event around the detail must fit there too.
const MAX_BYTES: usize = 1_000_000;

/// The input of PutEvents.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PutEvents {
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    source: Option<String>,
    detail_type: Option<String>,
    detail: Option<String>,
    event_bus_name: Option<String>,
    #[serde(default)]
    resources: Vec<String>,
    /// Seconds since the epoch.
    time: Option<f64>,
}

/// The event as targets receive it; the detail is byte for byte what the sender wrote.
#[derive(Serialize)]
struct Envelope<'a> {
    version: &'static str,
    id: &'a str,
    #[serde(rename = "detail-type")]
    detail_type: &'a str,
    source: &'a str,
    account: &'static str,
    time: &'a str,
    region: &'a str,
    resources: &'a [String],
    detail: &'a RawValue,
}

/// Why one entry was refused.
struct Refusal {
    code: &'static str,
    message: String,
}

/// Publishes the entries; each succeeds or is refused by itself.
pub(crate) fn put_events(buses: &Buses, input: PutEvents) -> Answer {
    check_request(&input.entries)?;
    let mut results = Vec::new();
    let mut messages = Vec::new();
    let mut failed = 0;
    let mut throttled = 0;
    for entry in &input.entries {
        let id = Uuid::new_v4().to_string();
        let routed = route(buses, entry, &id).and_then(|routed| admit(buses, routed, &messages));
        match routed {
            Ok(routed) => {
                messages.extend(routed);
                results.push(json!({"EventId": id}));
            }
            Err(refusal) => {
                failed += 1;
                throttled += usize::from(refusal.code == THROTTLED);
                results.push(json!({"ErrorCode": refusal.code, "ErrorMessage": refusal.message}));
            }
        }
    }
    if throttled == input.entries.len() {
        // SDKs send such a request again by themselves, after a while.
        return Err(AwsError::sender(THROTTLED, TOO_MANY_WAIT));
    }
    if !messages.is_empty() {
        buses.queues.send_all(messages).map_err(|error| AwsError::internal(error.to_string()))?;
    }
    Ok(json!({"FailedEntryCount": failed, "Entries": results}))
}

/// Refuses an event for which a queue has no room; `before` are the messages of the same request.
fn admit(
    buses: &Buses,
    mut routed: Vec<(String, Outgoing)>,
    before: &[(String, Outgoing)],
) -> Result<Vec<(String, Outgoing)>, Refusal> {
    let Some(admission) = &buses.admission else { return Ok(routed) };
    let Some((_, message)) = routed.iter_mut().find(|(queue, _)| *queue == admission.queue) else {
        return Ok(routed);
    };
    #[derive(Deserialize)]
    struct Detail {
        detail: Value,
    }
    let detail = serde_json::from_str::<Detail>(&message.body).map_or(Value::Null, |event| event.detail);
    let urgency = admission.urgency(&detail);
    message.urgent = urgency == Urgency::Urgent;
    let waiting = buses.queues.backlog(&admission.queue) + before.len();
    if waiting >= admission.max(urgency) {
        return Err(Refusal { code: THROTTLED, message: TOO_MANY_WAIT.to_owned() });
    }
    Ok(routed)
}

fn check_request(entries: &[Entry]) -> Result<(), AwsError> {
    let constraint = |what: &str| {
        AwsError::sender(
            "ValidationException",
            format!(
                "1 validation error detected: Value at 'entries' failed to satisfy constraint: Member must have length {what}"
            ),
        )
    };
    if entries.is_empty() {
        return Err(constraint("greater than or equal to 1"));
    }
    if entries.len() > MAX_ENTRIES {
        return Err(constraint("less than or equal to 10"));
    }
    if entries.iter().map(Entry::size).sum::<usize>() > MAX_BYTES {
        return Err(AwsError::sender(
            "ValidationException",
            "Total size of the entries in the request is over the limit.",
        ));
    }
    Ok(())
}

impl Entry {
    /// The size as AWS counts it.
    fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        text(&self.source)
            + text(&self.detail_type)
            + text(&self.detail)
            + self.resources.iter().map(String::len).sum::<usize>()
            + self.time.map_or(0, |_| 14)
    }
}

/// The messages one event becomes.
fn route(buses: &Buses, entry: &Entry, id: &str) -> Result<Vec<(String, Outgoing)>, Refusal> {
    let required = |name: &str, value: &Option<String>| match value {
        Some(value) if !value.is_empty() => Ok(value.clone()),
        _ => Err(Refusal {
            code: "InvalidArgument",
            message: format!("Parameter {name} is not valid. Reason: {name} is a required argument."),
        }),
    };
    let source = required("Source", &entry.source)?;
    let detail_type = required("DetailType", &entry.detail_type)?;
    let detail = required("Detail", &entry.detail)?;
    let malformed = || Refusal { code: "MalformedDetail", message: "Detail is malformed.".to_owned() };
    let parsed: Value = serde_json::from_str(&detail).map_err(|_| malformed())?;
    if !parsed.is_object() {
        return Err(malformed());
    }
    let detail = RawValue::from_string(detail).map_err(|_| malformed())?;

    let all = buses.read();
    let name = bus_name(entry.event_bus_name.as_deref());
    let bus = all.get(name).ok_or_else(|| Refusal {
        code: "ResourceNotFoundException",
        message: format!("Event bus {name} does not exist."),
    })?;
    let time = timestamp(entry.time.unwrap_or_else(|| (buses.clock)() as f64 / 1000.0));
    let event = json!({
        "version": "0", "id": id, "detail-type": detail_type, "source": source, "account": ACCOUNT,
        "time": time, "region": buses.region, "resources": entry.resources, "detail": parsed,
    });
    let envelope = Envelope {
        version: "0",
        id,
        detail_type: &detail_type,
        source: &source,
        account: ACCOUNT,
        time: &time,
        region: &buses.region,
        resources: &entry.resources,
        detail: &detail,
    };
    let body = serde_json::to_string(&envelope)
        .map_err(|error| Refusal { code: "InternalFailure", message: error.to_string() })?;

    let mut messages = Vec::new();
    for (rule_name, rule) in &bus.rules {
        if rule.record.enabled && rule.pattern.as_ref().is_some_and(|pattern| pattern.matches(&event)) {
            let rule_arn = buses.rule_arn(name, rule_name);
            messages.extend(
                rule.record.targets.values().filter_map(|target| deliver(buses, &rule_arn, target, &body)),
            );
        }
    }
    Ok(messages)
}

/// The message for one target, or for its dead letter queue if the target cannot take it.
fn deliver(buses: &Buses, rule_arn: &str, target: &Value, body: &str) -> Option<(String, Outgoing)> {
    let arn = target["Arn"].as_str().unwrap_or_default();
    let group = target["SqsParameters"]["MessageGroupId"].as_str().map(str::to_owned);
    let message = Outgoing { group, ..Outgoing::new(body) };
    let accepted = match queue_of_arn(arn) {
        Some(queue) => buses.queues.accepts(queue, &message).map(|()| queue.to_owned()),
        None => Err(QueueError::QueueDoesNotExist),
    };
    let error = match accepted {
        Ok(queue) => return Some((queue, message)),
        Err(error) => error,
    };
    let code = match error {
        QueueError::QueueDoesNotExist => "NO_RESOURCE",
        _ => "SDK_CLIENT_ERROR",
    };
    let attributes = BTreeMap::from(
        [
            ("RULE_ARN", rule_arn),
            ("TARGET_ARN", arn),
            ("ERROR_CODE", code),
            ("ERROR_MESSAGE", &error.to_string()),
            ("RETRY_ATTEMPTS", "0"),
            ("EXHAUSTED_RETRY_CONDITION", "MaximumRetryAttempts"),
        ]
        .map(|(name, value)| (name.to_owned(), AttributeValue::string(value))),
    );
    let dead = queue_of_arn(target["DeadLetterConfig"]["Arn"].as_str().unwrap_or_default())
        .filter(|queue| buses.queues.exists(queue));
    if dead.is_none() {
        tracing::warn!(target = arn, rule = rule_arn, %error, "neither the rule's target nor its dead-letter queue can take the event; it is not delivered");
    }
    dead.map(|queue| (queue.to_owned(), Outgoing { attributes, ..Outgoing::new(body) }))
}

/// `2026-01-03T15:22:19Z`: events carry whole seconds.
fn timestamp(seconds: f64) -> String {
    jiff::Timestamp::from_second(seconds as i64).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}
