//! What tests of more than one package share.
//!
//! - a running local mode ([`World`]), its HTTP API ([`api`], [`external_runs`]), a worker on its task queue
//!   ([`local_worker`]) and a Slack webhook that keeps its alerts ([`slack`]);
//! - the embedded services alone ([`Store`]), and a [`Ledger`] over them, whose clock, drains, tasks and runs move only
//!   when the test says so;
//! - what processes of versions before 0.1.0 do ([`previous_version`]);
//! - events, items, seeds, and waiting for a condition.
//!
//! It promises nothing to the product and stores nothing of its own; `tests/behaviour` and `tests/simulation` call it.

#![allow(clippy::unwrap_used)]

pub mod api;
mod events;
mod expiry;
pub mod external_runs;
mod items;
mod ledger;
pub mod local_worker;
pub mod previous_version;
mod runs_by_hand;
mod seeds;
pub mod slack;
mod store;
mod tasks_by_hand;
mod until;
mod world;

/// Local mode as the command line starts it: tests reach it by this name only.
pub use ledgerline_local as local;

pub use events::{admitted, at, detail, event, name};
pub use items::{Item, number, rows_of, scan, text};
pub use ledger::{BEGIN, Ledger, another_process};
pub use runs_by_hand::TENANT;
pub use seeds::seeds;
pub use store::{Store, without_retries};
pub use tasks_by_hand::{EXTENSION, Held, diamond};
pub use until::until;
pub use world::World;
