//! One file per resource.

pub(crate) mod drainers;
pub(crate) mod events;
pub(crate) mod failed_deliveries;
pub(crate) mod health;
pub(crate) mod hooks;
pub(crate) mod jobs;
pub(crate) mod parked;
pub(crate) mod runs;
pub(crate) mod sent_events;
pub(crate) mod subscriptions;
pub(crate) mod tasks;
pub(crate) mod workflows;
