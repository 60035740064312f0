//! `eventbridge-dlq-alert`: from the dead-letter queue into the control table, and then to Slack.

mod handler;
mod slack;

pub use handler::Handler;
pub use slack::{AlertError, Slack};
