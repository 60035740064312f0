//! `eventbridge-dlq-alert`: from the dead-letter queue into the control table, and then to Slack.

mod handler;

pub use handler::Handler;
