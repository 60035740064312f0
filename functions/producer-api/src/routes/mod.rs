//! One file per resource.

pub(crate) mod drainers;
pub(crate) mod failed;
pub(crate) mod health;
pub(crate) mod hooks;
pub(crate) mod jobs;
mod listing;
pub(crate) mod parked;
pub(crate) mod recent;
pub(crate) mod record;
pub(crate) mod runs;
pub(crate) mod send;
pub(crate) mod subscriptions;
pub(crate) mod tasks;
pub(crate) mod workflows;
