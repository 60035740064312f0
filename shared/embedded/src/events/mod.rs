//! EventBridge: buses, rules with patterns, and SQS queues as targets.

mod api;
mod bus;
mod pattern;
mod publish;

pub(crate) use api::handle;
pub(crate) use bus::Buses;
