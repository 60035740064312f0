//! Queues as SQS keeps them: a message is there until it is deleted by the receipt of its latest receive.
//!
//! Where a standard queue may do one thing or another, these do what is harder on a receiver: messages come in any order,
//! and a receipt is worth nothing once the message was received again. A long poll does not wait.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{
    request::{Response, Service},
    store::PartialFaults,
};

const LONGEST_VISIBILITY: u64 = 43_200;
const LONGEST_DELAY: u64 = 900;
const LONGEST_WAIT: u64 = 20;
const LARGEST_BATCH: u64 = 10;

/// A message as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where it was sent to.
    pub queue_url: String,
    /// What it says.
    pub body: String,
    /// Its message group.
    pub group: Option<String>,
    /// What SQS would know a repetition by.
    pub deduplication_id: Option<String>,
    /// How long it was to be hidden.
    pub delay_seconds: u64,
}

/// How many messages a queue holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// What the next receive may get.
    pub visible: usize,
    /// What was received and not deleted.
    pub in_flight: usize,
    /// What was sent with a delay that is not over.
    pub delayed: usize,
}

impl Depth {
    /// All of them.
    pub fn total(self) -> usize {
        self.visible + self.in_flight + self.delayed
    }
}

/// All queues of one history.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// What was sent, in its order; what happens to it later does not matter here.
    pub(crate) sent: Vec<Message>,
    queues: BTreeMap<String, Queue>,
    /// Messages are numbered across queues.
    last_message: u64,
}

#[derive(Debug)]
struct Queue {
    settings: Settings,
    messages: BTreeMap<u64, Stored>,
}

#[derive(Debug, PartialEq, Eq)]
struct Settings {
    visibility_seconds: u64,
    delay_seconds: u64,
    /// Where messages go that were received so often.
    redrive: Option<(String, u64)>,
}

#[derive(Debug)]
struct Stored {
    body: String,
    group: Option<String>,
    sent_at: u64,
    first_received_at: Option<u64>,
    receives: u64,
    visible_at: u64,
    /// Whether the next receiver gets it though another one has it.
    redelivered: bool,
}

impl Stored {
    fn is_visible(&self, now: u64) -> bool {
        self.visible_at <= now || self.redelivered
    }
}

/// Why SQS does not do it: the type in the JSON protocol, and what it says.
#[derive(Debug)]
pub(crate) struct Refused(&'static str, String);

impl Refused {
    fn invalid(why: String) -> Self {
        Self("InvalidParameterValue", why)
    }

    pub(crate) fn answer(&self) -> Response {
        // SDKs show the code of the older query protocol, which this header carries.
        let code = match self.0 {
            "QueueDoesNotExist" => "AWS.SimpleQueueService.NonExistentQueue",
            "QueueNameExists" => "QueueAlreadyExists",
            "MessageNotInflight" => "AWS.SimpleQueueService.MessageNotInflight",
            "TooManyEntriesInBatchRequest" => "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
            other => other,
        };
        let mut answer =
            Response::error(Service::Sqs, 400, &format!("com.amazonaws.sqs#{}", self.0), &self.1);
        answer.headers.push(("x-amzn-query-error", format!("{code};Sender")));
        answer
    }
}

impl Queues {
    /// Carries out one operation at the time `now`.
    pub(crate) fn serve(
        &mut self,
        operation: &str,
        input: &Value,
        now: u64,
        partial: &mut PartialFaults<'_>,
    ) -> Result<Value, Refused> {
        if let "CreateQueue" | "GetQueueUrl" = operation {
            let name = input["QueueName"].as_str().unwrap_or_default();
            match operation {
                "CreateQueue" => self.create(name, &input["Attributes"])?,
                _ => drop(self.find(name)?),
            }
            return Ok(json!({ "QueueUrl": format!("http://simulated/000000000000/{name}") }));
        }
        let url = input["QueueUrl"].as_str().unwrap_or_default();
        let name = queue_name(url);
        self.find(name)?;
        match operation {
            "SendMessage" => self.send(url, input, now),
            "SendMessageBatch" => batch(input, partial, |entry| self.send(url, entry, now)),
            "ReceiveMessage" => self.receive(name, input, now, partial),
            "DeleteMessage" => self.delete(name, input),
            "DeleteMessageBatch" => batch(input, partial, |entry| self.delete(name, entry)),
            "ChangeMessageVisibility" => self.change_visibility(name, input, now),
            "ChangeMessageVisibilityBatch" => {
                batch(input, partial, |entry| self.change_visibility(name, entry, now))
            }
            other => Err(Refused("UnsupportedOperation", format!("{other} is not available here."))),
        }
    }

    /// How many messages are in the queue of this name or URL.
    pub(crate) fn depth(&self, queue: &str, now: u64) -> Depth {
        let mut depth = Depth::default();
        for message in self.named(queue).messages.values() {
            match message.receives {
                _ if message.is_visible(now) => depth.visible += 1,
                0 => depth.delayed += 1,
                _ => depth.in_flight += 1,
            }
        }
        depth
    }

    /// The bodies of all messages in the queue of this name or URL, in the order in which they were sent.
    pub(crate) fn bodies(&self, queue: &str) -> Vec<String> {
        self.named(queue).messages.values().map(|message| message.body.clone()).collect()
    }

    fn named(&self, queue: &str) -> &Queue {
        self.queues.get(queue_name(queue)).unwrap_or_else(|| panic!("there is no queue {queue}"))
    }

    fn find(&mut self, name: &str) -> Result<&mut Queue, Refused> {
        let missing = || Refused("QueueDoesNotExist", "The specified queue does not exist.".to_owned());
        self.queues.get_mut(name).ok_or_else(missing)
    }

    fn create(&mut self, name: &str, attributes: &Value) -> Result<(), Refused> {
        let settings = Settings::read(attributes)?;
        match self.queues.get(name) {
            Some(there) if there.settings != settings => {
                Err(Refused("QueueNameExists", format!("The queue {name} has other attributes.")))
            }
            Some(_) => Ok(()),
            None => {
                self.queues.insert(name.to_owned(), Queue { settings, messages: BTreeMap::new() });
                Ok(())
            }
        }
    }

    fn send(&mut self, queue_url: &str, entry: &Value, now: u64) -> Result<Value, Refused> {
        let text = |field: &str| entry[field].as_str().map(str::to_owned);
        let delay = number(entry, "DelaySeconds", 0, LONGEST_DELAY)?;
        let body = text("MessageBody").unwrap_or_default();
        let id = self.last_message + 1;
        let queue = self.find(queue_name(queue_url))?;
        let delay_seconds = delay.unwrap_or(queue.settings.delay_seconds);
        let stored = Stored {
            body: body.clone(),
            group: text("MessageGroupId"),
            sent_at: now,
            first_received_at: None,
            receives: 0,
            visible_at: now + delay_seconds * 1000,
            redelivered: false,
        };
        queue.messages.insert(id, stored);
        self.last_message = id;
        self.sent.push(Message {
            queue_url: queue_url.to_owned(),
            body,
            group: text("MessageGroupId"),
            deduplication_id: text("MessageDeduplicationId"),
            delay_seconds,
        });
        // No checksum of the body: the SDK does not compare it.
        Ok(json!({ "MessageId": message_id(id), "MD5OfMessageBody": "" }))
    }

    fn receive(
        &mut self,
        name: &str,
        input: &Value,
        now: u64,
        partial: &mut PartialFaults<'_>,
    ) -> Result<Value, Refused> {
        let most = number(input, "MaxNumberOfMessages", 1, LARGEST_BATCH)?.unwrap_or(1);
        number(input, "WaitTimeSeconds", 0, LONGEST_WAIT)?;
        let visibility = number(input, "VisibilityTimeout", 0, LONGEST_VISIBILITY)?;
        let queue = self.find(name)?;
        let visible_at = now + visibility.unwrap_or(queue.settings.visibility_seconds) * 1000;
        let redrive = queue.settings.redrive.clone();
        let visible = queue.messages.iter().filter(|(_, message)| message.is_visible(now));
        let mut visible: Vec<u64> = visible.map(|(id, _)| *id).collect();
        partial.random.shuffle(&mut visible);
        let mut received = Vec::new();
        for id in visible {
            if received.len() as u64 == most {
                break;
            }
            if let Some((dead_letters, most_receives)) = &redrive
                && self.queues.contains_key(dead_letters)
                && self.find(name)?.messages[&id].receives >= *most_receives
            {
                self.bury(name, id, dead_letters, now)?;
            } else if let Some(message) = self.find(name)?.messages.get_mut(&id) {
                message.receives += 1;
                message.first_received_at.get_or_insert(now);
                message.visible_at = visible_at;
                message.redelivered = partial.random.f64() < partial.redeliver;
                received.push(json!({
                    "MessageId": message_id(id),
                    "ReceiptHandle": receipt(name, id, message.receives),
                    "MD5OfBody": "",
                    "Body": message.body,
                    "Attributes": attributes(message, input),
                }));
            }
        }
        // As on AWS: no list at all, rather than an empty one.
        Ok(if received.is_empty() { json!({}) } else { json!({ "Messages": received }) })
    }

    /// Moves a message to the dead-letter queue, where it counts its receives anew.
    fn bury(&mut self, name: &str, id: u64, dead_letters: &str, now: u64) -> Result<(), Refused> {
        if let Some(message) = self.find(name)?.messages.remove(&id) {
            let message = Stored { receives: 0, visible_at: now, redelivered: false, ..message };
            self.find(dead_letters)?.messages.insert(id, message);
        }
        Ok(())
    }

    /// A receipt that was good once is answered as if it still were.
    fn delete(&mut self, name: &str, entry: &Value) -> Result<Value, Refused> {
        let (id, receives) = parse_receipt(name, entry)?;
        let queue = self.find(name)?;
        if queue.messages.get(&id).is_some_and(|message| message.receives == receives) {
            queue.messages.remove(&id);
        }
        Ok(json!({}))
    }

    fn change_visibility(&mut self, name: &str, entry: &Value, now: u64) -> Result<Value, Refused> {
        let seconds = number(entry, "VisibilityTimeout", 0, LONGEST_VISIBILITY)?
            .ok_or_else(|| Refused("MissingParameter", "VisibilityTimeout is missing.".to_owned()))?;
        let (id, receives) = parse_receipt(name, entry)?;
        let message = self.find(name)?.messages.get_mut(&id).filter(|message| message.receives == receives);
        let Some(message) = message else {
            return Err(Refused::invalid(format!(
                "Value {} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.",
                entry["ReceiptHandle"]
            )));
        };
        if message.visible_at <= now {
            return Err(Refused("MessageNotInflight", "The message is not in flight.".to_owned()));
        }
        message.visible_at = now + seconds * 1000;
        Ok(json!({}))
    }
}

impl Settings {
    fn read(attributes: &Value) -> Result<Self, Refused> {
        let wrong = |what: &str| Refused("InvalidAttributeValue", format!("Invalid value for {what}."));
        let seconds = |name: &str, default: u64| match attributes[name].as_str() {
            Some(text) => text.parse().map_err(|_| wrong(name)),
            None => Ok(default),
        };
        let redrive = match attributes["RedrivePolicy"].as_str() {
            None => None,
            Some(policy) => {
                let policy: Value = serde_json::from_str(policy).map_err(|_| wrong("RedrivePolicy"))?;
                let target = policy["deadLetterTargetArn"].as_str().and_then(|arn| arn.rsplit(':').next());
                let most = policy["maxReceiveCount"].as_u64();
                Some(target.map(str::to_owned).zip(most).ok_or_else(|| wrong("RedrivePolicy"))?)
            }
        };
        let visibility_seconds = seconds("VisibilityTimeout", 30)?;
        Ok(Self { visibility_seconds, delay_seconds: seconds("DelaySeconds", 0)?, redrive })
    }
}

/// Each entry of a batch alone: done, not done, or refused by a fault.
fn batch(
    input: &Value,
    partial: &mut PartialFaults<'_>,
    mut each: impl FnMut(&Value) -> Result<Value, Refused>,
) -> Result<Value, Refused> {
    let entries = input["Entries"].as_array().map_or(&[][..], Vec::as_slice);
    if entries.len() as u64 > LARGEST_BATCH {
        let said = format!("Maximum number of entries per request are {LARGEST_BATCH}.");
        return Err(Refused("TooManyEntriesInBatchRequest", said));
    }
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for entry in entries {
        let id = &entry["Id"];
        if partial.refuses_entry() {
            failed.push(json!({ "Id": id, "Code": "InternalError", "SenderFault": false }));
            continue;
        }
        match each(entry) {
            Ok(mut answer) => {
                answer["Id"] = id.clone();
                successful.push(answer);
            }
            Err(Refused(code, message)) => {
                failed.push(json!({ "Id": id, "Code": code, "Message": message, "SenderFault": true }));
            }
        }
    }
    Ok(json!({ "Successful": successful, "Failed": failed }))
}

/// What the receiver has asked about a message besides its body; not there at all if it is nothing.
fn attributes(message: &Stored, input: &Value) -> Option<Map<String, Value>> {
    let lists = [&input["MessageSystemAttributeNames"], &input["AttributeNames"]];
    let asked: Vec<&Value> = lists.into_iter().filter_map(Value::as_array).flatten().collect();
    let all = [
        ("ApproximateReceiveCount", Some(message.receives.to_string())),
        ("ApproximateFirstReceiveTimestamp", message.first_received_at.map(|at| at.to_string())),
        ("SentTimestamp", Some(message.sent_at.to_string())),
        ("MessageGroupId", message.group.clone()),
    ];
    let wanted = |name: &str| asked.iter().any(|asked| **asked == name || **asked == "All");
    let told = all.into_iter().filter(|(name, _)| wanted(name));
    let told: Map<_, _> = told.filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect();
    (!told.is_empty()).then_some(told)
}

fn number(input: &Value, field: &str, least: u64, most: u64) -> Result<Option<u64>, Refused> {
    match &input[field] {
        Value::Null => Ok(None),
        value => match value.as_u64().filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(Refused::invalid(format!(
                "Value {value} for parameter {field} is invalid. Reason: Must be between {least} and {most}."
            ))),
        },
    }
}

/// The queue that a URL names: its last segment.
pub(crate) fn queue_name(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

fn message_id(id: u64) -> String {
    format!("00000000-0000-4000-8000-{id:012}")
}

/// Names one receive of a message.
fn receipt(queue: &str, id: u64, receives: u64) -> String {
    format!("{queue}/{id}/{receives}")
}

fn parse_receipt(queue: &str, entry: &Value) -> Result<(u64, u64), Refused> {
    let mut parts = entry["ReceiptHandle"].as_str().unwrap_or_default().split('/');
    let of_queue = parts.next() == Some(queue);
    let mut number = || parts.next().and_then(|part| part.parse().ok());
    match (of_queue, number(), number()) {
        (true, Some(id), Some(receives)) => Ok((id, receives)),
        _ => Err(Refused("ReceiptHandleIsInvalid", "The input receipt handle is invalid.".to_owned())),
    }
}
