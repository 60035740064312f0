//! Alerts for operators: messages to a Slack webhook whose address is a secret in SSM.
//!
//! [`Slack::send`] returns once Slack has accepted the message, or says why it has not; it retries within a bounded
//! time. The crate stores nothing: its callers, the outbox and the function `eventbridge-dlq-alert`, store what is
//! still to be sent.

mod slack;

pub use slack::{AlertError, Answer, Delivery, Post, Slack};
