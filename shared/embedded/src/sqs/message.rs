//! A message on its way in and out, and the checksums by which SDKs verify both.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use super::QueueError;

/// A message and its attributes may be this large together.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1_048_576;

/// A typed attribute of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AttributeValue {
    /// `String`, `Number` or `Binary`, or one of them with a custom suffix.
    pub data_type: String,
    /// The value of a string or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_value: Option<String>,
    /// The value of a binary, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_value: Option<String>,
}

impl AttributeValue {
    /// A string attribute.
    pub fn string(value: impl Into<String>) -> Self {
        Self { data_type: "String".to_owned(), string_value: Some(value.into()), binary_value: None }
    }

    fn bytes(&self, name: &str) -> Result<(u8, Vec<u8>), QueueError> {
        let invalid = |why: &str| {
            QueueError::InvalidParameterValue(format!(
                "The message attribute '{name}' {why}, the set type is '{}'.",
                self.data_type
            ))
        };
        match self.data_type.split('.').next().unwrap_or_default() {
            "String" | "Number" => {
                let value =
                    self.string_value.as_ref().ok_or_else(|| invalid("must contain a string value"))?;
                Ok((1, value.as_bytes().to_vec()))
            }
            "Binary" => {
                let value =
                    self.binary_value.as_ref().ok_or_else(|| invalid("must contain a binary value"))?;
                Ok((2, BASE64_STANDARD.decode(value).map_err(|_| invalid("must contain valid base64"))?))
            }
            _ => Err(invalid("must have the type String, Number or Binary")),
        }
    }
}

/// Attributes by name, in the order their checksum is taken.
pub(crate) type Attributes = BTreeMap<String, AttributeValue>;

/// A message to send.
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    /// The body.
    pub body: String,
    /// The sender's own attributes.
    pub attributes: BTreeMap<String, AttributeValue>,
    /// Attributes for AWS services, such as `AWSTraceHeader`.
    pub system_attributes: BTreeMap<String, AttributeValue>,
    /// The group among which receives are shared fairly.
    pub group: Option<String>,
    /// How many seconds to keep it back; the queue's own delay if not said.
    pub delay_seconds: Option<u32>,
    /// Whether it is handed out before messages that are not.
    pub urgent: bool,
}

impl Outgoing {
    /// A message with nothing but a body.
    pub fn new(body: impl Into<String>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// What counts towards the size limit.
    pub(crate) fn size(&self) -> usize {
        let attribute = |(name, value): (&String, &AttributeValue)| {
            let bytes = value.bytes(name).map(|(_, bytes)| bytes.len()).unwrap_or_default();
            name.len() + value.data_type.len() + bytes
        };
        self.body.len() + self.attributes.iter().map(attribute).sum::<usize>()
    }

    /// Refuses what SQS would.
    pub(crate) fn check(&self, max_bytes: usize) -> Result<(), QueueError> {
        let carried =
            |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..) && !matches!(c, '\u{fffe}' | '\u{ffff}');
        if self.body.is_empty() {
            return Err(QueueError::MissingParameter("MessageBody"));
        }
        if !self.body.chars().all(carried) {
            return Err(QueueError::InvalidMessageContents);
        }
        if self.attributes.len() > 10 {
            return Err(QueueError::InvalidParameterValue(format!(
                "Number of message attributes [{}] exceeds the allowed maximum [10].",
                self.attributes.len()
            )));
        }
        for (name, value) in self.attributes.iter().chain(&self.system_attributes) {
            value.bytes(name)?;
        }
        if self.size() > max_bytes {
            return Err(QueueError::InvalidParameterValue(format!(
                "One or more parameters are invalid. Reason: Message must be shorter than {max_bytes} bytes."
            )));
        }
        if let Some(delay) = self.delay_seconds.filter(|delay| *delay > 900) {
            return Err(QueueError::InvalidParameterValue(format!(
                "Value {delay} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."
            )));
        }
        if let Some(group) = &self.group
            && (group.is_empty() || group.len() > 128 || !group.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(QueueError::InvalidParameterValue(format!(
                "Value {group} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length."
            )));
        }
        Ok(())
    }
}

/// What a sender learns.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The id the message keeps, in a dead letter queue too.
    pub message_id: String,
    /// The checksum of the body.
    pub md5_of_body: String,
    /// The checksum of the attributes, if there are any.
    pub md5_of_attributes: Option<String>,
    /// The checksum of the system attributes, if there are any.
    pub md5_of_system_attributes: Option<String>,
}

/// How to receive.
#[derive(Clone, Debug)]
pub struct Receive {
    /// At most this many messages, 1 to 10.
    pub max: usize,
    /// How long to wait for the first; the queue's own wait if not said.
    pub wait: Option<Duration>,
    /// How many seconds the messages stay hidden; the queue's own timeout if not said.
    pub visibility_seconds: Option<u32>,
}

/// A message received.
#[derive(Clone, Debug)]
pub struct Received {
    /// The id it was given when sent.
    pub message_id: String,
    /// Names this very receive, to delete the message or to change its visibility.
    pub receipt: String,
    /// The body.
    pub body: String,
    /// The sender's own attributes.
    pub attributes: BTreeMap<String, AttributeValue>,
    /// Attributes for AWS services, as sent.
    pub system_attributes: BTreeMap<String, AttributeValue>,
    /// The group it was sent to.
    pub group: Option<String>,
    /// When it was sent, in milliseconds.
    pub sent_at: u64,
    /// When it was received for the first time, in milliseconds.
    pub first_received_at: u64,
    /// How often it has been received, this time included.
    pub receives: u32,
    /// The ARN of the queue it comes from, in a dead letter queue.
    pub dead_letter_source: Option<String>,
}

/// The checksum of a body.
pub(crate) fn md5_of_body(body: &str) -> String {
    hex(&Md5::digest(body.as_bytes()))
}

/// The checksum of attributes: each name, type and value with its length, in the order of the names.
pub(crate) fn md5_of_attributes(attributes: &Attributes) -> Option<String> {
    let mut md5 = Md5::new();
    let mut part = |bytes: &[u8], kind: Option<u8>| {
        if let Some(kind) = kind {
            md5.update([kind]);
        }
        md5.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        md5.update(bytes);
    };
    for (name, value) in attributes {
        let (kind, bytes) = value.bytes(name).ok()?;
        part(name.as_bytes(), None);
        part(value.data_type.as_bytes(), None);
        part(&bytes, Some(kind));
    }
    (!attributes.is_empty()).then(|| hex(&md5.finalize()))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
