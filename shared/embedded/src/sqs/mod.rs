//! SQS: standard queues with delay, visibility, redrive and fairness between message groups.

mod api;
mod batch;
mod error;
mod index;
mod message;
mod queues;
mod rows;
mod send_receive;
mod settings;

pub use error::QueueError;
pub use index::Counts;
pub use message::{AttributeValue, Outgoing, Receive, Received, Sent};
pub use queues::{Queues, Waiting};

pub(crate) use api::{Endpoint, handle};
pub(crate) use message::hex;

/// The account every ARN names.
pub(crate) const ACCOUNT: &str = "000000000000";

/// The ARN of a queue.
pub(crate) fn queue_arn(region: &str, name: &str) -> String {
    format!("arn:aws:sqs:{region}:{ACCOUNT}:{name}")
}

/// The queue an ARN names, if it names one.
pub(crate) fn queue_of_arn(arn: &str) -> Option<&str> {
    let mut parts = arn.split(':');
    match (parts.next(), parts.next(), parts.next(), parts.nth(2), parts.next()) {
        (Some("arn"), Some(_), Some("sqs"), Some(name), None) if !name.is_empty() => Some(name),
        _ => None,
    }
}
