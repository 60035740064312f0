//! Histories from a seed: the real code over real SDK clients, with every request in the simulation's hand.
//!
//! [`histories`] runs one history per seed over a [`Store`]; the [`Simulation`] in it is the scheduler. An HTTP client
//! of its own takes the place of the SDK's: a request that an actor sends waits in the network until the scheduler
//! picks it, and only then meets the store: applied or not, answered or not, now or many steps later. Time is the
//! paused time of the test's runtime. So an actor waits for nothing but a request or a timer, and the same seed gives
//! the same history.

#![allow(clippy::unwrap_used)]

mod dynamo;
mod faults;
mod histories;
mod http_client;
mod request;
mod scheduler;
mod services;
mod store;
mod trace;

pub use faults::Faults;
pub use histories::{histories, wanted};
pub use request::{Request, Response, Service};
pub use scheduler::{BEGINNING, Simulation};
pub use services::{Depth, Message};
pub use store::{Conditions, Store};
