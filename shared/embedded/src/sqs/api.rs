//! The SQS wire protocol (aws-json 1.0).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::batch::{self, sent_json};
use super::message::{Attributes, Outgoing, Receive, Received, md5_of_attributes, md5_of_body};
use super::{ACCOUNT, QueueError, Queues};
use crate::answer::{Answer, AwsError, input};

/// Where clients find the queues, for the URLs we hand out.
pub(crate) struct Endpoint(pub(crate) String);

impl Endpoint {
    fn queue_url(&self, name: &str) -> String {
        format!("{}/{ACCOUNT}/{name}", self.0)
    }
}

/// The queue that a URL names. Only the last segment counts: a URL kept from before a restart on another
/// port stays good.
pub(crate) fn queue_name(url: &str) -> Result<String, QueueError> {
    match url.trim_end_matches('/').rsplit('/').next() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(QueueError::MissingParameter("QueueUrl")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CreateInput {
    queue_name: String,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NameInput {
    queue_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListInput {
    #[serde(default)]
    queue_name_prefix: String,
    max_results: Option<usize>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct QueueInput {
    queue_url: String,
    #[serde(default)]
    attribute_names: Vec<String>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

/// A message, alone or as an entry of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendInput {
    #[serde(default)]
    message_body: String,
    delay_seconds: Option<u32>,
    #[serde(default)]
    message_attributes: Attributes,
    #[serde(default)]
    message_system_attributes: Attributes,
    message_group_id: Option<String>,
}

impl SendInput {
    pub(crate) fn into_message(self) -> Outgoing {
        Outgoing {
            body: self.message_body,
            attributes: self.message_attributes,
            system_attributes: self.message_system_attributes,
            group: self.message_group_id,
            delay_seconds: self.delay_seconds,
            urgent: false,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SendOne {
    queue_url: String,
    #[serde(flatten)]
    message: SendInput,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveInput {
    queue_url: String,
    max_number_of_messages: Option<usize>,
    visibility_timeout: Option<u32>,
    wait_time_seconds: Option<u32>,
    /// The older name of the next.
    #[serde(default)]
    attribute_names: Vec<String>,
    #[serde(default)]
    message_system_attribute_names: Vec<String>,
    #[serde(default)]
    message_attribute_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiptInput {
    queue_url: String,
    receipt_handle: String,
    #[serde(default)]
    visibility_timeout: u32,
}

/// Carries out one operation.
pub(crate) async fn handle(queues: &Queues, endpoint: &Endpoint, operation: &str, body: &[u8]) -> Answer {
    match operation {
        "CreateQueue" => {
            let CreateInput { queue_name, attributes } = input(body)?;
            queues.create(&queue_name, attributes)?;
            Ok(json!({"QueueUrl": endpoint.queue_url(&queue_name)}))
        }
        "GetQueueUrl" => {
            let NameInput { queue_name } = input(body)?;
            if !queues.exists(&queue_name) {
                return Err(QueueError::QueueDoesNotExist.into());
            }
            Ok(json!({"QueueUrl": endpoint.queue_url(&queue_name)}))
        }
        "ListQueues" => Ok(list(queues, endpoint, input(body)?)),
        "DeleteQueue" => queues.remove(&queue_of(body)?.0).map(done).map_err(AwsError::from),
        "PurgeQueue" => queues.purge(&queue_of(body)?.0).map(done).map_err(AwsError::from),
        "GetQueueAttributes" => {
            let (queue, input) = queue_of(body)?;
            attributes(queues, &queue, &input.attribute_names)
        }
        "SetQueueAttributes" => {
            let (queue, input) = queue_of(body)?;
            queues.set_attributes(&queue, input.attributes).map(done).map_err(AwsError::from)
        }
        "SendMessage" => {
            let SendOne { queue_url, message } = input(body)?;
            Ok(sent_json(&queues.send(&queue_name(&queue_url)?, message.into_message())?))
        }
        "SendMessageBatch" => batch::send(queues, input(body)?),
        "ReceiveMessage" => receive(queues, input(body)?).await,
        "DeleteMessage" => {
            let ReceiptInput { queue_url, receipt_handle, .. } = input(body)?;
            queues.delete(&queue_name(&queue_url)?, &receipt_handle).map(done).map_err(AwsError::from)
        }
        "DeleteMessageBatch" => batch::delete(queues, input(body)?),
        "ChangeMessageVisibility" => {
            let ReceiptInput { queue_url, receipt_handle, visibility_timeout } = input(body)?;
            queues.change_visibility(&queue_name(&queue_url)?, &receipt_handle, visibility_timeout)?;
            Ok(Value::Null)
        }
        "ChangeMessageVisibilityBatch" => batch::change_visibility(queues, input(body)?),
        _ => Err(AwsError::unknown_operation(operation)),
    }
}

fn done((): ()) -> Value {
    Value::Null
}

fn queue_of(body: &[u8]) -> Result<(String, QueueInput), AwsError> {
    let input: QueueInput = input(body)?;
    Ok((queue_name(&input.queue_url)?, input))
}

fn list(queues: &Queues, endpoint: &Endpoint, input: ListInput) -> Value {
    let mut names = queues.names(&input.queue_name_prefix);
    if let Some(after) = &input.next_token {
        names.retain(|name| name > after);
    }
    let mut answer = json!({});
    if let Some(max) = input.max_results.filter(|max| (1..names.len()).contains(max)) {
        names.truncate(max);
        answer["NextToken"] = json!(names.last());
    }
    if !names.is_empty() {
        answer["QueueUrls"] = names.iter().map(|name| endpoint.queue_url(name)).collect();
    }
    answer
}

fn attributes(queues: &Queues, name: &str, wanted: &[String]) -> Answer {
    let queue = queues.describe(name)?;
    let mut all: BTreeMap<&str, String> =
        queue.settings.all().map(|(name, value)| (name, value.to_owned())).collect();
    all.insert("QueueArn", queue.arn);
    all.insert("ApproximateNumberOfMessages", queue.counts.visible.to_string());
    all.insert("ApproximateNumberOfMessagesNotVisible", queue.counts.in_flight.to_string());
    all.insert("ApproximateNumberOfMessagesDelayed", queue.counts.delayed.to_string());
    all.insert("CreatedTimestamp", (queue.created_at / 1000).to_string());
    all.insert("LastModifiedTimestamp", (queue.modified_at / 1000).to_string());
    if !wanted.iter().any(|name| name == "All") {
        all.retain(|name, _| wanted.iter().any(|wanted| wanted == name));
    }
    Ok(json!({"Attributes": all}))
}

async fn receive(queues: &Queues, input: ReceiveInput) -> Answer {
    let within = |name: &str, value: Option<u32>, min: u32, max: u32| match value {
        Some(value) if !(min..=max).contains(&value) => Err(QueueError::InvalidParameterValue(format!(
            "Value {value} for parameter {name} is invalid. Reason: Must be between {min} and {max}, if provided."
        ))),
        _ => Ok(()),
    };
    let max = input.max_number_of_messages.unwrap_or(1);
    within("MaxNumberOfMessages", u32::try_from(max).ok().or(Some(u32::MAX)), 1, 10)?;
    within("VisibilityTimeout", input.visibility_timeout, 0, 43_200)?;
    within("WaitTimeSeconds", input.wait_time_seconds, 0, 20)?;
    let how = Receive {
        max,
        wait: input.wait_time_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        visibility_seconds: input.visibility_timeout,
    };
    let received = queues.receive(&queue_name(&input.queue_url)?, how).await?;
    let system = [input.attribute_names, input.message_system_attribute_names].concat();
    let messages: Vec<Value> = received
        .into_iter()
        .map(|message| present(message, &system, &input.message_attribute_names))
        .collect();
    Ok(if messages.is_empty() { json!({}) } else { json!({"Messages": messages}) })
}

fn present(message: Received, system: &[String], own: &[String]) -> Value {
    let mut answer = Map::new();
    answer.insert("MD5OfBody".to_owned(), md5_of_body(&message.body).into());
    let attributes = system_attributes(&message, system);
    if !attributes.is_empty() {
        answer.insert("Attributes".to_owned(), attributes.into());
    }
    let mut own_attributes = message.attributes;
    own_attributes.retain(|name, _| own.iter().any(|wanted| selects(wanted, name)));
    if let Some(md5) = md5_of_attributes(&own_attributes) {
        answer.insert("MD5OfMessageAttributes".to_owned(), md5.into());
        answer.insert("MessageAttributes".to_owned(), json!(own_attributes));
    }
    answer.insert("MessageId".to_owned(), message.message_id.into());
    answer.insert("ReceiptHandle".to_owned(), message.receipt.into());
    answer.insert("Body".to_owned(), message.body.into());
    answer.into()
}

fn system_attributes(message: &Received, wanted: &[String]) -> Map<String, Value> {
    let known = [
        ("SenderId", Some("AIDAEMBEDDEDEMBEDDED".to_owned())),
        ("SentTimestamp", Some(message.sent_at.to_string())),
        ("ApproximateReceiveCount", Some(message.receives.to_string())),
        ("ApproximateFirstReceiveTimestamp", Some(message.first_received_at.to_string())),
        ("MessageGroupId", message.group.clone()),
        ("DeadLetterQueueSourceArn", message.dead_letter_source.clone()),
        (
            "AWSTraceHeader",
            message.system_attributes.get("AWSTraceHeader").and_then(|value| value.string_value.clone()),
        ),
    ];
    known
        .into_iter()
        .filter(|(name, _)| wanted.iter().any(|wanted| wanted == "All" || wanted == name))
        .filter_map(|(name, value)| Some((name.to_owned(), value?.into())))
        .collect()
}

/// Whether a requested name, `All`, `.*` or `prefix.*` selects an attribute.
fn selects(wanted: &str, name: &str) -> bool {
    wanted == "All"
        || wanted == name
        || wanted.strip_suffix(".*").is_some_and(|start| name.starts_with(start))
}
