//! EventBridge: buses, rules with patterns, and SQS queues as targets.

mod admission;
mod api;
mod bus;
mod pattern;
mod publish;

pub use admission::Admission;
pub(crate) use admission::Urgency;
pub(crate) use api::handle;
pub(crate) use bus::Buses;
pub(crate) use publish::THROTTLED;
