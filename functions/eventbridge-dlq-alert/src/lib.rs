//! The function `eventbridge-dlq-alert`: it stores each failed delivery of the dead-letter queue in the control table,
//! where an operator can redrive it, then alerts on Slack once. Lambda calls it, and local mode in process.

mod handler;

pub use handler::Handler;
