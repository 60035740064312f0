//! The attributes of a queue: what they mean and what is allowed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::message::MAX_MESSAGE_BYTES;
use super::{QueueError, queue_of_arn};

/// Attributes we keep and give back without acting on them.
const KEPT: [&str; 5] = [
    "Policy",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
    "RedriveAllowPolicy",
];

/// A queue's attributes, as they were set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Settings(BTreeMap<String, String>);

/// Where messages go that were received too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redrive {
    pub(crate) max_receives: u32,
    pub(crate) dead_letter_queue: String,
}

impl Settings {
    /// Checks and adopts attributes; an empty value takes one away.
    pub(crate) fn set(&mut self, attributes: BTreeMap<String, String>) -> Result<(), QueueError> {
        for (name, value) in &attributes {
            check(name, value)?;
        }
        for (name, value) in attributes {
            if value.is_empty() {
                self.0.remove(&name);
            } else {
                self.0.insert(name, value);
            }
        }
        Ok(())
    }

    /// The first attribute of `other` that differs from these.
    pub(crate) fn difference(&self, other: &Settings) -> Option<String> {
        other.0.keys().find(|name| self.get(name) != other.get(name)).cloned()
    }

    /// The attribute as set, or its default.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).or_else(|| numeric(name).map(|(default, ..)| default))
    }

    /// All attributes that have a value.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let defaults = NUMERIC.iter().filter(|(name, ..)| !self.0.contains_key(*name));
        let set = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        defaults.map(|(name, default, ..)| (*name, *default)).chain(set)
    }

    pub(crate) fn visibility_seconds(&self) -> u32 {
        self.number("VisibilityTimeout")
    }

    pub(crate) fn delay_seconds(&self) -> u32 {
        self.number("DelaySeconds")
    }

    pub(crate) fn retention_ms(&self) -> u64 {
        u64::from(self.number("MessageRetentionPeriod")) * 1000
    }

    pub(crate) fn wait_seconds(&self) -> u32 {
        self.number("ReceiveMessageWaitTimeSeconds")
    }

    pub(crate) fn max_message_bytes(&self) -> usize {
        self.number("MaximumMessageSize") as usize
    }

    pub(crate) fn redrive(&self) -> Option<Redrive> {
        self.0.get("RedrivePolicy").and_then(|policy| parse_redrive(policy).ok())
    }

    fn number(&self, name: &str) -> u32 {
        self.get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
    }
}

/// Name, default, least and greatest value.
const NUMERIC: [(&str, &str, u32, u32); 5] = [
    ("DelaySeconds", "0", 0, 900),
    ("MaximumMessageSize", "1048576", 1024, MAX_MESSAGE_BYTES as u32),
    ("MessageRetentionPeriod", "345600", 60, 1_209_600),
    ("ReceiveMessageWaitTimeSeconds", "0", 0, 20),
    ("VisibilityTimeout", "30", 0, 43_200),
];

fn numeric(name: &str) -> Option<(&'static str, u32, u32)> {
    NUMERIC.iter().find(|(known, ..)| *known == name).map(|(_, default, min, max)| (*default, *min, *max))
}

fn check(name: &str, value: &str) -> Result<(), QueueError> {
    let invalid = || QueueError::InvalidAttributeValue(format!("Invalid value for the parameter {name}."));
    if let Some((_, min, max)) = numeric(name) {
        return match value.parse::<u32>() {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            _ => Err(invalid()),
        };
    }
    match name {
        "RedrivePolicy" if value.is_empty() => Ok(()),
        "RedrivePolicy" => parse_redrive(value).map(|_| ()).map_err(|()| invalid()),
        "FifoQueue" | "ContentBasedDeduplication" | "DeduplicationScope" | "FifoThroughputLimit" => {
            Err(QueueError::UnsupportedOperation("FIFO queues are not available here.".to_owned()))
        }
        _ if KEPT.contains(&name) => Ok(()),
        _ => Err(QueueError::InvalidAttributeName(name.to_owned())),
    }
}

fn parse_redrive(policy: &str) -> Result<Redrive, ()> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Count {
        Number(u32),
        Text(String),
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Policy {
        dead_letter_target_arn: String,
        max_receive_count: Count,
    }
    let policy: Policy = serde_json::from_str(policy).map_err(|_| ())?;
    let max_receives = match policy.max_receive_count {
        Count::Number(number) => number,
        Count::Text(text) => text.parse().map_err(|_| ())?,
    };
    let dead_letter_queue = queue_of_arn(&policy.dead_letter_target_arn).ok_or(())?.to_owned();
    if !(1..=1000).contains(&max_receives) {
        return Err(());
    }
    Ok(Redrive { max_receives, dead_letter_queue })
}
