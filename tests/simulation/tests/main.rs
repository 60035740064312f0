//! Histories of each part of the pipeline, what is measured in simulated time, and the simulation itself.

#![allow(clippy::unwrap_used)]

mod deadlines;
mod draining;
mod harness;
mod many_tenants;
mod running;
mod saving;
mod working;
